//! `key!("{tenant}:{id}")`: the key that the attribute makes of the same format string, for a call by hand.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::{LitStr, Path, bracketed};

use crate::expand::format_key;
use crate::key::read_scope_format;

/// `[runtime] "format"`: the runtime adds its path in front of what the user writes.
struct KeyInput {
    runtime: Path,
    format: LitStr,
}

pub(crate) fn expand_key(tokens: TokenStream) -> TokenStream {
    let key = syn::parse2::<KeyInput>(tokens).and_then(|KeyInput { runtime, format }| {
        let key = format_key(&quote!(#runtime), &read_scope_format(&format)?);
        // The block drops what the format string borrows before an `await` around it.
        Ok(quote!({
            let __rate_limit_key = #runtime::__private::owned_key(&#key);
            __rate_limit_key
        }))
    });
    key.unwrap_or_else(syn::Error::into_compile_error)
}

impl Parse for KeyInput {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let runtime;
        bracketed!(runtime in input);
        let runtime = runtime.parse()?;
        let expected = "expected one format string, such as `key!(\"{tenant}:{id}\")`: any other key is \
                        passed as it is, without `key!`";
        let format = input.parse().map_err(|error| syn::Error::new(error.span(), expected))?;
        if input.is_empty() { Ok(Self { runtime, format }) } else { Err(input.error(expected)) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_word_can_be_a_variable() {
        for word in
            ["id", "type", "r#type", "match", "self", "Self", "super", "crate", "_", "union"]
        {
            let tokens = format!("[runtime] \"{{{word}}}\"").parse().expect("tokens");
            let _ = super::expand_key(tokens).to_string();
        }
    }
}
