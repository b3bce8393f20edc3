//! The policy of the limits of an attribute: `scope`, `on_error`, `shadow`, `wait`. A new policy changes this file,
//! `argument.rs` and `expand/limit.rs`.

use syn::{Expr, Lit};

use crate::args::Args;
use crate::argument::ArgumentName;
use crate::values::{self, Value};
use crate::words::word_enum;

/// The policy of an attribute. `None` leaves the default of the runtime.
pub(crate) struct Policy {
    pub(crate) scope: Option<Scope>,
    pub(crate) on_error: Option<OnError>,
    pub(crate) shadow: Option<bool>,
    pub(crate) wait: Option<Value>,
}

word_enum! {
    /// Which processes share the count.
    Scope {
        Global = "global",
        Process = "process",
    }
}

word_enum! {
    /// What happens to a call when Redis cannot decide.
    OnError {
        Local = "local",
        Allow = "allow",
        Deny = "deny",
    }
}

impl Policy {
    pub(crate) fn read(args: &Args<'_>) -> Self {
        Policy {
            scope: args.optional(ArgumentName::Scope, values::choice),
            on_error: args.optional(ArgumentName::OnError, values::choice),
            shadow: args.optional(ArgumentName::Shadow, values::flag),
            wait: args.optional(ArgumentName::Wait, read_wait),
        }
    }
}

fn read_wait(name: ArgumentName, expr: &Expr) -> syn::Result<Value> {
    if let Some((_, Lit::Int(number))) = values::as_literal(expr)
        && number.base10_digits() == "0"
    {
        let message = "`wait = 0` lets no call wait: remove `wait`";
        return Err(syn::Error::new_spanned(expr, message));
    }
    Value::duration(name, expr)
}
