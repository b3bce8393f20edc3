//! The function under the attribute: its signature is parsed, its body is not.
//!
//! The body stays a sequence of tokens with the spans of the user, so that a half-typed body does
//! not break the attribute, and errors in the body point into the body.

use proc_macro2::{Ident, Span, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Expr, FnArg, LitStr, Pat, ReceiverKind, ReturnType, Signature, Token, Type,
    Visibility,
};
use syn::{braced, token};

use crate::boxed::{self, BoxedBody};
use crate::diagnostics::{Errors, written};
use crate::spans::words;

/// An expansion has one of its names within so many words.
const EXPANDED_WITHIN: usize = 64;

/// A function with a body, as written.
pub(crate) struct Function {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) sig: Signature,
    pub(crate) brace: token::Brace,
    /// The `#![…]` at the start of the body, which apply to the whole function.
    pub(crate) inner_attrs: Vec<Attribute>,
    pub(crate) body: Body,
}

pub(crate) enum Body {
    Plain(TokenStream),
    /// The body of an async method after `#[async_trait]`.
    Boxed(BoxedBody),
}

impl Function {
    /// Whether the function is not async: its calls block the thread until they are decided.
    pub(crate) fn is_synchronous(&self) -> bool {
        self.sig.asyncness.is_none() && matches!(self.body, Body::Plain(_))
    }

    /// Rejects a function that is not async, unless the attribute names its scope (`may_block`).
    pub(crate) fn require_async(self, may_block: bool) -> syn::Result<Self> {
        if let Some(constness) = &self.sig.constness {
            let message = "the calls of a `const fn` can be made by the compiler, which counts nothing: remove `const`";
            return Err(syn::Error::new_spanned(constness, message));
        }
        if !self.is_synchronous() {
            return Ok(self);
        }
        if let Some((ty, message)) = self.returned_future()
            && (!may_block || matches!(ty, Type::ImplTrait(_)) && self.is_async_block())
        {
            return Err(syn::Error::new_spanned(ty, message));
        }
        if may_block {
            return Ok(self);
        }
        let name = &self.sig.ident;
        let mut advice = format!(
            "write `async fn {name}`, or put the attribute on the async function that calls `{name}`; with \
             `scope = \"process\"` in the attribute, nothing is awaited, and with `scope = \"global\"`, the thread \
             is blocked until Redis has decided"
        );
        if self.blocks_on_a_future() {
            advice = format!(
                "if an attribute above it has made this function synchronous, as `#[tokio::main]` and \
                 `#[tokio::test]` do, move `#[rate_limit]` above that attribute; otherwise, {advice}"
            );
        }
        let message =
            format!("`#[rate_limit]` awaits the decision, so it needs an `async fn`: {advice}");
        Err(syn::Error::new(self.sig.fn_token.span, message))
    }

    /// The return type and what to write instead, if the type is a future.
    fn returned_future(&self) -> Option<(&Type, String)> {
        let ReturnType::Type(_, ty) = &self.sig.output else { return None };
        let (ty, name) = (unwrap_parens(ty), &self.sig.ident);
        if let Type::ImplTrait(opaque) = ty {
            let output = written(boxed::future_of(&opaque.bounds)?);
            let output = output.replace(" <", "<").replace("< ", "<").replace(" >", ">");
            let message = format!(
                "`#[rate_limit]` limits an `async fn`, and this function returns a future: write `async fn \
                 {name}(..) -> {output}`, with the body of its `async` block"
            );
            return Some((ty, message));
        }
        let message = format!(
            "`#[rate_limit]` limits a function that returns a boxed future if its body is one \
             `Box::pin(async move {{ .. }})`: move everything else into that block, or write `async fn {name}`"
        );
        boxed::is_boxed_future(ty).then_some((ty, message))
    }

    /// Whether the body is nothing but `async { .. }` or `async move { .. }`.
    fn is_async_block(&self) -> bool {
        let Body::Plain(body) = &self.body else { return false };
        matches!(syn::parse2(body.clone()), Ok(Expr::Async(_)))
    }

    /// Whether the body runs a future to its end, as that of `#[tokio::main]` does.
    fn blocks_on_a_future(&self) -> bool {
        matches!(&self.body, Body::Plain(body) if words(body.clone()).any(|word| word == "block_on"))
    }

    /// Rejects a second attribute, which would count every call again under the same name. If the attribute is imported
    /// by another name, what the first one has written tells.
    pub(crate) fn require_one_attribute(&self, errors: &Errors) {
        let message = "a function can have only one `#[rate_limit]`: write both limits in one, as \
                       `#[rate_limit(limit(…), limit(…))]`, to decide them together";
        for attribute in self.attributes("rate_limit") {
            errors.report(syn::Error::new_spanned(attribute.path(), message));
        }
        let body = match &self.body {
            Body::Plain(body) => body,
            Body::Boxed(boxed) => &boxed.body,
        };
        let is_ours = |word: Ident| word.to_string().to_lowercase().starts_with("__rate_limit_");
        if words(body.clone()).take(EXPANDED_WITHIN).any(is_ours) {
            errors.report(syn::Error::new(Span::call_site(), message));
        }
    }

    /// Rejects `#[track_caller]` on a function whose body runs in a closure, because of `cause`.
    pub(crate) fn require_no_track_caller(&self, cause: &str, advice: &str) -> syn::Result<()> {
        let attributes = self.attrs.iter().chain(&self.inner_attrs);
        let attributes = attributes
            .filter(|it| it.path().is_ident("track_caller") || it.path().is_ident("cfg_attr"));
        let mut words = attributes.flat_map(|attribute| words(attribute.to_token_stream()));
        let word = words.find(|word| word == "track_caller");
        let Some(word) = word.filter(|_| self.is_synchronous()) else { return Ok(()) };
        let message = format!(
            "with {cause}, the body runs in a closure, in which `Location::caller` is not the caller of the function: \
             remove `#[track_caller]`, or {advice}"
        );
        Err(syn::Error::new(word.span(), message))
    }

    /// The attributes below that have this name.
    pub(crate) fn attributes(&self, name: &'static str) -> impl Iterator<Item = &Attribute> {
        self.attrs.iter().filter(move |attribute| {
            attribute.path().segments.last().is_some_and(|last| last.ident == name)
        })
    }

    /// The type that the future of the function resolves to; `None` is `()`.
    pub(crate) fn output(&self) -> Option<&Type> {
        match (&self.body, &self.sig.output) {
            (_, ReturnType::Default) => None,
            (Body::Boxed(_), ReturnType::Type(_, ty)) => boxed::future_output(ty),
            (Body::Plain(_), ReturnType::Type(_, ty)) => Some(ty),
        }
    }

    pub(crate) fn returns_impl_trait(&self) -> bool {
        matches!(self.output().map(unwrap_parens), Some(Type::ImplTrait(_)))
    }

    /// Whether the function owns its receiver.
    pub(crate) fn owns_receiver(&self) -> bool {
        let receiver = self.sig.receiver().map(|receiver| &receiver.kind);
        match receiver {
            None | Some(ReceiverKind::Reference(..)) => false,
            Some(ReceiverKind::Typed(_, ty)) => !matches!(**ty, Type::Reference(_)),
            Some(_) => true,
        }
    }

    /// The names of all parameters, in their order, and the index of each. A `_` has no name.
    pub(crate) fn parameters(&self) -> Vec<(usize, Option<Ident>)> {
        let mut found = Vec::new();
        for (index, input) in self.sig.inputs.iter().enumerate() {
            let mut names = Vec::new();
            match input {
                FnArg::Receiver(receiver) => names.push(Ident::from(receiver.self_token)),
                FnArg::Typed(typed) if matches!(*typed.pat, Pat::Wild(_)) => {
                    found.push((index, None));
                }
                FnArg::Typed(typed) => collect_bindings(&typed.pat, &mut names),
            }
            found.extend(names.into_iter().map(|name| (index, Some(name))));
        }
        found
    }

    /// The `#[cfg(..)]` of a parameter.
    pub(crate) fn conditions(&self, index: usize) -> Vec<&Attribute> {
        let attrs = match self.sig.inputs.iter().nth(index) {
            Some(FnArg::Typed(typed)) => &typed.attrs[..],
            Some(FnArg::Receiver(receiver)) => &receiver.attrs[..],
            None => &[],
        };
        attrs.iter().filter(|attribute| attribute.path().is_ident("cfg")).collect()
    }

    /// The names of all values that the signature binds.
    pub(crate) fn bindings(&self) -> Vec<Ident> {
        let mut found: Vec<_> =
            self.parameters().into_iter().filter_map(|(_, name)| name).collect();
        if let Body::Boxed(boxed) = &self.body {
            boxed.patterns.iter().for_each(|(pattern, _)| collect_bindings(pattern, &mut found));
        }
        found.extend(self.sig.generics.const_params().map(|param| param.ident.clone()));
        found
    }
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        expect_function(&input.fork())?;
        let sig: Signature = input.parse()?;
        if input.peek(Token![;]) {
            let message = "this function has no body: put `#[rate_limit]` on its implementations";
            return Err(syn::Error::new(sig.ident.span(), message));
        }
        let body;
        Ok(Function {
            attrs,
            vis,
            brace: braced!(body in input),
            inner_attrs: body.call(Attribute::parse_inner)?,
            body: parse_body(&sig, &body)?,
            sig,
        })
    }
}

/// Rejects an item that is not a function, by its kind: the parser would only say that it expected
/// `fn`.
fn expect_function(input: ParseStream<'_>) -> syn::Result<()> {
    const QUALIFIERS: [&str; 6] = ["default", "const", "async", "unsafe", "safe", "extern"];
    const CONTAINERS: [&str; 3] = ["impl", "trait", "mod"];
    let first = input.fork().call(Ident::parse_any)?;
    let mut word = first.clone();
    while input.peek(Ident::peek_any) {
        word = input.call(Ident::parse_any)?;
        if word == "fn" {
            return Ok(());
        }
        if !QUALIFIERS.iter().any(|qualifier| word == qualifier) {
            break;
        }
        // The ABI of `extern "C"`.
        input.parse::<Option<LitStr>>()?;
    }
    let (item, advice) = if CONTAINERS.iter().any(|container| word == container) {
        (word, ": put it on the functions inside")
    } else {
        (first, "")
    };
    let message = format!("`#[rate_limit]` works on an `async fn`, not on `{item}`{advice}");
    Err(syn::Error::new(item.span(), message))
}

fn parse_body(sig: &Signature, input: ParseStream<'_>) -> syn::Result<Body> {
    let ahead = input.fork();
    if sig.asyncness.is_none()
        && let Ok(boxed) = ahead.parse::<BoxedBody>()
        && ahead.is_empty()
    {
        input.parse::<TokenStream>()?;
        return Ok(Body::Boxed(boxed));
    }
    input.parse().map(Body::Plain)
}

fn collect_bindings(pat: &Pat, found: &mut Vec<Ident>) {
    let mut all =
        |pats: &Punctuated<Pat, _>| pats.iter().for_each(|pat| collect_bindings(pat, found));
    match pat {
        Pat::Ident(pat) => {
            found.push(pat.ident.clone());
            if let Some((_, subpattern)) = &pat.subpat {
                collect_bindings(subpattern, found);
            }
        }
        Pat::Paren(pat) => collect_bindings(&pat.pat, found),
        Pat::Reference(pat) => collect_bindings(&pat.pat, found),
        Pat::Type(pat) => collect_bindings(&pat.pat, found),
        Pat::Struct(pat) => pat.fields.iter().for_each(|field| collect_bindings(&field.pat, found)),
        Pat::Tuple(pat) => all(&pat.elems),
        Pat::TupleStruct(pat) => all(&pat.elems),
        Pat::Slice(pat) => all(&pat.elems),
        // All cases bind the same names.
        Pat::Or(pat) => pat.cases.first().into_iter().for_each(|pat| collect_bindings(pat, found)),
        _ => {}
    }
}

fn unwrap_parens(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => unwrap_parens(&group.elem),
        Type::Paren(paren) => unwrap_parens(&paren.elem),
        other => other,
    }
}
