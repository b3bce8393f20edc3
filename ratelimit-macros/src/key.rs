//! The key of a limit: an expression, or a format string over the arguments of the function.

use proc_macro2::Ident;
use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::{Expr, ExprCall, Lit, LitStr, Token};

use crate::diagnostics::{quoted, written};
use crate::format;
pub(crate) use crate::format::KeyPiece;
use crate::function::Function;
use crate::text::closest::closest;
use crate::values::{Sign, as_literal, unwrap_parens};

pub(crate) enum Key {
    Expr(Expr),
    Format(Vec<KeyPiece>),
}

/// The most elements of a tuple for which the runtime implements its `Key` trait.
const LONGEST_TUPLE: usize = 8;

/// The keywords that have no raw form.
const PATH_WORDS: [&str; 5] = ["self", "Self", "super", "crate", "_"];

impl Key {
    /// Reads a key. Without a function, a format string is not checked.
    pub(crate) fn read(expr: &Expr, function: Option<&Function>) -> syn::Result<Self> {
        if let Some((Sign::Plus, Lit::Str(text))) = as_literal(expr) {
            return read_format(text, function).map(Key::Format);
        }
        if let Expr::Closure(closure) = unwrap_parens(expr) {
            let body = &*closure.body;
            let message = format!(
                "`key` is an expression over the arguments of the function, no closure: write `key = {}`",
                written(body)
            );
            return Err(syn::Error::new_spanned(closure, message));
        }
        check_tuples(expr)?;
        Ok(Key::Expr(expr.clone()))
    }
}

/// Returns the arguments of `hashed(..)`, the word of this attribute for the hash of a key.
pub(crate) fn hashed(expr: &Expr) -> Option<&Punctuated<Expr, Token![,]>> {
    let Expr::Call(ExprCall { func, args, .. }) = unwrap_parens(expr) else { return None };
    let Expr::Path(path) = &**func else { return None };
    path.path.is_ident("hashed").then_some(args)
}

fn read_format(text: &LitStr, function: Option<&Function>) -> syn::Result<Vec<KeyPiece>> {
    let Some(function) = function else { return Ok(Vec::new()) };
    let bindings = function.bindings();
    let names: Vec<_> = bindings.iter().map(|binding| binding.unraw().to_string()).collect();
    let pieces = format::parse(text, |name| {
        let binding = bindings.iter().find(|binding| binding.unraw() == name);
        binding.cloned().ok_or_else(|| no_such_argument(name, function, &names))
    })?;
    if !pieces.iter().any(|piece| matches!(piece, KeyPiece::Argument { .. })) {
        let message = is_the_same_text(&text.value(), &names);
        return Err(syn::Error::new(text.span(), message));
    }
    Ok(pieces)
}

/// The problem of a text without a placeholder.
fn is_the_same_text(value: &str, bindings: &[String]) -> String {
    // Spring writes `#user_id` for an argument.
    let meant = closest(value.trim_start_matches('#'), bindings.iter().map(String::as_str));
    let written = match (meant, bindings) {
        (Some(name), _) => format!("`key = \"{{{name}}}\"`"),
        (None, [only]) => format!("`key = \"{{{only}}}\"`"),
        (None, _) => format!("one of {} in braces", quoted(bindings)),
    };
    let advice = match bindings {
        [] => String::new(),
        _ => format!("write {written} to count each value separately, or "),
    };
    format!(
        "`\"{value}\"` is the same text in every call: {advice}remove `key` to count all calls together"
    )
}

/// Reads the format string of `key!`, which names variables in scope.
pub(crate) fn read_scope_format(text: &LitStr) -> syn::Result<Vec<KeyPiece>> {
    format::parse(text, |name| {
        let name = name.trim_start_matches("r#");
        // `{type}` is the variable `r#type`, as for the attribute.
        let is_plain = syn::parse_str::<Ident>(name).is_ok() || PATH_WORDS.contains(&name);
        let new = if is_plain { Ident::new } else { Ident::new_raw };
        Ok(new(name, text.span()))
    })
}

fn no_such_argument(name: &str, function: &Function, bindings: &[String]) -> String {
    let hint = match closest(name, bindings.iter().map(String::as_str)) {
        Some(meant) => format!("did you mean `{{{meant}}}`?"),
        None if bindings.is_empty() => "the function has no arguments".to_owned(),
        None => format!("the function has {}", quoted(bindings)),
    };
    format!("`{{{name}}}` is not an argument of `{}`: {hint}", function.sig.ident)
}

fn check_tuples(expr: &Expr) -> syn::Result<()> {
    if let Some(args) = hashed(expr) {
        return match args.first() {
            Some(key) if matches!(as_literal(key), Some((_, Lit::Str(_)))) => {
                Err(syn::Error::new_spanned(
                    key,
                    "`hashed` takes a value, and no format string: write `hashed(token)`, or `hashed((user, token))`",
                ))
            }
            Some(key) if args.len() == 1 => check_tuples(key),
            _ => Err(syn::Error::new_spanned(
                expr,
                "`hashed` takes one value, such as `hashed(token)`, or a tuple, such as `hashed((user, token))`",
            )),
        };
    }
    let Expr::Tuple(tuple) = unwrap_parens(expr) else {
        return Ok(());
    };
    if tuple.elems.len() > LONGEST_TUPLE {
        let message = format!(
            "a tuple in a key can have at most {LONGEST_TUPLE} elements: nest tuples, as in `((a, b), c)`"
        );
        return Err(syn::Error::new_spanned(tuple, message));
    }
    tuple.elems.iter().try_for_each(check_tuples)
}
