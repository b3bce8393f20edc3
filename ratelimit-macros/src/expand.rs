//! Writes the guarded function.
//!
//! The guard asks in one statement and awaits in the next, so that nothing borrowed for the key is
//! held across the await and the future is as `Send` as it was. Whatever it names has a full path,
//! and its variables are hygienic, so guard and body cannot see each other.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream};
use quote::{ToTokens, TokenStreamExt, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::punctuated::Pair;
use syn::spanned::Spanned;
use syn::{Expr, ExprReference, ExprTuple, LitStr, Token};

use crate::function::{Body, Function};
use crate::guard::{Guard, Rule, Rules, Several};
use crate::key::{Key, Piece};
use crate::limit::{Algorithm, Limit, Offset};
use crate::policy::Policy;
use crate::values::{Constant, peel};

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
        let Function { attrs, vis, sig, brace, inner_attrs, body } = self.function;
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

    /// The guard, and the body in a block of its own: its `use`s and items stay inside.
    fn guarded(&self, body: &TokenStream) -> TokenStream {
        let Expansion { function, rt, .. } = self;
        let check = self.check();
        let refused = self.refused();

        let mut block = Group::new(Delimiter::Brace, body.clone());
        // Hygienic braces, or lints would ask the user to remove ours.
        block.set_span(hygienic().located_at(function.brace.span.join()));

        let body = if self.wraps_output() {
            quote_spanned! {hygienic()=>
                // A block of its own, because a `return` in the body is not wrapped yet.
                let output = async move #block.await;
                ::core::result::Result::<_, #rt::Rejection>::Ok(output)
            }
        } else {
            block.into_token_stream()
        };
        quote_spanned! {hygienic()=>
            {
                let pending = #check;
                if let ::core::result::Result::Err(rejection) = pending.await {
                    return #refused;
                }
            }
            #body
        }
    }

    /// Begins the check; its value is the future of the answer.
    fn check(&self) -> TokenStream {
        let rt = &self.rt;
        match &self.guard.rules {
            Rules::One(rule) => {
                let Rule { limit, charge } = &**rule;
                let tokens = self.limit(limit, &self.name(limit.name.as_ref()));
                let limit = placed(rt, &tokens, limit, limit.name.is_none());
                let (key, cost) = (self.key(charge.key.as_ref()), cost(charge.cost.as_ref()));
                quote_spanned!(hygienic()=> #rt::__private::check(#limit, #key, #cost))
            }
            Rules::Several(several) => self.check_several(several),
        }
    }

    fn check_several(&self, several: &Several) -> TokenStream {
        let rt = &self.rt;
        let Several { name, rules, default } = several;
        let (is_named, name) = (name.is_some(), self.name(name.as_ref()));
        let variable = |name| Ident::new(name, hygienic()).into_token_stream();
        let parts = rules.iter().zip(1_usize..).map(|(Rule { limit, charge }, number)| {
            let number = format!("#{number}");
            let own_name = limit.name.as_ref().map_or_else(
                || quote_spanned!(hygienic()=> ::core::concat!(#name, #number)),
                ToTokens::to_token_stream,
            );
            let is_default = limit.name.is_none() && !is_named;
            let limit = placed(rt, &self.limit(limit, &own_name), limit, is_default);
            let key =
                charge.key.as_ref().map_or_else(|| variable("key"), |key| self.key(Some(key)));
            let cost =
                charge.cost.as_ref().map_or_else(|| variable("cost"), ToTokens::to_token_stream);
            quote_spanned!(hygienic()=> #rt::__private::Charge::unsync(#limit, &#key, #cost))
        });
        let (key, cost) = (self.key(default.key.as_ref()), cost(default.cost.as_ref()));
        // What several limits share is evaluated once. A `match` keeps the temporaries of the key
        // for as long as they are borrowed.
        quote_spanned! {hygienic()=>
            match (#key, #cost) {
                (key, cost) => {
                    let _ = (&key, cost);
                    #rt::__private::check_all(&[#(#parts),*])
                }
            }
        }
    }

    /// `impl Trait` hides a type that cannot say how it is refused: `Result` speaks for it.
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

    /// The name that was given, or the path of the function.
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
        let Limit { algorithm, threshold, period, burst, align, lease, .. } = limit;
        let constructor = Ident::new(algorithm.name(), hygienic());
        let threshold = &threshold.expr;
        let period_tokens = self.duration(period);

        let mut tokens = limit.shown_at_constant(quote_spanned! {hygienic()=>
            #rt::Limit::#constructor(#name, #threshold, #period_tokens)
        });
        if let Some(Constant { expr, .. }) = burst {
            let call = quote_spanned!(hygienic()=> #rt::Limit::burst(#tokens, #expr));
            tokens = shown_at(expr, call);
        }
        if let Some(Offset { minutes }) = align {
            tokens = limit.shown_at_constant(quote_spanned! {hygienic()=>
                #rt::Limit::align(#tokens, #rt::Align::offset_minutes(#minutes))
            });
        }
        if let Some(Constant { expr, .. }) = lease {
            let call = quote_spanned!(hygienic()=> #rt::Limit::lease(#tokens, #expr));
            tokens = shown_at(expr, call);
        }
        let Policy { scope, on_error, shadow, wait } = &self.guard.policy;
        let variant = |name: &str| Ident::new(name, hygienic());
        if let Some(scope) = scope.map(variant) {
            tokens = quote_spanned!(hygienic()=> #rt::Limit::scope(#tokens, #rt::Scope::#scope));
        }
        if let Some(policy) = on_error.map(variant) {
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
            Some(Key::Format(pieces)) => {
                let pieces = pieces.iter().map(|piece| match piece {
                    Piece::Text(text) => {
                        quote_spanned!(hygienic()=> #rt::__private::Piece::Text(#text))
                    }
                    Piece::Hole { spec, root, fields } => quote_spanned! {hygienic()=>
                        #rt::__private::Piece::Arg(
                            ::core::format_args!(#spec, #root #(.#fields)*)
                        )
                    },
                });
                quote_spanned!(hygienic()=> #rt::__private::Format(&[#(#pieces),*]))
            }
        }
    }

    /// What is returned instead of running the body.
    fn refused(&self) -> TokenStream {
        let rt = &self.rt;
        if let Some(on_limited) = &self.guard.on_limited {
            let call = quote_spanned! {hygienic()=>
                #rt::__private::refuse_with(rejection, #on_limited)
            };
            return shown_at(on_limited, call);
        }
        if self.wraps_output() {
            return quote_spanned!(hygienic()=> ::core::result::Result::Err(rejection));
        }
        // A return type that cannot say "refused" is the user's to change.
        let call = quote_spanned!(hygienic()=> #rt::__private::refuse(rejection));
        match self.function.output() {
            Some(output) => shown_at(output, call),
            None => shown_at(&self.function.sig.ident, call),
        }
    }
}

impl Limit {
    /// A constant behind a path is checked by the call it is given to, so that call has to point at
    /// it.
    fn shown_at_constant(&self, call: TokenStream) -> TokenStream {
        let Limit { threshold, period, .. } = self;
        match (threshold.known, period.known) {
            (None, Some(_)) => shown_at(&threshold.expr, call),
            (Some(_), None) => shown_at(&period.expr, call),
            _ => call,
        }
    }
}

/// The limit as a constant. It also registers where it is, if it has the default name, which two
/// functions may share by mistake, or an align, which two functions of one name may disagree on.
fn placed(
    rt: &TokenStream,
    tokens: &TokenStream,
    limit: &Limit,
    has_default_name: bool,
) -> TokenStream {
    let site = match limit.algorithm {
        _ if has_default_name => "new",
        Algorithm::Fixed => "named",
        _ => return quote_spanned!(hygienic()=> const { &#tokens }),
    };
    let site = Ident::new(site, hygienic());
    // The limit comes first: an item is visible in all of its block.
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

/// A reference to the value; to each element of a tuple, so that none is moved into a new tuple.
fn borrow(expr: &Expr) -> Expr {
    let expr = match peel(expr) {
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

/// Shown at the attribute; variables are invisible to the user's code, and theirs to ours.
fn hygienic() -> Span {
    Span::mixed_site()
}

/// The same call, shown in errors from the first to the last token of `place`.
fn shown_at(place: &impl ToTokens, call: TokenStream) -> TokenStream {
    let mut place = place.to_token_stream().into_iter();
    let Some(first) = place.next() else {
        return call;
    };
    let last = place.last().map_or(first.span(), |last| last.span());
    let mut call: Vec<_> = call.into_iter().collect();
    if let Some((arguments, path)) = call.split_last_mut() {
        for tree in path {
            tree.set_span(tree.span().located_at(first.span()));
        }
        arguments.set_span(arguments.span().located_at(last));
    }
    call.into_iter().collect()
}
