//! Writes the limited function: the check, then the untouched body.
//!
//! The check starts in one statement and is awaited in the next, unless it has admitted the call. The borrows of the
//! key end in between, so the attribute does not change whether the future is `Send`. Paths are absolute and
//! variables are hygienic, so the check and the body cannot see the names of each other. A pattern would see a constant
//! of the user in spite of hygiene, so all names that the expansion binds begin with `__rate_limit_`.

mod body;
mod check;
mod limit;

use proc_macro2::{Delimiter, Group, TokenStream};
use quote::{ToTokens, TokenStreamExt, quote, quote_spanned};
use syn::Lifetime;
use syn::token::Brace;

pub(crate) use self::check::format_key;
use crate::after_call::AfterCall;
use crate::function::{Body, Function};
use crate::guard::Guard;
use crate::spans::{hygienic, spanned_at};

struct Expansion<'a> {
    function: &'a Function,
    guard: &'a Guard,
    /// The arguments of the attribute, as written.
    arguments: &'a TokenStream,
    /// The path of the runtime.
    rt: TokenStream,
}

pub(crate) fn expand(function: &Function, guard: &Guard, arguments: &TokenStream) -> TokenStream {
    let default = || quote_spanned!(hygienic()=> ::ratelimit_runtime);
    let rt = guard.runtime.as_ref().map_or_else(default, ToTokens::to_token_stream);
    Expansion { function, guard, arguments, rt }.function()
}

impl Expansion<'_> {
    fn function(&self) -> TokenStream {
        let Function { attrs, vis, brace, inner_attrs, body, .. } = self.function;
        let sig = self.signature();
        let mut tokens = quote!(#(#attrs)* #vis #sig);
        brace.surround(&mut tokens, |tokens| {
            tokens.append_all(inner_attrs);
            tokens.append_all(match body {
                Body::Plain(body) => self.guarded(body, *brace),
                Body::Boxed(boxed) => boxed.rebuild(&self.guarded(&boxed.body, boxed.brace)),
            });
        });
        tokens
    }

    /// The check, then the body in a block of its own, which keeps its `use`s and items inside.
    fn guarded(&self, body: &TokenStream, brace: Brace) -> TokenStream {
        let function = self.function;
        // A block with two statements: lints ask the user to remove braces around a single expression.
        let body = quote_spanned!(hygienic()=> let () = (); #body);
        let mut block = Group::new(Delimiter::Brace, body);
        // The edition of its span decides when temporaries are dropped, so it is the span of the braces of the user.
        block.set_span(brace.span.join());
        let after_calls = self.guard.charges.after_calls();
        if !after_calls.iter().all(AfterCall::is_empty) {
            return self.ended(&after_calls, &block);
        }

        let patterns = self.patterns();
        let check = self.check("check");
        let (rejected, body) = (self.rejected(), self.body(&block));
        if function.is_synchronous() {
            return quote_spanned! {hygienic()=>
                {
                    let __rate_limit_decided = #check;
                    if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_decided {
                        return #rejected;
                    }
                }
                #body
            };
        }
        // The future then holds the pending check once (`tests/shapes/future_size.rs`).
        let decided = Lifetime::new("'decided", hygienic());
        quote_spanned! {hygienic()=>
            #patterns
            #decided: {
                let __rate_limit_pending = match #check {
                    ::core::option::Option::Some(__rate_limit_pending) => __rate_limit_pending,
                    ::core::option::Option::None => break #decided,
                };
                if let ::core::result::Result::Err(__rate_limit_rejection) = __rate_limit_pending.await {
                    return #rejected;
                }
            }
            #body
        }
    }

    /// The value that a rejected call returns instead of running the body.
    fn rejected(&self) -> TokenStream {
        let rt = &self.rt;
        if let Some(on_limited) = &self.guard.on_limited {
            let call = quote_spanned! {hygienic()=>
                #rt::__private::reject_with(__rate_limit_rejection, #on_limited)
            };
            return spanned_at(on_limited, call);
        }
        if self.wraps_output() {
            return quote_spanned!(hygienic()=> ::core::result::Result::Err(__rate_limit_rejection));
        }
        // A return type that cannot carry a rejection is an error, which points at that type.
        let call = quote_spanned!(hygienic()=> #rt::__private::reject(__rate_limit_rejection));
        match self.function.output() {
            Some(output) => spanned_at(output, call),
            None => spanned_at(&self.function.sig.ident, call),
        }
    }
}
