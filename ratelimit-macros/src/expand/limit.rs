//! A limit, as a constant of the runtime.

use std::fmt::Debug;

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::LitStr;
use syn::ext::IdentExt;

use super::Expansion;
use crate::guard::Charge;
use crate::limit::{AlignValue, Kind, Lease, Limit};
use crate::policy::Policy;
use crate::spans::{hygienic, spanned_at, word};
use crate::text::offset::AlignText;
use crate::values::Value;
use crate::words::Word;

impl Expansion<'_> {
    /// The limit of a charge, which registers it at the first call: two functions can share a default name by mistake.
    /// A call whose amounts are computed has a limit of its own.
    pub(super) fn registered(
        &self,
        charge: &Charge,
        name: &TokenStream,
        is_named: bool,
    ) -> TokenStream {
        let (rt, Charge { limit, after_call, .. }) = (&self.rt, charge);
        let constant = match &limit.kind {
            // The permit of the call is dropped at once.
            Kind::Constant(_) if after_call.is_empty() => self.limit(limit, name, "without_permit"),
            _ => self.limit(limit, name, "unleased"),
        };
        let site_name = match limit.kind {
            Kind::Constant(_) => "Constant",
            _ if is_named => "Chosen",
            _ => "Default",
        };
        let (site_name, varies) = (word(site_name), limit.varies());
        let registered = hygienic! {
            {
                static __RATE_LIMIT_SITE: #rt::__private::Site = #rt::__private::Site::new(
                    ::core::concat!(::core::file!(), ":", ::core::line!(), ":", ::core::column!()),
                    #rt::__private::SiteName::#site_name,
                    #varies
                );
                __RATE_LIMIT_SITE.visit(const { &#constant })
            }
        };
        let registered = if varies { self.computed(charge, &registered) } else { registered };
        if limit.moves() { self.moved(limit, &registered) } else { registered }
    }

    /// A limit with its settings and the policy of the attribute. `of_constant` reads the limit of a constant.
    pub(super) fn limit(
        &self,
        limit: &Limit,
        name: &TokenStream,
        of_constant: &str,
    ) -> TokenStream {
        let (rt, varies) = (&self.rt, limit.varies());
        let threshold = match &limit.threshold {
            Some(threshold) if !varies => threshold.expr.to_token_stream(),
            _ => hygienic!(1_u64),
        };
        let limit_type = hygienic!(#rt::Limit);
        let mut tokens = match &limit.kind {
            Kind::Constant(path) => {
                let function = word(of_constant);
                spanned_at(path, hygienic!(#rt::__private::#function(#path)))
            }
            Kind::Rate { unit: Some(unit), .. } => {
                let unit = word(&(unit[..1].to_uppercase() + &unit[1..]));
                let unit = hygienic!(#rt::Calendar::#unit);
                let call = hygienic!(#limit_type::calendar(#name, #threshold, #unit));
                spanned_at(&limit.constant_place(), call)
            }
            Kind::Rate { algorithm, period, .. } => {
                let (constructor, period) = (word(algorithm.as_str()), self.duration(period));
                let call = hygienic!(#limit_type::#constructor(#name, #threshold, #period));
                spanned_at(&limit.constant_place(), call)
            }
            Kind::InFlight => {
                let call = hygienic!(#limit_type::in_flight(#name, #threshold));
                spanned_at(&limit.threshold.as_ref().map(|most| &most.expr), call)
            }
        };
        let mut set = |method: &str, value: TokenStream, place: &dyn ToTokens| {
            let method = word(method);
            tokens = spanned_at(place, hygienic!(#limit_type::#method(#tokens #value)));
        };
        let value = |value: &dyn ToTokens| hygienic!(, #value);
        if !varies {
            if let Some(Value { expr, .. }) = &limit.burst {
                set("burst", value(expr), expr);
            }
            match &limit.lease {
                Some(Lease::UpTo(Value { expr, .. })) => set("lease", value(expr), expr),
                Some(Lease::Auto(word)) => set("auto_lease", TokenStream::new(), word),
                None => {}
            }
        }
        if let Some(align) = self.align(limit).filter(|_| !limit.moves()) {
            set("align", value(&align), &limit.constant_place());
        }
        if let Some(hold) = &limit.hold {
            set("hold", value(&self.duration(hold)), &hold.expr);
        }
        let mut set = |method: &str, given| set(method, value(&given), &None::<LitStr>);
        self.set_policy(&mut set);
        if let Some(hidden) = limit.hidden {
            set("hidden", hidden.to_token_stream());
        }
        if let Some(percent) = limit.notify_at {
            set("notify_at", percent.to_token_stream());
        }
        tokens
    }

    /// Where windows begin, and months on which day.
    fn align(&self, limit: &Limit) -> Option<TokenStream> {
        let midnight = self.midnight(limit)?;
        let rt = &self.rt;
        Some(match limit.align_day.as_ref().map(day) {
            Some(day) => hygienic!(#rt::Align::day(#midnight, #day)),
            None => midnight,
        })
    }

    fn midnight(&self, limit: &Limit) -> Option<TokenStream> {
        let rt = &self.rt;
        Some(match &limit.align {
            None if limit.align_day.is_none() => return None,
            None => hygienic!(#rt::Align::UTC),
            Some(AlignValue::Text(AlignText::Minutes(minutes))) => {
                hygienic!(#rt::Align::offset_minutes(#minutes))
            }
            Some(AlignValue::Text(AlignText::Zone(zone))) => {
                hygienic!(#rt::Align::zone(#zone))
            }
            Some(AlignValue::Value(Value { expr, .. })) => expr.to_token_stream(),
        })
    }

    /// The limit of a call that computes where its windows begin.
    fn moved(&self, limit: &Limit, call_limit: &TokenStream) -> TokenStream {
        let (rt, midnight) = (&self.rt, self.midnight(limit));
        let day = match limit.align_day.as_ref().map(day) {
            None => hygienic!(::core::option::Option::None),
            Some(day) => hygienic!(::core::option::Option::Some(#day)),
        };
        hygienic!(#rt::__private::CallLimit::with_align(#call_limit, #midnight, #day))
    }

    fn set_policy(&self, set: &mut dyn FnMut(&str, TokenStream)) {
        let rt = &self.rt;
        let Policy { scope, on_error, shadow, wait } = &self.guard.policy;
        // The enums of the runtime have the same variants.
        let variant = |value: &dyn Debug| word(&format!("{value:?}"));
        if let Some(scope) = scope.map(|it| variant(&it)) {
            set("scope", hygienic!(#rt::Scope::#scope));
        }
        if let Some(on_error) = on_error.map(|it| variant(&it)) {
            set("on_error", hygienic!(#rt::OnError::#on_error));
        }
        if let Some(wait) = wait {
            set("wait", self.duration(wait));
        }
        if let Some(shadow) = shadow {
            set("shadow", shadow.to_token_stream());
        }
    }

    /// The limit that remembers the ids of calls, which agrees with the limit `name`.
    pub(super) fn remembered(&self, name: &TokenStream, within: &Value) -> TokenStream {
        let (rt, duration) = (&self.rt, self.duration(within));
        let limit_type = hygienic!(#rt::Limit);
        let name = hygienic!(::core::concat!(#name, " once"));
        let call = hygienic!(#limit_type::once(#name, #duration));
        let mut tokens = spanned_at(&within.expr, call);
        self.set_policy(&mut |method, given| {
            let method = word(method);
            tokens = hygienic!(#limit_type::#method(#tokens, #given));
        });
        tokens
    }

    /// The limit of a call that computes its amounts, from the limit with other amounts. A constant keeps its lease if
    /// the call may lease.
    fn computed(&self, charge: &Charge, template: &TokenStream) -> TokenStream {
        let (rt, Charge { limit, after_call, .. }) = (&self.rt, charge);
        let amount =
            |Value { expr, .. }: &Value| spanned_at(expr, hygienic!(#rt::__private::amount(#expr)));
        let none = hygienic!(::core::option::Option::None);
        let threshold = match (&limit.threshold, &limit.kind) {
            (Some(threshold), _) => amount(threshold),
            (None, Kind::Constant(path)) => {
                hygienic!(#rt::__private::amount(#rt::Limit::threshold(&#path)))
            }
            (None, _) => none.clone(),
        };
        let burst = limit.burst.as_ref().map_or(none, amount);
        let may_lease = self.guard.shared.is_none() && after_call.is_empty();
        let lease = match (&limit.lease, &limit.kind) {
            (Some(Lease::UpTo(Value { expr, .. })), _) => {
                hygienic!(#rt::__private::Lease::UpTo(#expr))
            }
            (Some(Lease::Auto(_)), _) => hygienic!(#rt::__private::Lease::Auto),
            (None, Kind::Constant(path)) if may_lease => {
                hygienic!(#rt::Limit::policy(&#path).lease)
            }
            (None, _) => hygienic!(#rt::__private::Lease::None),
        };
        hygienic!(#rt::__private::CallLimit::with_amounts(#template, #threshold, #burst, #lease))
    }

    pub(super) fn duration(&self, duration: &Value) -> TokenStream {
        let rt = &self.rt;
        match duration.known {
            Some(us) => hygienic!(#rt::__private::micros(#us)),
            None => duration.expr.to_token_stream(),
        }
    }

    /// The given name, or the path of the function.
    pub(super) fn name(&self, given: Option<&LitStr>) -> TokenStream {
        let function = self.function.sig.ident.unraw().to_string();
        let default = || hygienic!(::core::concat!(::core::module_path!(), "::", #function));
        given.map_or_else(default, ToTokens::to_token_stream)
    }
}

/// The day on which months begin, of type `u8`.
fn day(Value { expr, known }: &Value) -> TokenStream {
    known.map_or_else(|| expr.to_token_stream(), |day| (day as u8).to_token_stream())
}

impl Limit {
    /// The only constant of a rate, if it has one. The compiler evaluates it in a call of the runtime, and its error
    /// points at that call, so the call gets the span of the constant.
    fn constant_place(&self) -> Option<&syn::Expr> {
        let (Some(threshold), Kind::Rate { period, .. }) = (&self.threshold, &self.kind) else {
            return None;
        };
        match (threshold.known, period.known) {
            (None, Some(_)) => Some(&threshold.expr),
            (Some(_), None) => Some(&period.expr),
            _ => None,
        }
    }
}
