//! The value of `align`: UTC, or an offset from it.

use syn::Expr;

use crate::argument::ArgumentName;
use crate::text::offset::offset_minutes;
use crate::values;

/// How far local time is ahead of UTC.
#[derive(Clone, Copy)]
pub(crate) struct Offset {
    pub(crate) minutes: i32,
}

impl Offset {
    pub(crate) fn read(expr: &Expr) -> syn::Result<Self> {
        let text = values::text(ArgumentName::Align, expr)?;
        match offset_minutes(&text.value()) {
            Ok(minutes) => Ok(Offset { minutes }),
            Err(message) => Err(syn::Error::new(text.span(), message)),
        }
    }
}
