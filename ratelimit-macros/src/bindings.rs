//! Every name that an expansion binds begins with `__rate_limit_`: a pattern would see an item of the user in spite of
//! hygiene. In these functions, every name of the user begins with `user`, so any other name is one of the expansion.

use proc_macro2::{TokenStream, TokenTree};

/// Attributes and functions that together have every argument.
const FUNCTIONS: [(&str, &str); 8] = [
    (
        r#"period = 60, threshold = 2, key = "{user_id}:{user_name:?}", cost = user_cost(user_id),
           limiter = user_limiter, on_limited = |user_rejection| user_answer(user_rejection)"#,
        "async fn user_function(user_id: UserId, user_name: UserName) -> UserOutput { user_body() }",
    ),
    (
        r#"period = 60, threshold = user_plan.threshold, burst = user_plan.burst, algo = "token_bucket", lease = 2"#,
        "async fn user_function(user_plan: UserPlan) -> UserOutput { user_body() }",
    ),
    (
        r#"limit(limit = USER_LIMIT, threshold = user_plan, settle = user_used),
           limit(period = 60, threshold = 2, close = user_closed, close_at_most = "1m"),
           limit(period = 90, threshold = 2, cost = 2, key = (user_id, 1), permit = user_permit),
           limit(in_flight = user_plan, hold = "30s"), key = user_id, cost = 1, limiter = user_limiter"#,
        "async fn user_function(_: UserId, (user_id, _): UserPair, mut user_plan: UserPlan) -> UserOutput {
             user_body()
         }",
    ),
    (
        r#"period = 60, threshold = 2, permit = user_permit, close = user_closed, scope = "process""#,
        "fn user_function(self, _: UserId) -> UserOutput { user_body() }",
    ),
    (r#"in_flight = 2, scope = "process""#, "async fn user_function(self, _: UserId) { user_body() }"),
    (r#"period = 60, threshold = 2, scope = "process""#, "fn user_function(_: UserId) -> impl UserTrait { user() }"),
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
    "async", "await", "break", "const", "dyn", "false", "fn", "if", "impl", "let", "loop", "match",
    "move", "mut", "return", "self", "static", "Output", "_", "__arg0", "true",
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
