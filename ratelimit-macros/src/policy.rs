//! Reads the policy of a limit and writes its setters: `scope`, `on_error`, `shadow`, `wait`, `hidden`. A new
//! policy changes this file and `argument.rs`.

use syn::{Expr, Lit};

use crate::args::Args;
use crate::argument::ArgumentName;
use crate::diagnostics::ReportedError;
use crate::values::{self, Constant};
use crate::words::{self, Word, word_enum};

/// The policy of an attribute. `None` leaves the default of the runtime.
pub(crate) struct Policy {
    pub(crate) scope: Option<Scope>,
    pub(crate) on_error: Option<OnError>,
    pub(crate) shadow: Option<bool>,
    pub(crate) wait: Option<Constant<u64>>,
}

/// The policy of one limit of an attribute. `None` leaves the setting of the limit.
#[derive(Default)]
pub(crate) struct LimitPolicy {
    /// Whether responses do not report the limit.
    hidden: Option<bool>,
}

/// A setting of a limit: the method of `Limit` that sets it, and the argument of the method.
pub(crate) struct Setting<'a> {
    pub(crate) method: &'static str,
    pub(crate) value: SettingValue<'a>,
}

pub(crate) enum SettingValue<'a> {
    Flag(bool),
    /// A variant of an enum of the runtime.
    Variant(&'static str, &'static str),
    Duration(&'a Constant<u64>),
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
    pub(crate) fn validate(args: &Args<'_>) -> Result<Self, ReportedError> {
        let scope = args.optional(ArgumentName::Scope, read_scope);
        let on_error = args.optional(ArgumentName::OnError, read_on_error);
        let shadow =
            args.optional(ArgumentName::Shadow, |expr| values::flag(ArgumentName::Shadow, expr));
        let wait = args.optional(ArgumentName::Wait, read_wait);

        // Reported at the argument that has no effect.
        if let Some(Ok(Scope::Process)) = scope {
            for name in [ArgumentName::OnError, ArgumentName::Lease] {
                let message = format!(
                    "`{name}` has no effect with `scope = \"process\"`, which does not use Redis: \
                     remove one of the two"
                );
                args.reject(name, &message);
            }
        }
        if let Some(Ok(true)) = shadow {
            let message = "`wait` has no effect with `shadow = true`, which rejects no call: \
                           remove one of the two";
            args.reject(ArgumentName::Wait, message);
        }
        if wait.is_some() {
            let message = "`lease` cannot be combined with `wait`, because leased units would be \
                           spent out of turn: remove one of the two";
            args.reject(ArgumentName::Lease, message);
        }
        Ok(Policy {
            scope: scope.transpose()?,
            on_error: on_error.transpose()?,
            shadow: shadow.transpose()?,
            wait: wait.transpose()?,
        })
    }
}

impl LimitPolicy {
    pub(crate) fn validate(args: &Args<'_>) -> Result<Self, ReportedError> {
        let name = ArgumentName::Hidden;
        let hidden = args.optional(name, |expr| values::flag(name, expr));
        Ok(Self { hidden: hidden.transpose()? })
    }

    /// Takes the settings that this limit does not have from those beside the groups.
    pub(crate) fn inherit(&mut self, shared: &Self) {
        let Self { hidden } = self;
        *hidden = hidden.or(shared.hidden);
    }
}

impl Policy {
    /// The settings of a limit of this attribute.
    pub(crate) fn settings<'a>(&'a self, own: &LimitPolicy) -> Vec<Setting<'a>> {
        let Self { scope, on_error, shadow, wait } = self;
        let LimitPolicy { hidden } = own;
        let settings = [
            scope.map(|it| ("scope", SettingValue::Variant("Scope", it.variant()))),
            on_error.map(|it| ("on_error", SettingValue::Variant("OnError", it.variant()))),
            wait.as_ref().map(|it| ("wait", SettingValue::Duration(it))),
            shadow.map(|it| ("shadow", SettingValue::Flag(it))),
            hidden.map(|it| ("hidden", SettingValue::Flag(it))),
        ];
        settings.into_iter().flatten().map(|(method, value)| Setting { method, value }).collect()
    }
}

fn read_wait(expr: &Expr) -> syn::Result<Constant<u64>> {
    if let Some((_, Lit::Int(number))) = values::as_literal(expr)
        && number.base10_digits() == "0"
    {
        let message = "`wait = 0` lets no call wait: remove `wait`";
        return Err(syn::Error::new_spanned(expr, message));
    }
    Constant::duration(ArgumentName::Wait, expr)
}

fn read_scope(expr: &Expr) -> syn::Result<Scope> {
    words::choice(ArgumentName::Scope, "scope", expr)
}

fn read_on_error(expr: &Expr) -> syn::Result<OnError> {
    words::choice(ArgumentName::OnError, "policy", expr)
}
