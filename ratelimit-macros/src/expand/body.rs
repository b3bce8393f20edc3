//! The body, and what happens once it has ended.

use proc_macro2::{Delimiter, Group, Ident, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::{Expr, FnArg, Pat, PatIdent, PatType, Signature, Type, parse_quote};

use super::Expansion;
use crate::after_call::{AfterCall, Correction, KeyBlock};
use crate::function::Body;
use crate::spans::{hygienic, hygienic_span, spanned_at, variable, word, words};
use crate::values::Value;

impl Expansion<'_> {
    /// The body, whose value the function returns.
    pub(super) fn body(&self, block: &Group) -> TokenStream {
        if !self.wraps_output() {
            return block.into_token_stream();
        }
        let (rt, owning) = (&self.rt, self.owning(block));
        // A `return` in the body ends the block and not the function.
        let output = if self.function.is_synchronous() {
            hygienic!((move || #owning)())
        } else {
            hygienic!(async move #owning.await)
        };
        hygienic! {
            let __rate_limit_output = #output;
            ::core::result::Result::<_, #rt::Rejection>::Ok(__rate_limit_output)
        }
    }

    /// Whether the body is in an async block or a closure of its own: something needs its value, or the call keeps its
    /// slot for longer than an owned `self` and what a boxed block captures.
    fn moves_body(&self) -> bool {
        let holds = self.after_calls().any(|it| it.holds && it.correction.is_none());
        let is_boxed = matches!(self.function.body, Body::Boxed(_));
        self.wraps_output()
            || self.after_calls().any(AfterCall::sees_result)
            || holds && (is_boxed || self.function.owns_receiver())
    }

    /// Whether that block or closure owns all parameters.
    fn owns_parameters(&self) -> bool {
        matches!(self.function.body, Body::Plain(_)) && self.moves_body()
    }

    /// Whether the parameters become variables of the body, which are dropped before the permits.
    fn binds_parameters(&self) -> bool {
        matches!(self.function.body, Body::Plain(_))
            && self.after_calls().any(AfterCall::keeps_permit)
    }

    /// The signature. Parameters that a block owns or that become variables have names.
    pub(super) fn signature(&self) -> Signature {
        let mut sig = self.function.sig.clone();
        let (owns, binds) = (self.owns_parameters(), self.binds_parameters());
        for (index, input) in sig.inputs.iter_mut().enumerate() {
            let FnArg::Typed(typed) = input else { continue };
            let is_wild = matches!(*typed.pat, Pat::Wild(_));
            if !(is_wild && owns || binds && !is_reference(typed)) {
                continue;
            }
            if let Some(name) = plain_name(&typed.pat).cloned().or_else(|| self.unnamed(index)) {
                *typed.pat = parse_quote!(#name);
            }
        }
        sig
    }

    /// The name of a parameter that has none; `None` if an attribute below records the arguments by their names.
    fn unnamed(&self, index: usize) -> Option<Ident> {
        let is_recorded = self.function.attributes("instrument").next().is_some();
        (!is_recorded).then(|| variable(&format!("parameter_{index}")))
    }

    /// The statements that bind parameters again, in the order in which the function binds them.
    fn bound_parameters(&self) -> TokenStream {
        let inputs = self.function.sig.inputs.iter().enumerate();
        let bound = inputs.filter_map(|(index, input)| {
            let FnArg::Typed(typed) = input else { return None };
            if is_reference(typed) {
                return None;
            }
            let (pat, conditions) = (&typed.pat, self.function.conditions(index));
            if let Some(name) = plain_name(pat) {
                return Some(hygienic!(#(#conditions)* let #pat = #name;));
            }
            let name = self.unnamed(index)?;
            let whole = hygienic!(#(#conditions)* let #name = #name;);
            let is_wild = matches!(**pat, Pat::Wild(_));
            let parts = (!is_wild).then(|| hygienic!(#(#conditions)* let #pat = #name;));
            Some(hygienic!(#whole #parts))
        });
        bound.collect()
    }

    /// The statements of a boxed body that destructure parameters.
    pub(super) fn patterns(&self) -> TokenStream {
        match &self.function.body {
            Body::Plain(_) => TokenStream::new(),
            Body::Boxed(boxed) => {
                boxed.patterns.iter().map(|(_, statement)| statement.clone()).collect()
            }
        }
    }

    /// The value of the body, whose type is known to the body, as in the function: a `?` converts to it, and a value
    /// coerces to it.
    pub(super) fn known_output(&self, block: &Group) -> TokenStream {
        let (rt, owning) = (&self.rt, self.owning(block));
        // `impl Trait` cannot be written in a body.
        let is_written = |ty: &&Type| words(ty.to_token_stream()).all(|word| word != "impl");
        let ty = self.function.output().filter(is_written);
        if self.function.is_synchronous() {
            let body = match ty {
                None => hygienic!(move || #owning),
                Some(ty) => hygienic!(move || -> #ty { #owning }),
            };
            return hygienic!(#rt::__private::call_once(#body));
        }
        // The block returns a value of the type here, so its other values coerce to the type.
        let returned = ty.map(|ty| {
            let value = variable("returned");
            hygienic! {
                if let ::core::option::Option::Some(#value) = ::core::option::Option::None::<#ty> {
                    return #value;
                }
            }
        });
        hygienic!(async move { #returned #owning }.await)
    }

    /// The block of the body, which owns all parameters: it drops them as the function would. The temporaries of the
    /// body are dropped before them, in every edition.
    pub(super) fn owning(&self, block: &Group) -> Group {
        let parameters =
            if self.owns_parameters() { self.function.parameters() } else { Vec::new() };
        let text = format!("{} {block}", self.arguments);
        let words = text.split(|letter| !is_of_name(letter));
        // A block drops what it owns in the order in which it names it.
        let owned = parameters.into_iter().rev().filter_map(|(index, name)| {
            let name = name.or_else(|| self.unnamed(index))?;
            let conditions = self.function.conditions(index);
            let plain = name.unraw().to_string();
            let is_silent = plain == "self" || plain.starts_with('_');
            Some(if is_silent || words.clone().any(|word| word == plain) {
                hygienic!(#(#conditions)* let _ = &#name;)
            } else {
                // The compiler warns of the unused variable, as in the function.
                hygienic!(#(#conditions)* let #name = #name;)
            })
        });
        let tokens = hygienic!(#(#owned)* #block);
        let mut owning = Group::new(Delimiter::Brace, tokens);
        owning.set_span(hygienic_span());
        owning
    }

    /// The check, the body, and what happens then to each charge. If nothing looks at the return value, the body stays
    /// a block.
    pub(super) fn ended(&self, block: &Group) -> TokenStream {
        let rt = &self.rt;
        let acquire = self.check("acquire");
        let awaited = (!self.function.is_synchronous()).then(|| hygienic!(.await));
        let rejected = self.rejected();
        let permits = (0..).map(|index| variable(&format!("permit_{index}")));
        let each = || permits.clone().zip(self.after_calls());
        let variables = each().map(|(permit, after_call)| match &after_call.correction {
            Some(Correction::Permit(name)) if after_call.block.is_none() => Some(name.clone()),
            _ => (!after_call.is_empty()).then_some(permit),
        });
        let declared = variables.clone().flatten();
        let ignored = || hygienic!(_);
        let assigned = variables.map(|it| it.map_or_else(ignored, ToTokens::into_token_stream));
        let split = each().filter_map(|(permit, after_call)| {
            match (&after_call.correction, &after_call.block) {
                (Some(Correction::Permit(name)), Some(_)) => Some(hygienic! {
                    let (#name, #permit) = #rt::__private::split_for_block(#permit);
                }),
                _ => None,
            }
        });
        let by_result =
            each().filter_map(|(permit, after_call)| self.by_result(&permit, after_call));
        let body = if self.wraps_output() {
            self.body(block)
        } else if self.moves_body() {
            let output = self.known_output(block);
            hygienic! {
                let __rate_limit_output = #output;
                #(#by_result;)*
                __rate_limit_output
            }
        } else {
            self.owning(block).into_token_stream()
        };
        let bound = if self.binds_parameters() { self.bound_parameters() } else { self.patterns() };
        // Variables are dropped in the opposite order: the permits are the last.
        hygienic! {
            #(let #declared;)*
            #bound
            [#(#assigned),*] = {
                let __rate_limit_pending = #acquire;
                match __rate_limit_pending #awaited {
                    ::core::result::Result::Ok(__rate_limit_permits) => __rate_limit_permits,
                    ::core::result::Result::Err(__rate_limit_rejection) => return #rejected,
                }
            };
            #(#split)*
            #body
        }
    }

    /// Blocks the key and corrects the charge of a permit, by the return value.
    fn by_result(&self, permit: &Ident, after_call: &AfterCall) -> Option<TokenStream> {
        let rt = &self.rt;
        let call = |name, permit: TokenStream, function: &Expr| {
            let name = word(name);
            let call = hygienic!(#rt::__private::#name(#permit, &__rate_limit_output, #function));
            spanned_at(function, call)
        };
        let block = after_call.block.as_ref();
        let permit = permit.to_token_stream();
        let permit = match block {
            Some(KeyBlock { function, at_most }) => {
                let at_most = self.ceiling(at_most.as_ref());
                call("block", hygienic!(#permit, #at_most), function)
            }
            None => permit,
        };
        match &after_call.correction {
            Some(Correction::Settle(function)) => Some(call("settle", permit, function)),
            Some(Correction::CountIf(function)) => Some(call("count_if", permit, function)),
            Some(Correction::Permit(_)) | None => {
                block.map(|_| hygienic!(#rt::Permit::keep(#permit)))
            }
        }
    }

    /// The longest time for which `block` blocks the key.
    fn ceiling(&self, at_most: Option<&Value>) -> TokenStream {
        let rt = &self.rt;
        match at_most {
            None => hygienic!(#rt::__private::BLOCK_AT_MOST),
            Some(at_most) if at_most.known.is_some() => self.duration(at_most),
            Some(Value { expr, .. }) => {
                let call = spanned_at(expr, hygienic!(#rt::__private::block_at_most(#expr)));
                hygienic!(const { #call })
            }
        }
    }

    /// Whether the body's value is wrapped in a `Result`: `impl Trait` hides its type, so a rejection
    /// cannot be converted to it.
    pub(super) fn wraps_output(&self) -> bool {
        self.guard.on_limited.is_none() && self.function.returns_impl_trait()
    }
}

/// The name that a pattern binds, if it binds the whole value and nothing else. A lint forbids to use `_name`.
fn plain_name(pat: &Pat) -> Option<&Ident> {
    match pat {
        Pat::Ident(PatIdent { by_ref: None, subpat: None, ident, .. })
            if !ident.to_string().starts_with('_') =>
        {
            Some(ident)
        }
        _ => None,
    }
}

/// Whether nothing happens when a parameter is dropped.
fn is_reference(parameter: &PatType) -> bool {
    matches!(*parameter.ty, Type::Reference(_))
}

/// Whether a letter can be in a name.
fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}
