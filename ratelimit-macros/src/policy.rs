//! What an attribute says beyond the limit itself: who counts together, what to do when Redis
//! cannot decide, whether to refuse at all, and whether to wait first.

use syn::Expr;

use crate::args::Args;
use crate::diagnostics::Reported;
use crate::values::{self, Constant};

/// `None` is what the runtime does by itself.
pub(crate) struct Policy {
    /// The variant of `Scope`.
    pub(crate) scope: Option<&'static str>,
    /// The variant of `OnError`.
    pub(crate) on_error: Option<&'static str>,
    pub(crate) shadow: Option<bool>,
    pub(crate) wait: Option<Constant<u64>>,
}

impl Policy {
    pub(crate) fn validate(args: &Args<'_>) -> Result<Self, Reported> {
        let scope = args.optional("scope", read_scope);
        let on_error = args.optional("on_error", read_on_error);
        let shadow = args.optional("shadow", |expr| values::flag("shadow", expr));
        if let (Some(Ok("Process")), Some(on_error)) = (&scope, args.get("on_error")) {
            let message = "`on_error` is about Redis, and `scope = \"process\"` never asks it: \
                           remove one of the two";
            args.errors.report(syn::Error::new_spanned(on_error, message));
        }
        let wait = args.optional("wait", |expr| Constant::duration("wait", expr));
        if let (Some(Ok(true)), Some(wait)) = (&shadow, args.get("wait")) {
            let message = "`shadow = true` refuses nothing, so there is nothing to wait for: \
                           remove one of the two";
            args.errors.report(syn::Error::new_spanned(wait, message));
        }
        if let Some(lease) = args.get("lease") {
            let reject = |message| {
                args.errors.report(syn::Error::new_spanned(lease, message));
            };
            if let Some(Ok("Process")) = &scope {
                reject(
                    "`lease` saves questions to Redis, and `scope = \"process\"` asks none: remove one \
                     of the two",
                );
            }
            if wait.is_some() {
                reject(
                    "a call that waits books its own moment, and what is leased would be spent out \
                     of turn: remove `lease` or `wait`",
                );
            }
        }
        Ok(Policy {
            scope: scope.transpose()?,
            on_error: on_error.transpose()?,
            shadow: shadow.transpose()?,
            wait: wait.transpose()?,
        })
    }
}

fn read_scope(expr: &Expr) -> syn::Result<&'static str> {
    values::choice("scope", "scope", [("global", "Global"), ("process", "Process")], expr)
}

fn read_on_error(expr: &Expr) -> syn::Result<&'static str> {
    let policies = [("local", "Local"), ("allow", "Allow"), ("deny", "Deny")];
    values::choice("on_error", "policy", policies, expr)
}
