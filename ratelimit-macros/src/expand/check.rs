//! The check of a call: which limits, which keys, which costs.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::punctuated::Pair;
use syn::spanned::Spanned;
use syn::{Expr, ExprReference, ExprTuple, LitStr, Token};

use super::Expansion;
use super::limit::{NameSource, registered};
use crate::guard::{Charge, ChargeGroup, Charges, KeyAndCost};
use crate::key::{Key, KeyPiece};
use crate::limit_source::{LimitConstant, LimitSource};
use crate::policy::LimitPolicy;
use crate::spans::{hygienic, spanned_at};
use crate::values::unwrap_parens;

impl Expansion<'_> {
    /// The expression that starts the check. Its value is the future of the decision, or of the permits for `acquire`.
    pub(super) fn check(&self, function: &str) -> TokenStream {
        let rt = &self.rt;
        match &self.guard.charges {
            Charges::One(charge) => {
                let Charge { limit: source, policy, key_and_cost, after_call } = &**charge;
                let limit = match source {
                    LimitSource::Constant(constant) => {
                        let reference = self.constant(constant, policy, Some(after_call));
                        registered(rt, &reference, NameSource::Constant, source.varies())
                    }
                    LimitSource::Arguments(limit) => {
                        let name = self.name(limit.name.as_ref());
                        let tokens = self.limit(limit, policy, &name);
                        self.arguments(&tokens, limit.name.is_some(), limit.varies())
                    }
                    LimitSource::InFlight(limit) => {
                        let name = self.name(limit.name.as_ref());
                        let tokens = self.in_flight(limit, policy, &name);
                        self.arguments(&tokens, limit.name.is_some(), limit.varies())
                    }
                };
                let limit = if source.varies() {
                    self.call_limit(source, after_call.is_empty(), &limit)
                } else {
                    limit
                };
                let limit = match self.limiter() {
                    Some(limiter) => {
                        quote_spanned!(hygienic()=> #rt::__private::On::new(#limiter, #limit))
                    }
                    None => limit,
                };
                let key = self.key(key_and_cost.key.as_ref());
                let cost = cost(key_and_cost.cost.as_ref());
                let check = self.check_function(function);
                quote_spanned!(hygienic()=> #rt::__private::#check(#limit, #key, #cost))
            }
            Charges::Several(group) => self.check_group(group, function),
        }
    }

    /// A reference to the limiter that the attribute names.
    fn limiter(&self) -> Option<TokenStream> {
        let (rt, limiter) = (&self.rt, self.guard.limiter.as_ref()?);
        let call = quote_spanned!(hygienic()=> #rt::__private::limiter(&#limiter));
        Some(spanned_at(limiter, call))
    }

    /// The limit of arguments, registered.
    fn arguments(&self, tokens: &TokenStream, is_named: bool, varies: bool) -> TokenStream {
        let name = if is_named { NameSource::Argument } else { NameSource::Function };
        let reference = quote_spanned!(hygienic()=> const { &#tokens });
        registered(&self.rt, &reference, name, varies)
    }

    /// The function of the runtime, for a function that is async or not.
    pub(super) fn check_function(&self, name: &str) -> Ident {
        let now = if self.function.is_synchronous() { "_now" } else { "" };
        Ident::new(&format!("{name}{now}"), hygienic())
    }

    pub(super) fn check_group(&self, group: &ChargeGroup, function: &str) -> TokenStream {
        let rt = &self.rt;
        let ChargeGroup { name, charges, shared, shared_after_call } = group;
        let (is_named, name) = (name.is_some(), self.name(name.as_ref()));
        let variable = |name| Ident::new(name, hygienic()).into_token_stream();
        // The limits whose amounts each call computes, before the key and the cost.
        let mut call_limits: Vec<(Ident, TokenStream)> = Vec::new();
        let own_name = |own: Option<&LitStr>, number: usize| {
            let number = format!("#{number}");
            let numbered = || quote_spanned!(hygienic()=> ::core::concat!(#name, #number));
            let name = own.map_or_else(numbered, ToTokens::to_token_stream);
            (name, is_named || own.is_some())
        };
        let parts: Vec<_> =
            charges.iter().zip(1_usize..).map(|(charge, number)| {
                let Charge { limit, policy, key_and_cost, after_call } = charge;
                let after_call = after_call.or(shared_after_call);
                let tokens = match limit {
                    LimitSource::Constant(constant) => {
                        let reference = self.constant(constant, policy, Some(&after_call));
                        registered(rt, &reference, NameSource::Constant, limit.varies())
                    }
                    LimitSource::Arguments(limit) => {
                        let (name, is_named) = own_name(limit.name.as_ref(), number);
                        let tokens = self.limit(limit, policy, &name);
                        self.arguments(&tokens, is_named, limit.varies())
                    }
                    LimitSource::InFlight(limit) => {
                        let (name, is_named) = own_name(limit.name.as_ref(), number);
                        let tokens = self.in_flight(limit, policy, &name);
                        self.arguments(&tokens, is_named, limit.varies())
                    }
                };
                let KeyAndCost { key, cost } = key_and_cost;
                let key = key.as_ref().map_or_else(|| variable("key"), |key| self.key(Some(key)));
                let cost =
                    cost.as_ref().map_or_else(|| variable("cost"), ToTokens::to_token_stream);
                if limit.varies() {
                    let variable = Ident::new(&format!("limit_{number}"), hygienic());
                    call_limits.push((variable.clone(), self.call_limit(limit, false, &tokens)));
                    quote_spanned!(hygienic()=> #rt::__private::CallPart::of(&#variable, &#key, #cost))
                } else {
                    quote_spanned!(hygienic()=> #rt::__private::CallPart::constant(#tokens, &#key, #cost))
                }
            }).collect();
        let agree = self.agreement(charges);
        let (key, cost) = (self.key(shared.key.as_ref()), cost(shared.cost.as_ref()));
        // The shared key and cost are evaluated once. The `match` keeps the temporaries of the key
        // alive while they are borrowed.
        let check_all = self.check_function(&format!("{function}_all"));
        let limiter = self.limiter();
        let on = limiter.as_ref().map(|_| quote_spanned!(hygienic()=> .on(limiter)));
        let mut check = quote_spanned! {hygienic()=>
            match (#key, #cost) {
                (key, cost) => {
                    let _ = (&key, cost);
                    #rt::__private::#check_all(&#rt::__private::LimitGroup::new([#(#parts),*])#on)
                }
            }
        };
        if !call_limits.is_empty() {
            let (variables, limits): (Vec<_>, Vec<_>) = call_limits.into_iter().unzip();
            check = quote_spanned! {hygienic()=>
                match (#(#limits,)*) { (#(#variables,)*) => #check }
            };
        }
        if let Some(given) = limiter {
            check = quote_spanned!(hygienic()=> match #given { limiter => #check });
        }
        match agree {
            Some(agree) => quote_spanned!(hygienic()=> { #agree #check }),
            None => check,
        }
    }

    /// The limits of a group have one policy. The attribute sets it, but a constant can have its own.
    pub(super) fn agreement(&self, charges: &[Charge]) -> Option<TokenStream> {
        let (rt, own) = (&self.rt, LimitPolicy::default());
        let limits = charges.iter().map(|charge| match &charge.limit {
            LimitSource::Constant(constant) => Ok(self.constant(constant, &own, None)),
            LimitSource::Arguments(limit) => Err(Ok(limit)),
            LimitSource::InFlight(limit) => Err(Err(limit)),
        });
        let limits: Vec<_> = limits.collect();
        let constant = limits.iter().position(Result::is_ok)?;
        let LimitSource::Constant(LimitConstant { path, .. }) = &charges[constant].limit else {
            return None;
        };
        let name = LitStr::new("limit", hygienic()).into_token_stream();
        let limits = limits.into_iter().map(|limit| match limit {
            Ok(constant) => constant,
            Err(limit) => {
                let limit = match limit {
                    Ok(limit) => self.limit(limit, &own, &name),
                    Err(limit) => self.in_flight(limit, &own, &name),
                };
                quote_spanned!(hygienic()=> &#limit)
            }
        });
        let call = spanned_at(
            path,
            quote_spanned!(hygienic()=> #rt::__private::decided_together(&[#(#limits),*])),
        );
        Some(quote_spanned!(hygienic()=> const { #call };))
    }

    pub(super) fn key(&self, key: Option<&Key>) -> TokenStream {
        let rt = &self.rt;
        match key {
            None => quote_spanned!(hygienic()=> ()),
            Some(Key::Expr(expr)) => borrow(expr).into_token_stream(),
            Some(Key::Format(pieces)) => format_key(rt, pieces),
        }
    }
}

fn cost(given: Option<&Expr>) -> TokenStream {
    given.map_or_else(|| quote_spanned!(hygienic()=> 1_u32), ToTokens::to_token_stream)
}

/// A reference to the value. For a tuple, a tuple of references: `&(a, b)` would move `a` and `b`.
fn borrow(expr: &Expr) -> Expr {
    let expr = match unwrap_parens(expr) {
        Expr::Tuple(tuple) => {
            let elems = tuple.elems.pairs().map(|pair| {
                let (elem, comma) = pair.into_tuple();
                Pair::new(borrow(elem), comma.copied())
            });
            Expr::Tuple(ExprTuple { elems: elems.collect(), ..tuple.clone() })
        }
        _ => expr.clone(),
    };

    Expr::Reference(ExprReference {
        attrs: Vec::new(),
        and_token: Token![&](hygienic().located_at(expr.span())),
        mutability: None,
        expr: Box::new(expr),
    })
}

/// The most parts of a format string in one tuple.
const LONGEST_TUPLE: usize = 8;

/// The key of a format string. It borrows the values.
pub(crate) fn format_key(rt: &TokenStream, pieces: &[KeyPiece]) -> TokenStream {
    let pieces = pieces.iter().flat_map(|piece| match piece {
        KeyPiece::Text(text) => text_pieces(rt, text),
        KeyPiece::Argument { spec, root, fields } => {
            let value = quote_spanned!(hygienic()=> #root #(.#fields)*);
            vec![if spec.value() == "{}" {
                // A value that is not `Display` is an error at the format string.
                let any = quote_spanned!(hygienic()=> #rt::__private::AnyHole(&#value));
                let any = spanned_at(spec, any);
                let hole = spanned_at(spec, quote_spanned!(hygienic()=> #rt::__private::Hole(#any)));
                let piece = Ident::new("piece", hygienic().located_at(spec.span()));
                quote_spanned!(hygienic()=> #hole.#piece())
            } else {
                quote_spanned!(hygienic()=> #rt::__private::Shown(::core::format_args!(#spec, #value)))
            }]
        }
    });
    let mut pieces: Vec<TokenStream> = pieces.collect();
    while pieces.len() > LONGEST_TUPLE {
        let tuples = pieces.chunks(LONGEST_TUPLE);
        pieces = tuples.map(|pieces| quote_spanned!(hygienic()=> (#(#pieces,)*))).collect();
    }
    quote_spanned!(hygienic()=> #rt::__private::Format((#(#pieces,)*)))
}

/// Splits a text at its colons, which separate parts of the key.
fn text_pieces(rt: &TokenStream, text: &LitStr) -> Vec<TokenStream> {
    let (value, mut pieces) = (text.value(), Vec::new());
    for (index, part) in value.split(':').enumerate() {
        if index > 0 {
            pieces.push(quote_spanned!(hygienic()=> #rt::__private::Colon));
        }
        if !part.is_empty() {
            let part = LitStr::new(part, text.span());
            pieces.push(quote_spanned!(hygienic()=> #rt::__private::Text(#part)));
        }
    }
    pieces
}
