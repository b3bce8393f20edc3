//! The attribute as a function, for tests and fuzzing: a macro crate exports only macros. Includes its modules.

#![allow(dead_code, reason = "the macro crate uses the rest")]
#![allow(
    clippy::large_enum_variant,
    reason = "spans are larger with their places, which tests read"
)]

#[path = "../../ratelimit-macros/src"]
mod modules {
    pub(crate) mod after_call;
    pub(crate) mod algorithm;
    pub(crate) mod args;
    pub(crate) mod argument;
    pub(crate) mod boxed;
    pub(crate) mod diagnostics;
    pub(crate) mod exclusions;
    pub(crate) mod expand;
    pub(crate) mod format;
    pub(crate) mod function;
    pub(crate) mod guard;
    pub(crate) mod key;
    pub(crate) mod key_macro;
    pub(crate) mod limit;
    pub(crate) mod policy;
    pub(crate) mod rewrite;
    pub(crate) mod spans;
    pub(crate) mod text;
    pub(crate) mod values;
    pub(crate) mod words;
}

// The modules import each other as `crate::name`.
#[allow(clippy::wildcard_imports, reason = "all of them")]
use modules::*;
use proc_macro2::TokenStream;

/// Returns what the attribute with these arguments makes of an item. The compiler passes only sequences of tokens to a
/// macro, so there is nothing for other texts.
#[must_use]
pub fn expand(arguments: &str, item: &str) -> Option<String> {
    let arguments: TokenStream = arguments.parse().ok()?;
    Some(rewrite::rewrite(&arguments, &item.parse().ok()?).to_string())
}

/// Returns the errors of the attribute with these arguments on one line: whether the item has the mistake, the columns
/// of each, and its message.
#[cfg(feature = "places")]
#[must_use]
pub fn errors(arguments: &str, item: &str) -> Option<Vec<(bool, std::ops::Range<usize>, String)>> {
    use proc_macro2::TokenTree;

    // In one text, so that the lines of the errors differ.
    let mut tokens = format!("(\n{arguments}\n)\n{item}").parse::<TokenStream>().ok()?.into_iter();
    let Some(TokenTree::Group(arguments)) = tokens.next() else { return None };
    let output: Vec<_> =
        rewrite::rewrite(&arguments.stream(), &tokens.collect()).into_iter().collect();
    let errors = output.windows(3).filter_map(|tokens| match tokens {
        [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Group(message)]
            if name == "compile_error" =>
        {
            let (start, end) = (name.span().start(), message.span().end());
            let text = syn::parse2::<syn::LitStr>(message.stream()).ok()?.value();
            Some((start.line > 3, start.column..end.column, text))
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
