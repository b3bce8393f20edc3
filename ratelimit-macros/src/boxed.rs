//! Recognizes an async method after `#[async_trait]`: a function that returns
//! `Box::pin(async move { … })`. The check goes into that block, so that there is one box, and the
//! attribute works on methods of an `#[async_trait]`.

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::{ToTokens, TokenStreamExt, quote};
use syn::parse::discouraged::Speculative;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{
    GenericArgument, Pat, Path, PathArguments, Token, Type, TypeParamBound, braced, parenthesized,
    token,
};

/// A body that consists of `Box::pin(async move { … })`.
pub(crate) struct BoxedBody {
    path: Path,
    paren: token::Paren,
    async_token: Token![async],
    move_token: Token![move],
    pub(crate) brace: token::Brace,
    /// The statements that destructure parameters, each with its pattern, such as
    /// `let Path(id) = { let __arg1 = __arg1; __arg1 };`. The key uses what they bind.
    pub(crate) patterns: Vec<(Pat, TokenStream)>,
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
        let (async_token, move_token) = (call.parse()?, call.parse()?);
        let brace = braced!(block in call);
        let (patterns, body) = split_patterns(&block)?;
        Ok(BoxedBody { path, paren, async_token, move_token, brace, patterns, body })
    }
}

/// Takes the `let`s that destructure a parameter from the start of a body. Returns them and the rest of the body. Each
/// of them moves one parameter, so they can run first.
fn split_patterns(block: ParseStream<'_>) -> syn::Result<(Vec<(Pat, TokenStream)>, TokenStream)> {
    let (mut patterns, mut body) = (Vec::new(), TokenStream::new());
    // `if let Some(__ret) = None::<T> { return __ret; }`, which sets the type of the block.
    if block.peek(Token![if]) {
        while !block.peek(token::Brace) && !block.is_empty() {
            body.append(block.parse::<TokenTree>()?);
        }
        body.append_all(block.parse::<Option<Group>>()?);
    }
    let ahead = block.fork();
    while let Ok((pattern, value, tokens)) = parse_let(&ahead) {
        block.advance_to(&ahead);
        if is_parameter(&value) {
            patterns.push((pattern, tokens));
        } else {
            body.append_all(tokens);
        }
    }
    body.append_all(block.parse::<TokenStream>()?);
    Ok((patterns, body))
}

/// Whether a value is `{ let __arg1 = __arg1; __arg1 }`. A block of the user runs after the check.
fn is_parameter(value: &TokenTree) -> bool {
    let TokenTree::Group(block) = value else { return false };
    let words: Vec<_> = block.stream().into_iter().map(|tree| tree.to_string()).collect();
    let name = words.last().filter(|name| name.starts_with("__arg"));
    name.is_some_and(|name| words == ["let", name, "=", name, ";", name])
}

/// Parses `let PATTERN = VALUE;`, where the value is one variable or one block. Returns the pattern, the value, and the
/// whole statement.
fn parse_let(input: ParseStream<'_>) -> syn::Result<(Pat, TokenTree, TokenStream)> {
    let keyword: Token![let] = input.parse()?;
    let pattern = Pat::parse_single(input)?;
    let (equals, value): (Token![=], TokenTree) = (input.parse()?, input.parse()?);
    let end: Token![;] = input.parse()?;
    let tokens = quote!(#keyword #pattern #equals #value #end);
    Ok((pattern, value, tokens))
}

/// `T` of `Pin<Box<dyn Future<Output = T>>>`.
pub(crate) fn future_output(ty: &Type) -> Option<&Type> {
    match type_argument(type_argument(ty)?)? {
        Type::TraitObject(future) => future_of(&future.bounds),
        _ => None,
    }
}

/// `T` of the bounds `Future<Output = T> + ..`.
pub(crate) fn future_of(bounds: &Punctuated<TypeParamBound, Token![+]>) -> Option<&Type> {
    let paths = bounds.iter().filter_map(|bound| match bound {
        TypeParamBound::Trait(bound) => Some(&bound.path),
        _ => None,
    });
    paths.flat_map(generic_arguments).find_map(|argument| match argument {
        GenericArgument::AssocType(assoc) if assoc.ident == "Output" => Some(&assoc.ty),
        _ => None,
    })
}

/// Whether a type is `Pin<Box<dyn Future<..>>>`, or a name for it such as `BoxFuture<..>`.
pub(crate) fn is_boxed_future(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    path.path.segments.last().is_some_and(|last| last.ident.to_string().ends_with("BoxFuture"))
        || future_output(ty).is_some()
}

/// `T` of `Wrapper<T>`.
fn type_argument(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    generic_arguments(&path.path).find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}

/// What is in the angle brackets at the end of a path.
fn generic_arguments(path: &Path) -> impl Iterator<Item = &GenericArgument> {
    let last = path.segments.last().map(|last| &last.arguments);
    let arguments = last.and_then(|arguments| match arguments {
        PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
        _ => None,
    });
    arguments.into_iter().flatten()
}
