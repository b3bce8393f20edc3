//! What the attribute puts in front of a body, understood and free of contradictions.

use syn::{Expr, LitStr, Path};

use crate::args::{Args, NOT_TOGETHER};
use crate::diagnostics::Reported;
use crate::function::Function;
use crate::key::Key;
use crate::limit::{Limit, read_name};
use crate::policy::Policy;
use crate::values::{as_literal, as_path, peel, whole_number};

pub(crate) struct Guard {
    pub(crate) rules: Rules,
    pub(crate) policy: Policy,
    /// Makes the return value of a refused call.
    pub(crate) on_limited: Option<Expr>,
    /// Where the runtime is, if not at `::ratelimit_runtime`.
    pub(crate) runtime: Option<Path>,
}

/// The limits, and what a call has there.
pub(crate) enum Rules {
    One(Box<Rule>),
    Several(Box<Several>),
}

/// Limits that are decided together.
pub(crate) struct Several {
    pub(crate) name: Option<LitStr>,
    pub(crate) rules: Vec<Rule>,
    /// What goes for the rules that do not say it themselves.
    pub(crate) default: Charge,
}

pub(crate) struct Rule {
    pub(crate) limit: Limit,
    pub(crate) charge: Charge,
}

/// The key that is charged, and the cost.
pub(crate) struct Charge {
    /// `None`: all calls together.
    pub(crate) key: Option<Key>,
    /// `None`: one unit.
    pub(crate) cost: Option<Expr>,
}

impl Guard {
    /// Without a function, what depends on it goes unchecked, and the rest is still reported.
    pub(crate) fn validate(args: &Args<'_>, function: Option<&Function>) -> Result<Self, Reported> {
        let rules = if args.groups.is_empty() {
            Rule::validate(args, function).map(|rule| Rules::One(Box::new(rule)))
        } else {
            Several::validate(args, function).map(|several| Rules::Several(Box::new(several)))
        };
        let policy = Policy::validate(args);
        let on_limited = args.optional("on_limited", read_on_limited);
        let runtime = args.optional("crate", read_runtime);
        Ok(Guard {
            rules: rules?,
            policy: policy?,
            on_limited: on_limited.transpose()?,
            runtime: runtime.transpose()?,
        })
    }
}

impl Several {
    fn validate(args: &Args<'_>, function: Option<&Function>) -> Result<Self, Reported> {
        let mut misplaced = Ok(());
        for word in ["period", "threshold", "algo", "burst", "align"] {
            if let Some(argument) = args.get(word) {
                let message = format!("`{word}` belongs to one limit: move it into `limit(…)`");
                misplaced = Err(args.errors.report(syn::Error::new_spanned(argument, message)));
            }
        }
        if let Some(argument) = args.get("lease") {
            let error = syn::Error::new_spanned(argument, NOT_TOGETHER);
            misplaced = Err(args.errors.report(error));
        }
        let name = args.optional("name", read_name).transpose();
        let rules: Vec<_> =
            args.groups.iter().map(|group| Rule::validate(group, function)).collect();
        names_are_apart(args, &rules);
        // The smallest capacity that is known is the first that the common cost exceeds.
        let sharing = rules.iter().flatten().filter(|rule| rule.charge.cost.is_none());
        let capacity = sharing.filter_map(|rule| rule.limit.capacity()).min();
        let default = Charge::validate(args, function, capacity);
        misplaced?;
        Ok(Self {
            name: name?,
            rules: rules.into_iter().collect::<Result<_, _>>()?,
            default: default?,
        })
    }
}

/// Two limits of one name, algorithm, period and align are one count, which cannot have two thresholds.
fn names_are_apart(args: &Args<'_>, rules: &[Result<Rule, Reported>]) {
    let mut counts = Vec::new();
    for rule in rules.iter().flatten() {
        let Limit { name: Some(name), algorithm, period, align, .. } = &rule.limit else {
            continue;
        };
        let align = align.map(|offset| offset.minutes);
        let count = (name.value(), algorithm.name(), period.known, align);
        if period.known.is_some() && counts.contains(&count) {
            let message = format!(
                "two limits named `{}` have one algorithm, period and align, and so one count: give \
                 one of them another `name`",
                count.0
            );
            args.errors.report(syn::Error::new(name.span(), message));
        }
        counts.push(count);
    }
}

impl Rule {
    fn validate(args: &Args<'_>, function: Option<&Function>) -> Result<Self, Reported> {
        let limit = Limit::validate(args);
        let capacity = limit.as_ref().ok().and_then(Limit::capacity);
        let charge = Charge::validate(args, function, capacity);
        Ok(Self { limit: limit?, charge: charge? })
    }
}

impl Charge {
    fn validate(
        args: &Args<'_>,
        function: Option<&Function>,
        capacity: Option<(u32, &str)>,
    ) -> Result<Self, Reported> {
        let key = args.optional("key", |expr| Key::read(expr, function));
        let cost = args.optional("cost", |expr| read_cost(expr, capacity));
        Ok(Self { key: key.transpose()?, cost: cost.transpose()? })
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
