//! The spans of the tokens that the macros write: where names resolve, and where errors point. Also finds words.

use std::iter;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;

/// The span of the attribute. Variables with it and variables of the user cannot see each other.
pub(crate) fn hygienic_span() -> Span {
    Span::mixed_site()
}

/// Quotes tokens of the expansion, with [hygienic](hygienic_span) spans.
macro_rules! hygienic {
    ($($tokens:tt)*) => { quote::quote_spanned!($crate::spans::hygienic_span()=> $($tokens)*) };
}

pub(crate) use hygienic;

/// A word of the expansion.
pub(crate) fn word(word: &str) -> Ident {
    Ident::new(word, hygienic_span())
}

/// A variable that the user cannot name.
pub(crate) fn variable(name: &str) -> Ident {
    word(&format!("__rate_limit_{name}"))
}

/// The same call, with spans that make an error point from the first to the last token of `place`, if it has any.
pub(crate) fn spanned_at(place: &(impl ToTokens + ?Sized), call: TokenStream) -> TokenStream {
    let mut place = place.to_token_stream().into_iter();
    let Some(first) = place.next() else {
        return call;
    };
    let last = place.last().map_or(first.span(), |last| last.span());
    let mut call: Vec<_> = call.into_iter().collect();
    if let Some((arguments, path)) = call.split_last_mut() {
        for tree in path {
            tree.set_span(tree.span().located_at(first.span()));
        }
        arguments.set_span(arguments.span().located_at(last));
    }
    call.into_iter().collect()
}

/// All words in tokens, in their order.
pub(crate) fn words(tokens: TokenStream) -> Box<dyn Iterator<Item = Ident>> {
    Box::new(tokens.into_iter().flat_map(|tree| match tree {
        TokenTree::Ident(word) => Box::new(iter::once(word)) as Box<dyn Iterator<Item = Ident>>,
        TokenTree::Group(group) => words(group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => Box::new(iter::empty()),
    }))
}
