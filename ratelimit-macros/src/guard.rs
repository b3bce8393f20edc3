//! What the attribute puts in front of a body, understood and free of contradictions.

use syn::{Expr, Path};

use crate::args::Args;
use crate::diagnostics::Reported;
use crate::function::Function;
use crate::key::Key;
use crate::limit::Limit;
use crate::policy::Policy;
use crate::values::{as_literal, as_path, peel, whole_number};

pub(crate) struct Guard {
    pub(crate) limit: Limit,
    pub(crate) policy: Policy,
    pub(crate) key: Key,
    /// `None`: one unit.
    pub(crate) cost: Option<Expr>,
    /// Makes the return value of a refused call.
    pub(crate) on_limited: Option<Expr>,
    /// Where the runtime is, if not at `::ratelimit_runtime`.
    pub(crate) runtime: Option<Path>,
}

impl Guard {
    /// Without a function, what depends on it goes unchecked, and the rest is still reported.
    pub(crate) fn validate(args: &Args<'_>, function: Option<&Function>) -> Result<Self, Reported> {
        let limit = Limit::validate(args);
        let policy = Policy::validate(args);
        let key = args.optional("key", |expr| Key::read(expr, function));
        let capacity = limit.as_ref().ok().and_then(Limit::capacity);
        let cost = args.optional("cost", |expr| read_cost(expr, capacity));
        let on_limited = args.optional("on_limited", read_on_limited);
        let runtime = args.optional("crate", read_runtime);
        Ok(Guard {
            limit: limit?,
            policy: policy?,
            key: key.unwrap_or(Ok(Key::None))?,
            cost: cost.transpose()?,
            on_limited: on_limited.transpose()?,
            runtime: runtime.transpose()?,
        })
    }
}

fn read_cost(expr: &Expr, capacity: Option<(u32, &str)>) -> syn::Result<Expr> {
    let zero = "`cost = 0` takes nothing, so nothing would be limited: the smallest is 1";
    let cost = whole_number("cost", zero, expr)?;
    if let (Some(cost), Some((capacity, argument))) = (cost, capacity)
        && cost > capacity
    {
        let message = format!(
            "a call that costs {cost} is never admitted, because at most {capacity} can be: lower \
             `cost` or raise `{argument}`"
        );
        return Err(syn::Error::new_spanned(expr, message));
    }
    Ok(expr.clone())
}

fn read_on_limited(expr: &Expr) -> syn::Result<Expr> {
    let message = match peel(expr) {
        Expr::Path(_) => return Ok(expr.clone()),
        Expr::Closure(closure) if closure.asyncness.is_none() => return Ok(expr.clone()),
        Expr::Closure(_) => "`on_limited` is called and not awaited: remove `async`",
        _ => {
            "`on_limited` is a function or a closure that takes the rejection, such as \
              `on_limited = |rejection| …`"
        }
    };
    Err(syn::Error::new_spanned(expr, message))
}

fn read_runtime(expr: &Expr) -> syn::Result<Path> {
    match as_path(expr) {
        Some(path) if path.qself.is_none() => Ok(path.path.clone()),
        _ => {
            let quotes = if as_literal(expr).is_some() { ", without quotes" } else { "" };
            let message = format!(
                "`crate` is the path of the runtime: write it as in `crate = my_crate::ratelimit`\
                 {quotes}"
            );
            Err(syn::Error::new_spanned(expr, message))
        }
    }
}
