//! Writes the limited function: the check, then the untouched body.
//!
//! The check starts in one statement and is awaited in the next. The borrows of the key end in
//! between, so the attribute does not change whether the future is `Send`. Paths are absolute and
//! variables are hygienic, so the check and the body cannot see the names of each other.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use quote::{ToTokens, TokenStreamExt, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::punctuated::Pair;
use syn::spanned::Spanned;
use syn::{Expr, ExprReference, ExprTuple, FnArg, LitStr, Pat, Signature, Token, parse_quote};

use crate::correction::Correction;
use crate::function::{Body, Function};
use crate::guard::{Charge, ChargeGroup, Charges, Guard, KeyAndCost};
use crate::key::{Key, KeyPiece};
use crate::limit::Limit;
use crate::limit_source::{LimitConstant, LimitSource};
use crate::offset::Offset;
use crate::policy::Policy;
use crate::spans::{hygienic, spanned_at};
use crate::values::{Constant, unwrap_parens};
use crate::words::Word;

struct Expansion<'a> {
    function: &'a Function,
    guard: &'a Guard,
    /// The path of the runtime.
    rt: TokenStream,
}

pub(crate) fn expand(function: &Function, guard: &Guard) -> TokenStream {
    let default = || quote_spanned!(hygienic()=> ::ratelimit_runtime);
    let rt = guard.runtime.as_ref().map_or_else(default, ToTokens::to_token_stream);
    Expansion { function, guard, rt }.function()
}

impl Expansion<'_> {
    fn function(&self) -> TokenStream {
        let Function { attrs, vis, brace, inner_attrs, body, .. } = self.function;
        let sig = self.signature();
        let mut tokens = quote!(#(#attrs)* #vis #sig);
        brace.surround(&mut tokens, |tokens| {
            tokens.append_all(inner_attrs);
            tokens.append_all(match body {
                Body::Plain(body) => self.guarded(body),
                Body::Boxed(boxed) => boxed.rebuild(&self.guarded(&boxed.body)),
            });
        });
        tokens
    }

    /// The check, then the body in a block of its own, which keeps its `use`s and items inside.
    fn guarded(&self, body: &TokenStream) -> TokenStream {
        let function = self.function;
        let mut block = Group::new(Delimiter::Brace, body.clone());
        // The span is hygienic: otherwise lints would ask the user to remove these braces.
        block.set_span(hygienic().located_at(function.brace.span.join()));
        let result = if function.is_synchronous() {
            quote_spanned!(hygienic()=> pending)
        } else {
            quote_spanned!(hygienic()=> pending.await)
        };
        let corrections = self.guard.charges.corrections();
        if corrections.iter().any(Option::is_some) {
            return self.corrected(&corrections, &block, &result);
        }

        let check = self.check("check");
        let (rejected, body) = (self.rejected(), self.body(&block));
        quote_spanned! {hygienic()=>
            {
                let pending = #check;
                if let ::core::result::Result::Err(rejection) = #result {
                    return #rejected;
                }
            }
            #body
        }
    }

    /// The body, whose value the function returns.
    fn body(&self, block: &Group) -> TokenStream {
        if !self.wraps_output() {
            return block.into_token_stream();
        }
        let (rt, output) = (&self.rt, self.output_of(block));
        quote_spanned! {hygienic()=>
            let output = #output;
            ::core::result::Result::<_, #rt::Rejection>::Ok(output)
        }
    }

    /// The value of the body, in a block of its own. A `return` in the body ends the block and not the function.
    fn output_of(&self, block: &Group) -> TokenStream {
        if self.function.is_synchronous() {
            quote_spanned!(hygienic()=> (move || #block)())
        } else {
            quote_spanned!(hygienic()=> async move #block.await)
        }
    }

    /// Whether a correction looks at the return value. The block of the body then owns all parameters.
    fn sees_result(&self) -> bool {
        let mut corrections = self.guard.charges.corrections().into_iter().flatten();
        corrections.any(Correction::sees_result) && matches!(self.function.body, Body::Plain(_))
    }

    /// The signature. If the block of the body owns all parameters, each has a name.
    fn signature(&self) -> Signature {
        let mut sig = self.function.sig.clone();
        for (index, input) in sig.inputs.iter_mut().enumerate().filter(|_| self.sees_result()) {
            if let FnArg::Typed(typed) = input
                && matches!(*typed.pat, Pat::Wild(_))
            {
                let name = unnamed(index);
                *typed.pat = parse_quote!(#name);
            }
        }
        sig
    }

    /// The value of the body, whose type is known to the body, as in the function: a `?` converts to it, and a value
    /// coerces to it.
    fn known_output(&self, block: &Group) -> TokenStream {
        let (rt, owning) = (&self.rt, self.owning(block));
        let ty = self.function.output().filter(|ty| !hides_a_type(ty.to_token_stream()));
        if self.function.is_synchronous() {
            let untyped = || quote_spanned!(hygienic()=> move || #owning);
            let typed = |ty| quote_spanned!(hygienic()=> move || -> #ty { #owning });
            let body = ty.map_or_else(untyped, typed);
            return quote_spanned!(hygienic()=> #rt::__private::call_once(#body));
        }
        // The block returns a value of the type here, so its other values coerce to the type.
        let returned = ty.map(|ty| {
            quote_spanned! {hygienic()=>
                #[allow(unreachable_code, clippy::all, clippy::pedantic)]
                if false {
                    let unreached: #ty = loop {};
                    return unreached;
                }
            }
        });
        quote_spanned!(hygienic()=> async move { #returned #owning }.await)
    }

    /// The block of the body, which owns all parameters: it drops them as the function would.
    fn owning(&self, block: &Group) -> Group {
        if !self.sees_result() {
            return block.clone();
        }
        // A block drops what it owns in the order in which it names it.
        let owned = self.function.parameters().into_iter().rev().map(|(index, name)| {
            let name = name.unwrap_or_else(|| unnamed(index));
            let conditions = self.function.conditions(index);
            quote_spanned!(hygienic()=> #(#conditions)* let _ = &#name;)
        });
        let tokens = quote_spanned!(hygienic()=> #(#owned)* #block);
        let mut owning = Group::new(Delimiter::Brace, tokens);
        owning.set_span(hygienic());
        owning
    }

    /// The check, the body, and the correction of each charge. Without one that looks at the return value, the body
    /// stays a block.
    fn corrected(
        &self,
        corrections: &[Option<&Correction>],
        block: &Group,
        result: &TokenStream,
    ) -> TokenStream {
        let rt = &self.rt;
        let acquire = self.check("acquire");
        let rejected = self.rejected();
        let permit = |index| Ident::new(&format!("permit_{index}"), hygienic());
        let patterns = corrections.iter().enumerate().map(|(index, correction)| {
            let nothing = || quote_spanned!(hygienic()=> _);
            correction.map_or_else(nothing, |_| permit(index).into_token_stream())
        });
        let each = || {
            let all = corrections.iter().enumerate();
            all.filter_map(|(index, correction)| Some((permit(index), (*correction)?)))
        };
        let by_hand = each().filter_map(|(permit, correction)| match correction {
            Correction::Permit(name) => Some(quote_spanned!(hygienic()=> let #name = #permit;)),
            Correction::Settle(_) | Correction::CountIf(_) => None,
        });
        let by_result = each().filter_map(|(permit, correction)| {
            let (call, function) = match correction {
                Correction::Settle(function) => ("settle", function),
                Correction::CountIf(function) => ("count_if", function),
                Correction::Permit(_) => return None,
            };
            let call = Ident::new(call, hygienic());
            let call =
                quote_spanned!(hygienic()=> #rt::__private::#call(#permit, &output, #function));
            Some(spanned_at(function, call))
        });
        let body = if each().any(|(_, correction)| correction.sees_result()) {
            let output = self.known_output(block);
            quote_spanned! {hygienic()=>
                let output = #output;
                #(#by_result;)*
                output
            }
        } else {
            self.body(block)
        };
        quote_spanned! {hygienic()=>
            let [#(#patterns),*] = {
                let pending = #acquire;
                match #result {
                    ::core::result::Result::Ok(permits) => permits,
                    ::core::result::Result::Err(rejection) => return #rejected,
                }
            };
            #(#by_hand)*
            #body
        }
    }

    /// The expression that starts the check. Its value is the future of the decision, or of the permits for `acquire`.
    fn check(&self, function: &str) -> TokenStream {
        let rt = &self.rt;
        match &self.guard.charges {
            Charges::One(charge) => {
                let Charge { limit, key_and_cost, correction } = &**charge;
                let limit = match limit {
                    LimitSource::Constant(constant) => self.constant(constant, correction.as_ref()),
                    LimitSource::Arguments(limit) => {
                        let tokens = self.limit(limit, &self.name(limit.name.as_ref()));
                        registered(rt, &tokens, limit, limit.name.is_none())
                    }
                };
                let key = self.key(key_and_cost.key.as_ref());
                let cost = cost(key_and_cost.cost.as_ref());
                let check = self.check_function(function);
                quote_spanned!(hygienic()=> #rt::__private::#check(#limit, #key, #cost))
            }
            Charges::Several(group) => self.check_group(group, function),
        }
    }

    /// The function of the runtime, for a function that is async or not.
    fn check_function(&self, name: &str) -> Ident {
        let now = if self.function.is_synchronous() { "_now" } else { "" };
        Ident::new(&format!("{name}{now}"), hygienic())
    }

    fn check_group(&self, group: &ChargeGroup, function: &str) -> TokenStream {
        let rt = &self.rt;
        let ChargeGroup { name, charges, shared, shared_correction } = group;
        let (is_named, name) = (name.is_some(), self.name(name.as_ref()));
        let variable = |name| Ident::new(name, hygienic()).into_token_stream();
        let parts =
            charges.iter().zip(1_usize..).map(|(Charge { limit, key_and_cost, correction }, number)| {
                let correction = correction.as_ref().or(shared_correction.as_ref());
                let limit = match limit {
                    LimitSource::Constant(constant) => self.constant(constant, correction),
                    LimitSource::Arguments(limit) => {
                        let number = format!("#{number}");
                        let own_name = limit.name.as_ref().map_or_else(
                            || quote_spanned!(hygienic()=> ::core::concat!(#name, #number)),
                            ToTokens::to_token_stream,
                        );
                        let is_default = limit.name.is_none() && !is_named;
                        registered(rt, &self.limit(limit, &own_name), limit, is_default)
                    }
                };
                let KeyAndCost { key, cost } = key_and_cost;
                let key = key.as_ref().map_or_else(|| variable("key"), |key| self.key(Some(key)));
                let cost =
                    cost.as_ref().map_or_else(|| variable("cost"), ToTokens::to_token_stream);
                quote_spanned!(hygienic()=> #rt::__private::UnsyncPart::unsync(#limit, &#key, #cost))
            });
        let agree = self.agreement(charges);
        let (key, cost) = (self.key(shared.key.as_ref()), cost(shared.cost.as_ref()));
        // The shared key and cost are evaluated once. The `match` keeps the temporaries of the key
        // alive while they are borrowed.
        let check_all = self.check_function(&format!("{function}_all"));
        let check = quote_spanned! {hygienic()=>
            match (#key, #cost) {
                (key, cost) => {
                    let _ = (&key, cost);
                    #rt::__private::#check_all(&[#(#parts),*])
                }
            }
        };
        match agree {
            Some(agree) => quote_spanned!(hygienic()=> { #agree #check }),
            None => check,
        }
    }

    /// The limits of a group have one policy. The attribute sets it, but a constant can have its own.
    fn agreement(&self, charges: &[Charge]) -> Option<TokenStream> {
        let rt = &self.rt;
        let limits = charges.iter().map(|charge| match &charge.limit {
            LimitSource::Constant(constant) => Ok(self.constant(constant, None)),
            LimitSource::Arguments(limit) => Err(limit),
        });
        let limits: Vec<_> = limits.collect();
        let constant = limits.iter().position(Result::is_ok)?;
        let LimitSource::Constant(LimitConstant { path }) = &charges[constant].limit else {
            return None;
        };
        let name = LitStr::new("limit", hygienic()).into_token_stream();
        let limits = limits.into_iter().map(|limit| match limit {
            Ok(constant) => constant,
            Err(limit) => {
                let limit = self.limit(limit, &name);
                quote_spanned!(hygienic()=> &#limit)
            }
        });
        let call = spanned_at(
            path,
            quote_spanned!(hygienic()=> #rt::__private::decided_together(&[#(#limits),*])),
        );
        Some(quote_spanned!(hygienic()=> const { #call };))
    }

    /// Whether the body's value is wrapped in a `Result`: `impl Trait` hides its type, so a rejection
    /// cannot be converted to it.
    fn wraps_output(&self) -> bool {
        self.guard.on_limited.is_none() && self.function.returns_impl_trait()
    }

    fn duration(&self, duration: &Constant<u64>) -> TokenStream {
        let rt = &self.rt;
        duration.known.map_or_else(
            || duration.expr.to_token_stream(),
            |us| quote_spanned!(hygienic()=> #rt::__private::micros(#us)),
        )
    }

    /// The given name, or the path of the function.
    fn name(&self, given: Option<&LitStr>) -> TokenStream {
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

    fn limit(&self, limit: &Limit, name: &TokenStream) -> TokenStream {
        let rt = &self.rt;
        let Limit { name: _, algorithm, threshold, period, burst, align, lease } = limit;
        let constructor = Ident::new(algorithm.as_str(), hygienic());
        let threshold = &threshold.expr;
        let period_tokens = self.duration(period);

        let mut tokens = limit.spanned_at_constant(quote_spanned! {hygienic()=>
            #rt::Limit::#constructor(#name, #threshold, #period_tokens)
        });
        if let Some(Constant { expr, .. }) = burst {
            let call = quote_spanned!(hygienic()=> #rt::Limit::burst(#tokens, #expr));
            tokens = spanned_at(expr, call);
        }
        if let Some(Offset { minutes }) = align {
            tokens = limit.spanned_at_constant(quote_spanned! {hygienic()=>
                #rt::Limit::align(#tokens, #rt::Align::offset_minutes(#minutes))
            });
        }
        if let Some(Constant { expr, .. }) = lease {
            let call = quote_spanned!(hygienic()=> #rt::Limit::lease(#tokens, #expr));
            tokens = spanned_at(expr, call);
        }
        self.with_policy(tokens)
    }

    /// The limit of a constant, with the policy of the attribute.
    fn constant(
        &self,
        LimitConstant { path }: &LimitConstant,
        correction: Option<&Correction>,
    ) -> TokenStream {
        let rt = &self.rt;
        let mut limit = quote_spanned!(hygienic()=> #rt::__private::limit(#path));
        if correction.is_some() {
            let unleased = quote_spanned!(hygienic()=> #rt::__private::unleased(#limit));
            limit = spanned_at(path, unleased);
        }
        let limit = self.with_policy(limit);
        quote_spanned!(hygienic()=> const { &#limit })
    }

    fn with_policy(&self, mut tokens: TokenStream) -> TokenStream {
        let rt = &self.rt;
        let Policy { scope, on_error, shadow, wait } = &self.guard.policy;
        let variant = |name: &str| Ident::new(name, hygienic());
        if let Some(scope) = scope {
            let scope = variant(scope.variant());
            tokens = quote_spanned!(hygienic()=> #rt::Limit::scope(#tokens, #rt::Scope::#scope));
        }
        if let Some(on_error) = on_error {
            let policy = variant(on_error.variant());
            tokens =
                quote_spanned!(hygienic()=> #rt::Limit::on_error(#tokens, #rt::OnError::#policy));
        }
        if let Some(wait) = wait {
            let wait = self.duration(wait);
            tokens = quote_spanned!(hygienic()=> #rt::Limit::wait(#tokens, #wait));
        }
        if let Some(shadow) = shadow {
            tokens = quote_spanned!(hygienic()=> #rt::Limit::shadow(#tokens, #shadow));
        }
        tokens
    }

    fn key(&self, key: Option<&Key>) -> TokenStream {
        let rt = &self.rt;
        match key {
            None => quote_spanned!(hygienic()=> ()),
            Some(Key::Expr(expr)) => borrow(expr).into_token_stream(),
            Some(Key::Format(pieces)) => format_key(rt, pieces),
        }
    }

    /// The value that a rejected call returns instead of running the body.
    fn rejected(&self) -> TokenStream {
        let rt = &self.rt;
        if let Some(on_limited) = &self.guard.on_limited {
            let call = quote_spanned! {hygienic()=>
                #rt::__private::reject_with(rejection, #on_limited)
            };
            return spanned_at(on_limited, call);
        }
        if self.wraps_output() {
            return quote_spanned!(hygienic()=> ::core::result::Result::Err(rejection));
        }
        // A return type that cannot carry a rejection is an error, which points at that type.
        let call = quote_spanned!(hygienic()=> #rt::__private::reject(rejection));
        match self.function.output() {
            Some(output) => spanned_at(output, call),
            None => spanned_at(&self.function.sig.ident, call),
        }
    }
}

impl Limit {
    /// The same call. The compiler evaluates a constant behind a path in this call, and its error
    /// points at the call, so the call gets the span of the constant.
    fn spanned_at_constant(&self, call: TokenStream) -> TokenStream {
        let Limit { threshold, period, .. } = self;
        match (threshold.known, period.known) {
            (None, Some(_)) => spanned_at(&threshold.expr, call),
            (Some(_), None) => spanned_at(&period.expr, call),
            _ => call,
        }
    }
}

/// The name of a parameter that has none.
fn unnamed(index: usize) -> Ident {
    Ident::new(&format!("_parameter_{index}"), hygienic())
}

/// Whether a type contains `impl Trait`, which cannot be written in a body.
fn hides_a_type(ty: TokenStream) -> bool {
    ty.into_iter().any(|tree| match tree {
        TokenTree::Ident(word) => word == "impl",
        TokenTree::Group(group) => hides_a_type(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// The key of a format string. It borrows the values.
pub(crate) fn format_key(rt: &TokenStream, pieces: &[KeyPiece]) -> TokenStream {
    let pieces = pieces.iter().map(|piece| match piece {
        KeyPiece::Text(text) => {
            quote_spanned!(hygienic()=> #rt::__private::Piece::Text(#text))
        }
        KeyPiece::Argument { spec, root, fields } => quote_spanned! {hygienic()=>
            #rt::__private::Piece::Arg(::core::format_args!(#spec, #root #(.#fields)*))
        },
    });
    quote_spanned!(hygienic()=> #rt::__private::Format(&[#(#pieces),*]))
}

/// The limit as a constant. It also registers its source location if it has the default name, which
/// two functions can share by mistake, or can have an align, which can differ between two functions
/// of one name.
fn registered(
    rt: &TokenStream,
    tokens: &TokenStream,
    limit: &Limit,
    has_default_name: bool,
) -> TokenStream {
    let site = if has_default_name {
        "new"
    } else if limit.algorithm.has_align() {
        "named"
    } else {
        return quote_spanned!(hygienic()=> const { &#tokens });
    };
    let site = Ident::new(site, hygienic());
    // The limit is outside the block of `SITE`, because the user's constant may be called `SITE`.
    quote_spanned! {hygienic()=>
        match const { &#tokens } {
            limit => {
                static SITE: #rt::__private::Site = #rt::__private::Site::#site(::core::concat!(
                    ::core::file!(), ":", ::core::line!(), ":", ::core::column!()
                ));
                SITE.visit(limit)
            }
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
