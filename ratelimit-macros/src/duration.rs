//! Reads a duration of the attribute: a literal, or the path of a `const` of type `Duration`.

use syn::{Expr, Lit};

use crate::argument::ArgumentName;
use crate::text::duration::{NEGATIVE, parse_seconds, parse_text};
use crate::values::{Constant, Sign, as_literal, as_path};

impl Constant<u64> {
    /// A duration in microseconds, which is known if it is a literal.
    pub(crate) fn duration(argument: ArgumentName, expr: &Expr) -> syn::Result<Self> {
        let known = match as_literal(expr) {
            Some((Sign::Minus, _)) => Err(NEGATIVE.to_owned()),
            Some((Sign::Plus, lit)) => parse_literal(argument, lit).map(Some),
            None if as_path(expr).is_some() => Ok(None),
            None => Err(no_duration(argument)),
        };
        match known {
            Ok(known) => Ok(Constant { expr: expr.clone(), known }),
            Err(message) => Err(syn::Error::new_spanned(expr, message)),
        }
    }
}

fn no_duration(argument: ArgumentName) -> String {
    format!(
        "`{argument}` must be a number of seconds, a string such as `\"30s\"`, or the path of a \
         `const` of type `Duration`"
    )
}

fn parse_literal(argument: ArgumentName, lit: &Lit) -> Result<u64, String> {
    match lit {
        Lit::Str(text) => parse_text(&text.value()),
        Lit::Int(int) => parse_seconds(int.base10_digits(), int.suffix()),
        Lit::Float(float) => parse_seconds(float.base10_digits(), float.suffix()),
        _ => Err(no_duration(argument)),
    }
}
