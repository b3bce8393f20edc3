//! For any arguments of `#[rate_limit(…)]` and any item, the attribute returns tokens and does not
//! panic.
//!
//! The input is the text between the parentheses, a line of three dashes, and the item.

#![cfg_attr(fuzzing, no_main)]

#[path = "../../ratelimit-macros/src/after_call.rs"]
mod after_call;
#[path = "../../ratelimit-macros/src/algorithm.rs"]
mod algorithm;
#[path = "../../ratelimit-macros/src/args.rs"]
mod args;
#[path = "../../ratelimit-macros/src/argument.rs"]
mod argument;
#[path = "../../ratelimit-macros/src/boxed.rs"]
mod boxed;
#[path = "../../ratelimit-macros/src/diagnostics.rs"]
mod diagnostics;
#[path = "../../ratelimit-macros/src/exclusions.rs"]
mod exclusions;
#[path = "../../ratelimit-macros/src/expand/mod.rs"]
mod expand;
#[path = "../../ratelimit-macros/src/format.rs"]
mod format;
#[path = "../../ratelimit-macros/src/function.rs"]
mod function;
#[path = "../../ratelimit-macros/src/guard.rs"]
mod guard;
#[path = "../../ratelimit-macros/src/key.rs"]
mod key;
#[path = "../../ratelimit-macros/src/key_macro.rs"]
mod key_macro;
#[path = "../../ratelimit-macros/src/limit.rs"]
mod limit;
#[path = "../../ratelimit-macros/src/policy.rs"]
mod policy;
#[path = "../../ratelimit-macros/src/rewrite.rs"]
mod rewrite;
#[path = "../../ratelimit-macros/src/spans.rs"]
mod spans;
#[path = "../../ratelimit-macros/src/text/mod.rs"]
mod text;
#[path = "../../ratelimit-macros/src/values.rs"]
mod values;
#[path = "../../ratelimit-macros/src/words.rs"]
mod words;

use proc_macro2::TokenStream;
use ratelimit_fuzz::target;

target!(|text: &str| {
    let (arguments, item) = text.split_once("\n---\n").unwrap_or((text, "async fn f() {}"));
    // The compiler passes only token sequences to a macro.
    if let (Ok(arguments), Ok(item)) = (arguments.parse::<TokenStream>(), item.parse()) {
        let _ = key_macro::expand_key(arguments.clone()).to_string();
        let _ = rewrite::rewrite(&arguments, &item).to_string();
    }
});
