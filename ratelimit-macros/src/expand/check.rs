//! The check of a call: which limits, which keys, which costs.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::punctuated::Pair;
use syn::spanned::Spanned;
use syn::{Expr, ExprReference, ExprTuple, LitStr, Token};

use super::Expansion;
use super::limit::{NameSource, registered};
use crate::guard::{Charge, ChargeGroup, Charges, KeyAndCost};
use crate::key::{self, Key, KeyPiece};
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
                let limiter = self.limiter();
                let limit = match &limiter {
                    Some(_) => {
                        quote_spanned!(hygienic()=> #rt::__private::On::new(__rate_limit_limiter, #limit))
                    }
                    None => limit,
                };
                let KeyAndCost { key, cost } = key_and_cost;
                let (check, key_tokens) = (self.check_function(function), self.key(key.as_ref()));
                let check = match (key, cost) {
                    // A cost may await, and what a format string borrows is not `Send`.
                    (Some(Key::Format(_)), Some(cost)) => {
                        let (limit_variable, cost_variable) = (variable("limit"), variable("cost"));
                        let cost = self.cost(Some(cost));
                        quote_spanned! {hygienic()=>
                            match (#limit, #cost) {
                                (#limit_variable, #cost_variable) => {
                                    #rt::__private::#check(#limit_variable, #key_tokens, #cost_variable)
                                }
                            }
                        }
                    }
                    (_, cost) => {
                        let cost = cost.as_ref().map_or_else(one_unit, ToTokens::to_token_stream);
                        quote_spanned!(hygienic()=> #rt::__private::#check(#limit, #key_tokens, #cost))
                    }
                };
                match limiter {
                    Some(given) => {
                        quote_spanned!(hygienic()=> match #given { __rate_limit_limiter => #check })
                    }
                    None => check,
                }
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
        let blocking = if self.function.is_synchronous() { "_blocking" } else { "" };
        Ident::new(&format!("{name}{blocking}"), hygienic())
    }

    pub(super) fn check_group(&self, group: &ChargeGroup, function: &str) -> TokenStream {
        let rt = &self.rt;
        let ChargeGroup { name, charges, shared, shared_after_call } = group;
        let (is_named, name) = (name.is_some(), self.name(name.as_ref()));
        // The values of the user's keys and costs, in their order. Format strings follow, because what they borrow is
        // not `Send`, and a cost may await.
        let mut values: Vec<(Ident, TokenStream)> = Vec::new();
        let (shared_key, shared_cost) = (variable("key"), variable("cost"));
        let shared_format = match &shared.key {
            Some(Key::Format(pieces)) => Some(format_key(rt, pieces)),
            key => {
                values.push((shared_key.clone(), self.key_of_group(key.as_ref())));
                None
            }
        };
        values.push((shared_cost.clone(), self.cost(shared.cost.as_ref())));
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
                let mut own_value = |name, value| {
                    let variable = variable(&format!("{name}_{number}"));
                    values.push((variable.clone(), value));
                    variable.into_token_stream()
                };
                let key = match key {
                    Some(Key::Format(pieces)) => format_key(rt, pieces),
                    Some(key) => own_value("key", self.key_of_group(Some(key))),
                    None => shared_key.to_token_stream(),
                };
                let cost = match cost {
                    Some(cost) => own_value("cost", self.cost(Some(cost))),
                    None => shared_cost.to_token_stream(),
                };
                if limit.varies() {
                    let variable = Ident::new(&format!("__rate_limit_limit_{number}"), hygienic());
                    call_limits.push((variable.clone(), self.call_limit(limit, false, &tokens)));
                    quote_spanned!(hygienic()=> #rt::__private::CallPart::of(&#variable, &#key, #cost))
                } else {
                    quote_spanned!(hygienic()=> #rt::__private::CallPart::constant(#tokens, &#key, #cost))
                }
            }).collect();
        let agree = self.agreement(charges);
        let check_all = self.check_function(&format!("{function}_all"));
        let limiter = self.limiter();
        let on = limiter.as_ref().map(|_| quote_spanned!(hygienic()=> .on(__rate_limit_limiter)));
        let mut check = quote_spanned! {hygienic()=>
            {
                let _ = (&#shared_key, #shared_cost);
                #rt::__private::#check_all(&#rt::__private::LimitGroup::new([#(#parts),*])#on)
            }
        };
        // A `match` keeps the temporaries of the keys alive while they are borrowed.
        if let Some(format) = shared_format {
            check = quote_spanned!(hygienic()=> match #format { #shared_key => #check });
        }
        let (variables, values): (Vec<_>, Vec<_>) = values.into_iter().unzip();
        check = quote_spanned!(hygienic()=> match (#(#values,)*) { (#(#variables,)*) => #check });
        if !call_limits.is_empty() {
            let (variables, limits): (Vec<_>, Vec<_>) = call_limits.into_iter().unzip();
            check = quote_spanned! {hygienic()=>
                match (#(#limits,)*) { (#(#variables,)*) => #check }
            };
        }
        if let Some(given) = limiter {
            check = quote_spanned!(hygienic()=> match #given { __rate_limit_limiter => #check });
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
            Some(Key::Expr(expr)) => self.borrow(expr).into_token_stream(),
            Some(Key::Format(pieces)) => format_key(rt, pieces),
        }
    }

    /// A reference to the value. For a tuple, a tuple of references: `&(a, b)` would move `a` and `b`.
    fn borrow(&self, expr: &Expr) -> Expr {
        let rt = &self.rt;
        let hashed = key::hashed(expr).and_then(|args| args.first());
        let value = match (hashed, unwrap_parens(expr)) {
            (Some(hashed), _) => {
                let limiter = if self.guard.limiter.is_some() {
                    quote_spanned!(hygienic()=> ::core::option::Option::Some(__rate_limit_limiter))
                } else {
                    quote_spanned!(hygienic()=> ::core::option::Option::None)
                };
                let key = self.borrow(hashed);
                let call = quote_spanned!(hygienic()=> #rt::__private::hashed(#limiter, #key));
                Expr::Verbatim(spanned_at(hashed, call))
            }
            (None, Expr::Tuple(tuple)) => {
                let elems = tuple.elems.pairs().map(|pair| {
                    let (elem, comma) = pair.into_tuple();
                    Pair::new(self.borrow(elem), comma.copied())
                });
                Expr::Tuple(ExprTuple { elems: elems.collect(), ..tuple.clone() })
            }
            (None, _) => expr.clone(),
        };
        Expr::Reference(ExprReference {
            attrs: Vec::new(),
            and_token: Token![&](hygienic().located_at(expr.span())),
            mutability: None,
            expr: Box::new(value),
        })
    }

    /// The key of an expression, for a variable. A value that is no key is an error at the expression.
    fn key_of_group(&self, key: Option<&Key>) -> TokenStream {
        let (rt, tokens) = (&self.rt, self.key(key));
        match key {
            Some(Key::Expr(expr)) => {
                spanned_at(expr, quote_spanned!(hygienic()=> #rt::__private::key(#tokens)))
            }
            _ => tokens,
        }
    }

    /// The cost, for a variable. A value of another type is an error at the expression.
    fn cost(&self, given: Option<&Expr>) -> TokenStream {
        let rt = &self.rt;
        given.map_or_else(one_unit, |cost| {
            spanned_at(cost, quote_spanned!(hygienic()=> #rt::__private::cost(#cost)))
        })
    }
}

/// A variable that the user cannot name.
pub(super) fn variable(name: &str) -> Ident {
    Ident::new(&format!("__rate_limit_{name}"), hygienic())
}

/// The cost of a call that sets none.
fn one_unit() -> TokenStream {
    quote_spanned!(hygienic()=> 1_u32)
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
