//! A limit, as a constant of the runtime.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::LitStr;
use syn::ext::IdentExt;

use super::Expansion;
use crate::after_call::AfterCall;
use crate::in_flight::InFlight;
use crate::limit::{Lease, Limit};
use crate::limit_source::{LimitConstant, LimitSource};
use crate::offset::Offset;
use crate::policy::{LimitPolicy, Setting, SettingValue};
use crate::spans::{hygienic, spanned_at};
use crate::values::{Amount, Constant};
use crate::words::Word;

impl Expansion<'_> {
    pub(super) fn limit(
        &self,
        limit: &Limit,
        policy: &LimitPolicy,
        name: &TokenStream,
    ) -> TokenStream {
        let rt = &self.rt;
        let Limit { name: _, algorithm, threshold, period, burst, align, lease } = limit;
        let constructor = Ident::new(algorithm.as_str(), hygienic());
        let threshold = match threshold {
            _ if limit.varies() => quote_spanned!(hygienic()=> 1_u32),
            threshold => threshold.expr().to_token_stream(),
        };
        let period_tokens = self.duration(period);

        let mut tokens = limit.spanned_at_constant(quote_spanned! {hygienic()=>
            #rt::Limit::#constructor(#name, #threshold, #period_tokens)
        });
        if let Some(Amount::Constant(Constant { expr, .. })) = burst
            && !limit.varies()
        {
            let call = quote_spanned!(hygienic()=> #rt::Limit::burst(#tokens, #expr));
            tokens = spanned_at(expr, call);
        }
        if let Some(Offset { minutes }) = align {
            tokens = limit.spanned_at_constant(quote_spanned! {hygienic()=>
                #rt::Limit::align(#tokens, #rt::Align::offset_minutes(#minutes))
            });
        }
        if !limit.varies() {
            match lease {
                Some(Lease::UpTo(Constant { expr, .. })) => {
                    let call = quote_spanned!(hygienic()=> #rt::Limit::lease(#tokens, #expr));
                    tokens = spanned_at(expr, call);
                }
                Some(Lease::Auto(word)) => {
                    let call = quote_spanned!(hygienic()=> #rt::Limit::auto_lease(#tokens));
                    tokens = spanned_at(word, call);
                }
                None => {}
            }
        }
        self.with_policy(tokens, policy)
    }

    pub(super) fn in_flight(
        &self,
        InFlight { name: _, most, hold }: &InFlight,
        policy: &LimitPolicy,
        name: &TokenStream,
    ) -> TokenStream {
        let rt = &self.rt;
        let number = match most {
            Amount::Expression(_) => quote_spanned!(hygienic()=> 1_u32),
            Amount::Constant(Constant { expr, .. }) => expr.to_token_stream(),
        };
        let call = quote_spanned!(hygienic()=> #rt::Limit::in_flight(#name, #number));
        let mut tokens = spanned_at(most.expr(), call);
        if let Some(hold) = hold {
            let duration = self.duration(hold);
            let call = quote_spanned!(hygienic()=> #rt::Limit::hold(#tokens, #duration));
            tokens = spanned_at(&hold.expr, call);
        }
        self.with_policy(tokens, policy)
    }

    /// The limit of a call, from the limit with other amounts. A constant keeps its lease if the call may lease.
    pub(super) fn call_limit(
        &self,
        source: &LimitSource,
        may_lease: bool,
        template: &TokenStream,
    ) -> TokenStream {
        let rt = &self.rt;
        let amount = |amount: &Amount| {
            let expr = amount.expr();
            spanned_at(expr, quote_spanned!(hygienic()=> #rt::__private::amount(#expr)))
        };
        let (threshold, burst) = match source {
            LimitSource::Arguments(limit) => (amount(&limit.threshold), limit.burst.as_ref()),
            LimitSource::InFlight(limit) => (amount(&limit.most), None),
            LimitSource::Constant(LimitConstant { path, threshold, burst }) => {
                let own = || quote_spanned!(hygienic()=> #rt::__private::amount(#rt::Limit::threshold(&#path)));
                (threshold.as_ref().map_or_else(own, amount), burst.as_ref())
            }
        };
        let burst =
            burst.map_or_else(|| quote_spanned!(hygienic()=> ::core::option::Option::None), amount);
        let lease = match source {
            LimitSource::Arguments(Limit { lease: Some(Lease::UpTo(lease)), .. }) => {
                let expr = &lease.expr;
                quote_spanned!(hygienic()=> #rt::__private::Lease::UpTo(#expr))
            }
            LimitSource::Arguments(Limit { lease: Some(Lease::Auto(_)), .. }) => {
                quote_spanned!(hygienic()=> #rt::__private::Lease::Auto)
            }
            LimitSource::Constant(LimitConstant { path, .. }) if may_lease => {
                quote_spanned!(hygienic()=> #rt::__private::lease_of(&#path))
            }
            _ => quote_spanned!(hygienic()=> #rt::__private::Lease::None),
        };
        quote_spanned! {hygienic()=>
            {
                static __RATE_LIMIT_AMOUNTS: #rt::__private::AmountsSite = #rt::__private::AmountsSite::new();
                __RATE_LIMIT_AMOUNTS.of(#template, #threshold, #burst, #lease)
            }
        }
    }

    /// The limit of a constant, with the policy of the attribute.
    pub(super) fn constant(
        &self,
        LimitConstant { path, .. }: &LimitConstant,
        policy: &LimitPolicy,
        after_call: Option<&AfterCall>,
    ) -> TokenStream {
        let rt = &self.rt;
        let function = match after_call {
            // The permit of the call is dropped at once.
            Some(after_call) if after_call.is_empty() => "without_permit",
            Some(_) => "unleased",
            None => "limit",
        };
        let function = Ident::new(function, hygienic());
        let limit = spanned_at(path, quote_spanned!(hygienic()=> #rt::__private::#function(#path)));
        let limit = self.with_policy(limit, policy);
        quote_spanned!(hygienic()=> const { &#limit })
    }

    fn with_policy(&self, limit: TokenStream, own: &LimitPolicy) -> TokenStream {
        let rt = &self.rt;
        let ident = |name: &str| Ident::new(name, hygienic());
        let settings = self.guard.policy.settings(own).into_iter();
        settings.fold(limit, |limit, Setting { method, value }| {
            let value = match value {
                SettingValue::Flag(flag) => flag.to_token_stream(),
                SettingValue::Variant(name, variant) => {
                    let (name, variant) = (ident(name), ident(variant));
                    quote_spanned!(hygienic()=> #rt::#name::#variant)
                }
                SettingValue::Duration(duration) => self.duration(duration),
            };
            let method = ident(method);
            quote_spanned!(hygienic()=> #rt::Limit::#method(#limit, #value))
        })
    }

    pub(super) fn duration(&self, duration: &Constant<u64>) -> TokenStream {
        let rt = &self.rt;
        duration.known.map_or_else(
            || duration.expr.to_token_stream(),
            |us| quote_spanned!(hygienic()=> #rt::__private::micros(#us)),
        )
    }

    /// The given name, or the path of the function.
    pub(super) fn name(&self, given: Option<&LitStr>) -> TokenStream {
        given.map_or_else(
            || {
                let function = self.function.sig.ident.unraw().to_string();
                quote_spanned! {hygienic()=>
                    ::core::concat!(::core::module_path!(), "::", #function)
                }
            },
            ToTokens::to_token_stream,
        )
    }
}

impl Limit {
    /// The same call. The compiler evaluates a constant behind a path in this call, and its error
    /// points at the call, so the call gets the span of the constant.
    pub(super) fn spanned_at_constant(&self, call: TokenStream) -> TokenStream {
        let Limit { threshold, period, .. } = self;
        match (threshold.known(), period.known) {
            (None, Some(_)) => spanned_at(threshold.expr(), call),
            (Some(_), None) => spanned_at(&period.expr, call),
            _ => call,
        }
    }
}

/// Where the name of a limit comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NameSource {
    Function,
    Argument,
    Constant,
}

/// A reference to the limit, which registers the limit at the first call. Two functions can share a default name by
/// mistake.
pub(super) fn registered(
    rt: &TokenStream,
    reference: &TokenStream,
    name: NameSource,
    is_computed: bool,
) -> TokenStream {
    let site = Ident::new(
        match name {
            NameSource::Function => "new",
            NameSource::Argument => "named",
            NameSource::Constant => "constant",
        },
        hygienic(),
    );
    let computed = is_computed.then(|| quote_spanned!(hygienic()=> .computed()));
    quote_spanned! {hygienic()=>
        {
            static __RATE_LIMIT_SITE: #rt::__private::Site = #rt::__private::Site::#site(::core::concat!(
                ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
            ))#computed;
            __RATE_LIMIT_SITE.visit(#reference)
        }
    }
}
