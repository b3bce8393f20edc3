//! For any arguments of `#[rate_limit(…)]` and any item, the attribute returns tokens and does not
//! panic.
//!
//! The input is the text between the parentheses, a line of three dashes, and the item.

#![cfg_attr(fuzzing, no_main)]

use ratelimit_fuzz::target;

target!(|text: &str| {
    let (arguments, item) = text.split_once("\n---\n").unwrap_or((text, "async fn f() {}"));
    let _ = expander::expand_key(arguments);
    let _ = expander::expand(arguments, item);
});
