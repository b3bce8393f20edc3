//! Recognizes an async method after `#[async_trait]`: a function that returns
//! `Box::pin(async move { … })`. The check goes into that block, so that there is one box, and the
//! attribute works on methods of an `#[async_trait]`.

use proc_macro2::TokenStream;
use quote::{ToTokens, TokenStreamExt};
use syn::parse::{Parse, ParseStream};
use syn::{
    GenericArgument, Path, PathArguments, ReturnType, Token, Type, TypeParamBound, braced,
    parenthesized, token,
};

/// A body that consists of `Box::pin(async move { … })`.
pub(crate) struct BoxedBody {
    path: Path,
    paren: token::Paren,
    async_token: Token![async],
    move_token: Token![move],
    brace: token::Brace,
    pub(crate) body: TokenStream,
}

impl BoxedBody {
    /// The same call with another body in the block.
    pub(crate) fn rebuild(&self, body: &TokenStream) -> TokenStream {
        let mut tokens = self.path.to_token_stream();
        self.paren.surround(&mut tokens, |tokens| {
            self.async_token.to_tokens(tokens);
            self.move_token.to_tokens(tokens);
            self.brace.surround(tokens, |tokens| tokens.append_all(body.clone()));
        });
        tokens
    }
}

impl Parse for BoxedBody {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let (call, block);
        let path = input.call(Path::parse_mod_style)?;
        if path.segments.last().is_none_or(|last| last.ident != "pin") {
            return Err(input.error("expected `Box::pin`"));
        }
        let paren = parenthesized!(call in input);
        Ok(BoxedBody {
            path,
            paren,
            async_token: call.parse()?,
            move_token: call.parse()?,
            brace: braced!(block in call),
            body: block.parse()?,
        })
    }
}

/// `T` of `Pin<Box<dyn Future<Output = T>>>`.
pub(crate) fn future_output(output: &ReturnType) -> Option<&Type> {
    let ReturnType::Type(_, ty) = output else {
        return None;
    };
    let Type::TraitObject(future) = type_argument(type_argument(ty)?)? else {
        return None;
    };
    future.bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else {
            return None;
        };
        let PathArguments::AngleBracketed(arguments) = &bound.path.segments.last()?.arguments
        else {
            return None;
        };
        arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::AssocType(assoc) if assoc.ident == "Output" => Some(&assoc.ty),
            _ => None,
        })
    })
}

/// `T` of `Wrapper<T>`.
fn type_argument(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else {
        return None;
    };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}
