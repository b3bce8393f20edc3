//! Reads the values that several arguments share: text, whole numbers, constants.

use syn::{Expr, ExprLit, ExprPath, ExprUnary, Lit, LitInt, LitStr, UnOp};

use crate::diagnostics::{closest, quoted};

/// A value the macro knows, or a path to a constant that the compiler evaluates later.
pub(crate) struct Constant<T> {
    /// What to write in the expansion: the user's own tokens.
    pub(crate) expr: Expr,
    pub(crate) known: Option<T>,
}

impl Constant<u32> {
    /// A count of at least one, as a literal or a path; `zero` says what zero would do.
    pub(crate) fn count(argument: &str, zero: &str, expr: &Expr) -> syn::Result<Self> {
        let known = whole_number(argument, zero, expr)?;
        if known.is_none() && as_path(expr).is_none() {
            let message =
                format!("`{argument}` is a whole number such as `100`, or the path of a `const`");
            return Err(syn::Error::new_spanned(expr, message));
        }
        Ok(Constant { expr: expr.clone(), known })
    }
}

/// The number, if it is written as one; `None` if it is another expression.
pub(crate) fn whole_number(argument: &str, zero: &str, expr: &Expr) -> syn::Result<Option<u32>> {
    let problem = match as_literal(expr) {
        Some((Sign::Minus, _)) => format!("`{argument}` cannot be negative"),
        Some((Sign::Plus, Lit::Int(int))) => match parse_u32(argument, int) {
            Ok(0) => zero.to_owned(),
            Ok(number) => return Ok(Some(number)),
            Err(problem) => problem,
        },
        Some((Sign::Plus, Lit::Str(text))) if text.value().parse::<u32>().is_ok() => {
            format!("`{argument}` is a number: write `{}`, without quotes", text.value())
        }
        Some((Sign::Plus, _)) => format!("`{argument}` is a whole number such as `100`"),
        None => return Ok(None),
    };
    Err(syn::Error::new_spanned(expr, problem))
}

/// A string literal; `example` is shown if it is something else.
pub(crate) fn text<'a>(argument: &str, example: &str, expr: &'a Expr) -> syn::Result<&'a LitStr> {
    if let Some((Sign::Plus, Lit::Str(text))) = as_literal(expr) {
        return Ok(text);
    }
    let unquoted = as_path(expr).and_then(|path| path.path.get_ident());
    let message = match unquoted {
        Some(word) => format!("`{argument}` is a string literal: write `\"{word}\"`, with quotes"),
        None => format!("`{argument}` is a string literal such as `\"{example}\"`"),
    };
    Err(syn::Error::new_spanned(expr, message))
}

/// One of a few words in quotes; gives what stands beside it. `kind` is what the words are.
pub(crate) fn choice<T: Copy, const N: usize>(
    argument: &str,
    kind: &str,
    words: [(&'static str, T); N],
    expr: &Expr,
) -> syn::Result<T> {
    let text = text(argument, words[0].0, expr)?;
    let word = text.value();
    if let Some((_, meaning)) = words.into_iter().find(|(name, _)| *name == word) {
        return Ok(meaning);
    }
    let names = words.map(|(name, _)| name);
    let hint = match closest(&word.replace(['-', ' '], "_"), names) {
        Some(meant) => format!("did you mean `\"{meant}\"`?"),
        None => format!("`{argument}` is one of {}", quoted(names)),
    };
    Err(syn::Error::new(text.span(), format!("unknown {kind} `{word}`: {hint}")))
}

/// `true` or `false`.
pub(crate) fn flag(argument: &str, expr: &Expr) -> syn::Result<bool> {
    if let Some((Sign::Plus, Lit::Bool(flag))) = as_literal(expr) {
        return Ok(flag.value);
    }
    let message = format!("`{argument}` is `true` or `false`, without quotes");
    Err(syn::Error::new_spanned(expr, message))
}

pub(crate) enum Sign {
    Plus,
    Minus,
}

pub(crate) fn as_literal(expr: &Expr) -> Option<(Sign, &Lit)> {
    match peel(expr) {
        Expr::Lit(ExprLit { lit, .. }) => Some((Sign::Plus, lit)),
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => match peel(expr) {
            Expr::Lit(ExprLit { lit, .. }) => Some((Sign::Minus, lit)),
            _ => None,
        },
        _ => None,
    }
}

pub(crate) fn as_path(expr: &Expr) -> Option<&ExprPath> {
    match peel(expr) {
        Expr::Path(path) => Some(path),
        _ => None,
    }
}

/// Looks through parentheses, and through the invisible ones around what `macro_rules!` inserts.
pub(crate) fn peel(expr: &Expr) -> &Expr {
    match expr {
        Expr::Group(group) => peel(&group.expr),
        Expr::Paren(paren) => peel(&paren.expr),
        other => other,
    }
}

fn parse_u32(argument: &str, int: &LitInt) -> Result<u32, String> {
    let digits = int.base10_digits();
    match int.suffix() {
        "" | "u32" => digits
            .parse()
            .map_err(|_| format!("`{argument}` is at most {}, the largest `u32`", u32::MAX)),
        suffix => Err(format!("`{argument}` is a `u32`: write `{digits}`, without `{suffix}`")),
    }
}
