//! Reads the values that several arguments share: strings, whole numbers, durations, constants.

use syn::{Expr, ExprLit, ExprPath, ExprUnary, Lit, LitInt, LitStr, UnOp};

use crate::argument::ArgumentName;
use crate::diagnostics::quoted;
use crate::text::closest::closest;
use crate::text::duration::{NEGATIVE, parse_period, parse_seconds, parse_text};
use crate::text::limit::MOST;
use crate::words::Word;

/// A number or a duration: a literal, whose value the macro knows, the path of a constant, which the compiler
/// evaluates, or, for an amount, any other expression.
#[derive(Clone)]
pub(crate) struct Value {
    /// The expression as written; the expansion repeats it.
    pub(crate) expr: Expr,
    /// The value of a literal, of a duration in microseconds.
    pub(crate) known: Option<u64>,
}

/// Whether the last word of a path is that of a constant: `LIMIT`, `Self::MAX`.
pub(crate) fn is_constant(path: &ExprPath) -> bool {
    let last = path.path.segments.last();
    last.is_some_and(|last| !last.ident.to_string().contains(char::is_lowercase))
}

pub(crate) enum Sign {
    Plus,
    Minus,
}

impl Value {
    /// A value of `threshold`, `burst` or `in_flight`.
    pub(crate) fn amount(argument: ArgumentName, expr: &Expr) -> syn::Result<Self> {
        let zero = format!("`{argument} = 0` would reject every call: the smallest value is 1");
        Ok(Self { expr: expr.clone(), known: whole_number(argument, &zero, expr)? })
    }

    /// Whether each call evaluates the amount, as a `u64` or an `Option<u64>`.
    pub(crate) fn is_computed(&self) -> bool {
        match unwrap_parens(&self.expr) {
            Expr::Path(path) => !is_constant(path),
            Expr::Const(_) => false,
            _ => self.known.is_none(),
        }
    }

    /// A duration in microseconds, which is known if it is a literal.
    pub(crate) fn duration(argument: ArgumentName, expr: &Expr) -> syn::Result<Self> {
        let known = match as_literal(expr) {
            Some((Sign::Minus, _)) => Err(NEGATIVE.to_owned()),
            Some((_, Lit::Str(text))) if argument == ArgumentName::Period => {
                parse_period(&text.value()).map(|(us, _)| Some(us))
            }
            Some((_, Lit::Str(text))) => parse_text(&text.value()).map(Some),
            Some((_, Lit::Int(int))) => parse_seconds(int.base10_digits(), int.suffix()).map(Some),
            Some((_, Lit::Float(float))) => {
                parse_seconds(float.base10_digits(), float.suffix()).map(Some)
            }
            None if as_path(expr).is_some() => Ok(None),
            _ => Err(format!(
                "`{argument}` must be a number of seconds, a string such as `\"30s\"`, or the path of a `const` of \
                 type `Duration`"
            )),
        };
        let known = known.map_err(|message| syn::Error::new_spanned(expr, message))?;
        Ok(Self { expr: expr.clone(), known })
    }
}

/// The number if `expr` is a literal, and `None` if it is another expression; `zero` is the error
/// for 0.
pub(crate) fn whole_number(
    argument: ArgumentName,
    zero: &str,
    expr: &Expr,
) -> syn::Result<Option<u64>> {
    let problem = match as_literal(expr) {
        Some((Sign::Minus, _)) => {
            format!("`{argument}` cannot be negative: the smallest value is 1")
        }
        Some((Sign::Plus, Lit::Int(int))) => match parse_u64(argument, int) {
            Ok(0) => zero.to_owned(),
            Ok(number) => return Ok(Some(number)),
            Err(problem) => problem,
        },
        Some((Sign::Plus, Lit::Str(text))) if text.value().parse::<u64>().is_ok() => {
            format!("`{argument}` must be a number: write `{}`, without quotes", text.value())
        }
        Some((Sign::Plus, _)) => format!("`{argument}` must be a whole number such as `100`"),
        None => return Ok(None),
    };
    Err(syn::Error::new_spanned(expr, problem))
}

/// A string literal.
pub(crate) fn text(argument: ArgumentName, expr: &Expr) -> syn::Result<&LitStr> {
    if let Some((Sign::Plus, Lit::Str(text))) = as_literal(expr) {
        return Ok(text);
    }
    let word = as_path(expr).and_then(|path| path.path.get_ident()).map(ToString::to_string);
    let example = argument.example();
    // A word in lower case lacks its quotes; one in upper case is a constant.
    let message = match word.filter(|word| word.contains(char::is_lowercase)) {
        Some(word) => {
            format!("`{argument}` must be a string literal: write `\"{word}\"`, with quotes")
        }
        None if argument == ArgumentName::Name => format!(
            "`name` must be a string literal, such as `{example}`: to use one name in several places, declare a \
             `const` of type `Limit` and write `limit = LOGIN`"
        ),
        None => format!("`{argument}` must be a string literal, such as `{example}`"),
    };
    Err(syn::Error::new_spanned(expr, message))
}

/// Reads one of the words of `T`, as a string literal.
pub(crate) fn choice<T: Word>(argument: ArgumentName, expr: &Expr) -> syn::Result<T> {
    let literal = text(argument, expr)?;
    let word = literal.value();
    if let Some(choice) = T::find(&word) {
        return Ok(choice);
    }
    let words = || T::ALL.iter().map(|choice| choice.as_str());
    let normalized = word.to_lowercase().replace(['-', ' '], "_");
    let hint = if let Some(meant) = T::find_synonym(&normalized) {
        format!("did you mean `\"{}\"`?", meant.as_str())
    } else if let Some(meant) = closest(&normalized, words()) {
        format!("did you mean `\"{meant}\"`?")
    } else {
        let literals = words().map(|word| format!("\"{word}\""));
        format!("`{argument}` is one of {}", quoted(literals))
    };
    let kind = match argument {
        ArgumentName::Algo => "algorithm",
        ArgumentName::OnError => "policy",
        _ => argument.as_str(),
    };
    Err(syn::Error::new(literal.span(), format!("unknown {kind} `{word}`: {hint}")))
}

/// `true` or `false`.
pub(crate) fn flag(argument: ArgumentName, expr: &Expr) -> syn::Result<bool> {
    if let Some((Sign::Plus, Lit::Bool(flag))) = as_literal(expr) {
        return Ok(flag.value);
    }
    let message = format!("`{argument}` must be `true` or `false`, without quotes");
    Err(syn::Error::new_spanned(expr, message))
}

pub(crate) fn as_literal(expr: &Expr) -> Option<(Sign, &Lit)> {
    match unwrap_parens(expr) {
        Expr::Lit(ExprLit { lit, .. }) => Some((Sign::Plus, lit)),
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => match unwrap_parens(expr) {
            Expr::Lit(ExprLit { lit, .. }) => Some((Sign::Minus, lit)),
            _ => None,
        },
        _ => None,
    }
}

pub(crate) fn as_path(expr: &Expr) -> Option<&ExprPath> {
    match unwrap_parens(expr) {
        Expr::Path(path) => Some(path),
        _ => None,
    }
}

/// The expression without the parentheses around it, and without the invisible ones around the
/// fragments that `macro_rules!` inserts.
pub(crate) fn unwrap_parens(expr: &Expr) -> &Expr {
    match expr {
        Expr::Group(group) => unwrap_parens(&group.expr),
        Expr::Paren(paren) => unwrap_parens(&paren.expr),
        other => other,
    }
}

fn parse_u64(argument: ArgumentName, int: &LitInt) -> Result<u64, String> {
    let digits = int.base10_digits();
    match int.suffix() {
        "" | "u64" => digits.parse().ok().filter(|number| *number <= MOST).ok_or_else(|| {
            format!("`{argument}` can be at most {MOST}: count in a larger unit, such as thousands")
        }),
        suffix => Err(format!("`{argument}` has type `u64`: write `{digits}`, without `{suffix}`")),
    }
}
