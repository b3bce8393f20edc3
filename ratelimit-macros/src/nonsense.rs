//! Whatever is written in the attribute, the answer is tokens and not a panic.

use proc_macro2::TokenStream;

/// What arguments are made of, and what they are not.
const WORDS: [&str; 48] = [
    "period",
    "threshold",
    "algo",
    "burst",
    "align",
    "key",
    "cost",
    "name",
    "limit",
    "scope",
    "on_error",
    "shadow",
    "wait",
    "on_limited",
    "crate",
    "=",
    "=",
    "=",
    ",",
    ",",
    ",",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    "30",
    "0",
    "-1",
    "1.5",
    "30s",
    "\"30s\"",
    "\"1h30m\"",
    "\"sliding\"",
    "\"token_bucket\"",
    "\"{id}:{user.name:>8}\"",
    "\"{\"",
    "\"}}{0}\"",
    "\"+08:00\"",
    "true",
    "|r|",
    "self",
    "id",
    "Self::MAX",
    "99999999999999999999",
    "'x'",
    "..",
];

const FUNCTIONS: [&str; 6] = [
    "async fn f(id: u64) -> Option<u64> { Some(id) }",
    "async fn f(&self, Path((a, b)): Path<(u64, u64)>, user: User) -> impl Trait { }",
    "fn f() { }",
    "fn f<'a>(&'a self) -> Pin<Box<dyn Future<Output = ()> + 'a>> { Box::pin(async move { }) }",
    "async fn f();",
    "struct F;",
];

#[test]
fn is_answered_and_not_panicked_at() {
    // A linear congruential generator (Knuth's MMIX constants): the same nonsense in every run.
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut parsed, mut accepted) = (0, 0);
    for _ in 0..30_000 {
        let words: Vec<_> = (0..random(14)).map(|_| WORDS[random(WORDS.len())]).collect();
        // What is no token sequence does not reach a macro.
        let Ok(arguments) = words.join(" ").parse::<TokenStream>() else { continue };
        let function = FUNCTIONS[random(FUNCTIONS.len())];
        let item: TokenStream = function.parse().expect("an item");
        let answer = crate::rewrite::rewrite(arguments, &item).to_string();
        parsed += 1;
        accepted += usize::from(!answer.contains("compile_error"));
    }
    assert!(parsed > 10_000, "{parsed}");
    assert!(accepted < parsed, "nonsense is accepted");
}
