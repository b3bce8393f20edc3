//! Collects the mistakes of one attribute, so that all are reported together, and finds the word
//! that a misspelled one stands for.

use std::cell::RefCell;
use std::collections::BTreeSet;

use proc_macro2::TokenStream;
use quote::ToTokens;

/// The mistakes found so far.
#[derive(Default)]
pub(crate) struct Errors {
    found: RefCell<Vec<syn::Error>>,
}

/// The proof that an error was recorded. Only [`Errors`] creates it, so that no
/// `Result<T, ReportedError>` can lack its value without a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportedError(());

impl Errors {
    pub(crate) fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// Records one error, or several that were combined.
    pub(crate) fn report(&self, error: syn::Error) -> ReportedError {
        self.found.borrow_mut().push(error);
        ReportedError(())
    }

    /// Records the error of a result.
    pub(crate) fn record<T>(&self, result: syn::Result<T>) -> Result<T, ReportedError> {
        result.map_err(|error| self.report(error))
    }

    /// Returns the value if no error was recorded, and otherwise a `compile_error!` for each.
    pub(crate) fn finish<T>(self, outcome: Result<T, ReportedError>) -> Result<T, TokenStream> {
        let found = self.found.into_inner();
        match outcome {
            Ok(value) if found.is_empty() => Ok(value),
            _ => Err(found.iter().map(syn::Error::to_compile_error).collect()),
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

/// Lists the names as `` `a`, `b`, `c` ``, each once, in the order given.
pub(crate) fn quoted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut seen = BTreeSet::new();
    let quoted: Vec<_> = names
        .into_iter()
        .filter(|name| seen.insert(*name))
        .map(|name| format!("`{name}`"))
        .collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn lists_each_name_once() {
        assert_eq!(quoted(["b", "a", "b"]), "`b`, `a`");
    }
}
