//! The spans of the tokens that the macros write: where names resolve, and where errors point.

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;

/// The span of the attribute. Variables with it and variables of the user cannot see each other.
pub(crate) fn hygienic() -> Span {
    Span::mixed_site()
}

/// The same call, with spans that make an error point from the first to the last token of `place`.
pub(crate) fn spanned_at(place: &impl ToTokens, call: TokenStream) -> TokenStream {
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
