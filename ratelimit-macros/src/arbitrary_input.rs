//! For arbitrary arguments and items, the attribute returns tokens and does not panic. A short
//! version of `fuzz/targets/attribute.rs`, which runs with the other tests.

use std::fs;
use std::path::Path;

use proc_macro2::TokenStream;

use crate::argument::ArgumentName;
use crate::limit::Algorithm;
use crate::words::Word;

/// The punctuation and the values, right and wrong, between the names of arguments.
const OTHER_WORDS: [&str; 31] = [
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
fn does_not_panic_on_random_words() {
    let arguments = ArgumentName::ALL.iter().map(|name| name.as_str().to_owned());
    let algorithms = Algorithm::ALL.iter().map(|algorithm| format!("\"{}\"", algorithm.as_str()));
    let others = OTHER_WORDS.map(str::to_owned);
    let words: Vec<String> = arguments.chain(algorithms).chain(others).collect();

    // A linear congruential generator (Knuth's MMIX constants): the same input in every run.
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut parsed, mut accepted) = (0, 0);
    for _ in 0..30_000 {
        let text: Vec<_> = (0..random(14)).map(|_| &*words[random(words.len())]).collect();
        // The compiler passes only token sequences to a macro.
        let Ok(arguments) = text.join(" ").parse::<TokenStream>() else { continue };
        let key = format!("[runtime] {arguments}").parse().expect("tokens");
        let _ = crate::key_macro::expand_key(key).to_string();
        let function = FUNCTIONS[random(FUNCTIONS.len())];
        let item: TokenStream = function.parse().expect("an item");
        let output = crate::rewrite::rewrite(&arguments, &item).to_string();
        parsed += 1;
        accepted += usize::from(!output.contains("compile_error"));
    }
    assert!(parsed > 10_000, "{parsed}");
    assert!(accepted < parsed, "every input is accepted");
}

#[test]
fn does_not_panic_on_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/attribute");
    let mut replayed = 0;
    for entry in fs::read_dir(&folder).expect("the corpus of the fuzz target") {
        let text = fs::read(entry.expect("an entry").path()).expect("an input");
        // The fuzz target skips what is not UTF-8.
        let Ok(text) = String::from_utf8(text) else { continue };
        let (arguments, item) = text.split_once("\n---\n").unwrap_or((&text, FUNCTIONS[0]));
        if let (Ok(arguments), Ok(item)) = (arguments.parse(), item.parse::<TokenStream>()) {
            let _ = crate::rewrite::rewrite(&arguments, &item).to_string();
            replayed += 1;
        }
    }
    assert!(replayed > 50, "only {replayed} inputs");
}
