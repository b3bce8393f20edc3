//! The `#[rate_limit]` attribute. Depend on `ratelimit-runtime`, which re-exports it: the expansion
//! calls that crate.
//!
//! The attribute is expanded in three steps: `Args` and `Function` parse the attribute and the
//! function, `Guard` validates them, and `expand` writes the limited function.

mod after_call;
mod algorithm;
mod args;
mod argument;
mod boxed;
mod diagnostics;
mod exclusions;
mod expand;
mod format;
mod function;
mod guard;
mod key;
mod key_macro;
mod limit;
mod policy;
mod rewrite;
mod spans;
mod text;
mod values;
mod words;

#[doc = include_str!("../docs/rate_limit.md")]
#[proc_macro_attribute]
pub fn rate_limit(
    arguments: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    rewrite::rewrite(&arguments.into(), &item.into()).into()
}

/// The macro that `ratelimit_runtime::key!` calls.
#[doc(hidden)]
#[proc_macro]
pub fn format_key(tokens: proc_macro::TokenStream) -> proc_macro::TokenStream {
    key_macro::expand_key(tokens.into()).into()
}
