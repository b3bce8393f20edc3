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
use quote::{ToTokens, TokenStreamExt, quote};
use syn::Lifetime;
use syn::token::Brace;

pub(crate) use self::check::format_key;
use crate::after_call::AfterCall;
use crate::function::{Body, Function};
use crate::guard::Guard;
use crate::spans::{hygienic, hygienic_span, spanned_at};

struct Expansion<'a> {
    function: &'a Function,
    guard: &'a Guard,
    /// The arguments of the attribute, as written.
    arguments: &'a TokenStream,
    /// The path of the runtime.
    rt: TokenStream,
}

pub(crate) fn expand(function: &Function, guard: &Guard, arguments: &TokenStream) -> TokenStream {
    let default = || hygienic!(::ratelimit_runtime);
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
        let body = hygienic!(let () = (); #body);
        let mut block = Group::new(Delimiter::Brace, body);
        // The edition of its span decides when temporaries are dropped, so it is the span of the braces of the user.
        block.set_span(brace.span.join());
        if !self.after_calls().all(AfterCall::is_empty) {
            return self.ended(&block);
        }

        let patterns = self.patterns();
        let check = self.check("check");
        let (rejected, body) = (self.rejected(), self.body(&block));
        if function.is_synchronous() {
            return hygienic! {
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
        let decided = Lifetime::new("'decided", hygienic_span());
        hygienic! {
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

    /// What happens after the call to each charge.
    fn after_calls(&self) -> impl Iterator<Item = &AfterCall> + Clone {
        self.guard.charges.iter().map(|charge| &charge.after_call)
    }

    /// The value that a rejected call returns instead of running the body.
    fn rejected(&self) -> TokenStream {
        let rt = &self.rt;
        if let Some(on_limited) = &self.guard.on_limited {
            let call = hygienic!(#rt::__private::reject_with(__rate_limit_rejection, #on_limited));
            return spanned_at(on_limited, call);
        }
        if self.wraps_output() {
            return hygienic!(::core::result::Result::Err(__rate_limit_rejection));
        }
        // A return type that cannot carry a rejection is an error, which points at that type.
        let call = hygienic!(#rt::__private::reject(__rate_limit_rejection));
        match self.function.output() {
            Some(output) => spanned_at(output, call),
            None => spanned_at(&self.function.sig.ident, call),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Every name that an expansion binds begins with `__rate_limit_`: a pattern would see an item of the user in spite
    //! of hygiene. In these functions, every name of the user begins with `user`, so any other name is one of the
    //! expansion.

    use proc_macro2::{TokenStream, TokenTree};

    /// Attributes and functions that together have every argument.
    const FUNCTIONS: [(&str, &str); 8] = [
        (
            r#"period = 60, threshold = 2, key = "{user_id}:{user_name:?}", cost = user_cost(user_id),
               limiter = user_limiter, on_limited = |user_rejection| user_answer(user_rejection)"#,
            "async fn user_function(user_id: UserId, user_name: UserName) -> UserOutput { user_body() }",
        ),
        (
            r#"period = 60, threshold = user_plan.threshold, burst = user_plan.burst,
               algo = "token_bucket", lease = 2"#,
            "async fn user_function(user_plan: UserPlan) -> UserOutput { user_body() }",
        ),
        (
            r#"limit(limit = USER_LIMIT, threshold = user_plan, settle = user_used),
               limit(period = 60, threshold = 2, block = user_blocked, block_at_most = "1m"),
               limit(period = 90, threshold = 2, cost = 2, key = (user_id, 1), permit = user_permit),
               limit(in_flight = user_plan, hold = "30s"), key = user_id, cost = 1, limiter = user_limiter"#,
            "async fn user_function(_: UserId, (user_id, _): UserPair, mut user_plan: UserPlan) -> UserOutput {
                 user_body()
             }",
        ),
        (
            r#"period = 60, threshold = 2, permit = user_permit, block = user_blocked, scope = "process""#,
            "fn user_function(self, _: UserId) -> UserOutput { user_body() }",
        ),
        (r#"in_flight = 2, scope = "process""#, "async fn user_function(self, _: UserId) { user_body() }"),
        (
            r#"period = 60, threshold = 2, scope = "process""#,
            "fn user_function(_: UserId) -> impl UserTrait { user() }",
        ),
        ("period = 60, threshold = 2", "async fn user_function(_: UserId) -> impl UserTrait { user_body() }"),
        (
            r#"in_flight = 2, hold = "30s""#,
            "fn user_function(__arg0: UserId) -> UserPin<UserBox<dyn UserFuture<Output = UserOutput>>> {
                 user::pin(async move { let UserId(user_number) = { let __arg0 = __arg0; __arg0 }; user_body() })
             }",
        ),
    ];

    /// The words of the language that the expansions contain.
    const KEYWORDS: [&str; 21] = [
        "async", "await", "break", "const", "dyn", "false", "fn", "if", "impl", "let", "loop",
        "match", "move", "mut", "return", "self", "static", "Output", "_", "__arg0", "true",
    ];

    /// Collects the names in tokens that are no path, no method, no macro and no attribute.
    fn names(tokens: TokenStream, found: &mut Vec<String>) {
        let trees: Vec<_> = tokens.into_iter().collect();
        let is = |at: Option<usize>, punct: char| {
            let tree = at.and_then(|at| trees.get(at));
            matches!(tree, Some(TokenTree::Punct(it)) if it.as_char() == punct)
        };
        for (at, tree) in trees.iter().enumerate() {
            let before = at.checked_sub(1);
            match tree {
                TokenTree::Group(_) if is(before, '#') => {}
                TokenTree::Group(group) => names(group.stream(), found),
                TokenTree::Ident(word) => {
                    let is_in_a_path = is(before, ':') && is(at.checked_sub(2), ':')
                        || is(Some(at + 1), ':') && is(Some(at + 2), ':');
                    let is_a_method = is(before, '.') && !is(at.checked_sub(2), '.');
                    let is_a_label = is(before, '\'');
                    if !is_in_a_path && !is_a_method && !is_a_label {
                        found.push(word.to_string());
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    #[test]
    fn expansions_bind_names_that_no_item_has() {
        let is_own = |name: &str| name.to_lowercase().starts_with("__rate_limit_");
        let mut own = 0;
        let key =
            crate::key_macro::expand_key(r#"[user_runtime] "{user_id}""#.parse().expect("tokens"));
        let functions = FUNCTIONS.map(|(arguments, function)| {
            let (arguments, function) =
                (arguments.parse().expect("tokens"), function.parse().expect("tokens"));
            crate::rewrite::rewrite(&arguments, &function)
        });
        for expansion in functions.into_iter().chain([key]) {
            let text = expansion.to_string();
            assert!(!text.contains("compile_error"), "{text}");
            let mut found = Vec::new();
            names(expansion, &mut found);
            for name in found {
                let is_of_user = name.to_lowercase().starts_with("user");
                assert!(
                    is_own(&name) || is_of_user || KEYWORDS.contains(&&*name),
                    "`{name}` in {text}"
                );
                own += usize::from(is_own(&name));
            }
        }
        assert!(own > 50, "only {own} names");
    }
}
