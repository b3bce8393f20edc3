//! Collects the mistakes of one attribute, so that all are reported together, and finds the word
//! that a misspelled or a foreign one stands for.

use std::cell::RefCell;
use std::fmt::Display;

use proc_macro2::TokenStream;
use quote::ToTokens;

/// The mistakes found so far.
#[derive(Default)]
pub(crate) struct Errors {
    found: RefCell<Vec<syn::Error>>,
}

impl Errors {
    /// Returns how many errors were recorded.
    pub(crate) fn count(&self) -> usize {
        self.found.borrow().len()
    }

    /// Records one error, or several that were combined.
    pub(crate) fn report(&self, error: syn::Error) {
        self.found.borrow_mut().push(error);
    }

    /// Returns the value of a result, or records its error.
    pub(crate) fn record<T>(&self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.report(error)).ok()
    }

    /// Returns the value if no error was recorded, and otherwise a `compile_error!` for each.
    pub(crate) fn finish<T>(self, outcome: Option<T>) -> Result<T, TokenStream> {
        let found = self.found.into_inner();
        match outcome {
            Some(value) if found.is_empty() => Ok(value),
            _ => {
                assert!(!found.is_empty(), "a mistake in the attribute was not reported");
                Err(found.iter().map(syn::Error::to_compile_error).collect())
            }
        }
    }
}

/// Tokens as a person would write them.
pub(crate) fn written(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (spaced, close) in [
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        (" ,", ","),
        (" . ", "."),
        (" :: ", "::"),
        ("& ", "&"),
    ] {
        text = text.replace(spaced, close);
    }
    text
}

/// Lists the names as `` `a`, `b`, `c` ``.
pub(crate) fn quoted(names: impl IntoIterator<Item = impl Display>) -> String {
    let quoted: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// Returns what to write instead of an argument of another library, or of a wish.
pub(crate) fn foreign_argument(word: &str) -> Option<&'static str> {
    Some(match word {
        "rate" | "per_second" | "per_minute" | "per_hour" | "per_day" => {
            "write a text such as `\"10/s\"`, `\"10/m\"`, `\"10/h\"` or `\"10/d\"` in first place, or `threshold` and \
             `period`"
        }
        "tokens" => {
            "`threshold` is how many units a period admits, and `cost` how many units a call takes"
        }
        "store" | "backend" | "redis" | "redis_url" => {
            "the limiter chooses the store: set `RATELIMIT_REDIS_URL`, or call `set_global`"
        }
        "ttl" | "expire" | "expires" => {
            "counts expire by themselves: the length of a window is `period`"
        }
        "error" | "message" | "status" => {
            "`on_limited` makes the return value of a rejected call, and `on_error` says what happens while Redis \
             cannot decide"
        }
        "ban" | "lock" | "lockout" | "jail" | "penalty" => {
            "`wait` lets a call wait instead of being rejected, and `block` blocks the key after a bad result"
        }
        "only_failures" | "failures" | "failures_only" | "skip_successful_requests" => {
            "write `count_if = Result::is_err` to count the calls that fail"
        }
        "ip" | "per_ip" | "user" | "per_user" | "client" => {
            "`key` is what is counted separately: an argument of the function, or a `Client`, which `Client::from` \
             makes of an `IpAddr`"
        }
        _ => return None,
    })
}
