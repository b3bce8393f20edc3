//! The attribute as a function, for tests and fuzzing: a macro crate exports only macros. Includes its modules.

#![allow(dead_code, reason = "the macro crate uses the rest")]
#![allow(
    clippy::large_enum_variant,
    reason = "spans are larger with their places, which tests read"
)]

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

/// Returns what the attribute with these arguments makes of an item. The compiler passes only sequences of tokens to a
/// macro, so there is nothing for other texts.
#[must_use]
pub fn expand(arguments: &str, item: &str) -> Option<String> {
    let arguments: TokenStream = arguments.parse().ok()?;
    Some(rewrite::rewrite(&arguments, &item.parse().ok()?).to_string())
}

/// Returns the errors of the attribute with these arguments on one line: the columns of each, and its message.
#[cfg(feature = "places")]
#[must_use]
pub fn errors(arguments: &str, item: &str) -> Option<Vec<(std::ops::Range<usize>, String)>> {
    use proc_macro2::TokenTree;
    use syn::LitStr;

    let arguments: TokenStream = arguments.parse().ok()?;
    let output: Vec<_> = rewrite::rewrite(&arguments, &item.parse().ok()?).into_iter().collect();
    let errors = output.windows(3).filter_map(|tokens| match tokens {
        [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Group(message)]
            if name == "compile_error" =>
        {
            let columns = name.span().start().column..message.span().end().column;
            Some((columns, syn::parse2::<LitStr>(message.stream()).ok()?.value()))
        }
        _ => None,
    });
    Some(errors.collect())
}

/// Returns what `key!` makes of these tokens.
#[must_use]
pub fn expand_key(tokens: &str) -> Option<String> {
    Some(key_macro::expand_key(tokens.parse().ok()?).to_string())
}
