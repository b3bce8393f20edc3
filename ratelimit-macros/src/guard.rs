//! The check that the attribute puts in front of a body: which charges it makes, and what it does
//! with a rejection.

use syn::{Expr, Lit, LitStr, Path, parse_quote, parse_str};

use crate::after_call::{AfterCall, Correction};
use crate::args::Args;
use crate::argument::ArgumentName;
use crate::diagnostics::written;
use crate::exclusions;
use crate::function::Function;
use crate::key::Key;
use crate::limit::{Kind, Limit, read_name};
use crate::policy::Policy;
use crate::values::{Value, as_literal, as_path, flag, unwrap_parens, whole_number};

pub(crate) struct Guard {
    /// The charges of one call, which are decided together.
    pub(crate) charges: Vec<Charge>,
    /// What is written beside `limit(…)` groups. Without groups, there is one charge.
    pub(crate) shared: Option<Shared>,
    pub(crate) policy: Policy,
    /// The limiter that decides, if it is not the one of the process.
    pub(crate) limiter: Option<Expr>,
    /// Makes the return value of a rejected call.
    pub(crate) on_limited: Option<Expr>,
    /// The path of the runtime, if it is not `::ratelimit_runtime`.
    pub(crate) runtime: Option<Path>,
}

/// The name, the key and the cost of the charges that do not have their own.
pub(crate) struct Shared {
    pub(crate) name: Option<LitStr>,
    pub(crate) key: Option<Key>,
    pub(crate) cost: Option<Expr>,
}

pub(crate) struct Charge {
    pub(crate) limit: Limit,
    /// `None`: all calls share one count.
    pub(crate) key: Option<Key>,
    /// `None`: one unit.
    pub(crate) cost: Option<Expr>,
    pub(crate) once: Option<Once>,
    pub(crate) after_call: AfterCall,
}

/// The id of a call that is charged once.
pub(crate) struct Once {
    pub(crate) id: Key,
    /// How long it is remembered.
    pub(crate) within: Value,
}

impl Guard {
    /// Without a function, the checks that depend on it are skipped.
    pub(crate) fn validate(args: &Args<'_>, function: Option<&Function>) -> Option<Self> {
        exclusions::check(args, args);
        args.groups.iter().for_each(|group| exclusions::check(group, args));
        let charges = if args.groups.is_empty() {
            Charge::read(args, function).map(|charge| (vec![charge], None))
        } else {
            read_groups(args, function).map(|(charges, shared)| (charges, Some(shared)))
        };
        let policy = Policy::read(args);
        let limiter = args.optional(ArgumentName::Limiter, read_limiter);
        let on_limited = args.optional(ArgumentName::OnLimited, read_on_limited);
        let runtime = args.optional(ArgumentName::Crate, read_runtime);
        if let Some(function) = function.filter(|it| it.returns_impl_trait())
            && args.get(ArgumentName::OnLimited).is_none()
        {
            let cause = "`-> impl Trait` and without `on_limited`";
            args.errors.record(function.require_no_track_caller(cause, "write `on_limited`"));
        }
        let (charges, shared) = charges?;
        Some(Guard { charges, shared, policy, limiter, on_limited, runtime })
    }
}

/// Reads the charges of `limit(…)` groups, and what they share.
fn read_groups(args: &Args<'_>, function: Option<&Function>) -> Option<(Vec<Charge>, Shared)> {
    let name = args.optional(ArgumentName::Name, read_name);
    let charges: Vec<_> = args.groups.iter().map(|group| Charge::read(group, function)).collect();
    check_counts_differ(args, &charges);
    check_permits_differ(args, &charges);
    // The shared cost has to fit the smallest capacity that is known.
    let sharing = charges.iter().flatten().filter(|charge| charge.cost.is_none());
    let capacity =
        sharing.filter_map(|charge| charge.limit.capacity()).min_by_key(|(capacity, _)| *capacity);
    let (key, cost) = read_key_and_cost(args, function, capacity);
    let after_call = AfterCall::read(args, function);
    let hidden = args.optional(ArgumentName::Hidden, flag);
    let mut charges = charges.into_iter().collect::<Option<Vec<_>>>()?;
    for charge in &mut charges {
        charge.limit.hidden = charge.limit.hidden.or(hidden);
        charge.after_call.inherit(&after_call);
    }
    Some((charges, Shared { name, key, cost }))
}

/// Rejects two limits with one name, algorithm, period and align: they would share one count.
fn check_counts_differ(args: &Args<'_>, charges: &[Option<Charge>]) {
    let mut counts = Vec::new();
    for Charge { limit, .. } in charges.iter().flatten() {
        let Some(name) = &limit.name else { continue };
        let value = name.value();
        let (rate, what) = match &limit.kind {
            Kind::Rate { algorithm, period: Value { known: Some(period_us), .. }, unit } => (
                Some((*algorithm, *period_us, *unit, limit.written_align())),
                format!("named `{value}` have the same algorithm, period and align"),
            ),
            Kind::InFlight => (None, format!("of calls in flight are named `{value}`")),
            Kind::Rate { .. } | Kind::Constant(_) => continue,
        };
        let count = (value, rate);
        if counts.contains(&count) {
            let message = format!(
                "two limits {what}, so they share one count: give one of them another `name`"
            );
            args.errors.report(syn::Error::new(name.span(), message));
        }
        counts.push(count);
    }
}

/// Rejects two permits with one name: the body could not use the first.
fn check_permits_differ(args: &Args<'_>, charges: &[Option<Charge>]) {
    let mut names = Vec::new();
    for charge in charges.iter().flatten() {
        let Some(Correction::Permit(name)) = &charge.after_call.correction else { continue };
        if names.contains(&name) {
            let message =
                format!("two permits are named `{name}`: choose another name for one of them");
            args.errors.report(syn::Error::new(name.span(), message));
        }
        names.push(name);
    }
}

impl Charge {
    /// Reads the charge; `None` if an argument of it is missing or wrong.
    fn read(args: &Args<'_>, function: Option<&Function>) -> Option<Self> {
        let limit = Limit::read(args);
        let errors = args.errors.count();
        let capacity = limit.as_ref().and_then(Limit::capacity);
        let (key, cost) = read_key_and_cost(args, function, capacity);
        let mut after_call = AfterCall::read(args, function);
        let once = limit.as_ref().and_then(|limit| Once::read(args, function, &limit.kind));
        let limit = limit.filter(|_| args.errors.count() == errors)?;
        after_call.holds = matches!(limit.kind, Kind::InFlight);
        Some(Self { limit, key, cost, once, after_call })
    }
}

impl Once {
    /// `kind` is the kind of the limit, whose period is the default of `within`.
    fn read(args: &Args<'_>, function: Option<&Function>, kind: &Kind) -> Option<Self> {
        let id = args.optional(ArgumentName::Once, |_, expr| match as_literal(expr) {
            Some((_, Lit::Str(text))) if !text.value().contains('{') => {
                let message = "`once` is the id of the call: write an expression, such as `once = request_id`, or a \
                               format string, such as `once = \"{request_id}:{part}\"`";
                Err(syn::Error::new_spanned(expr, message))
            }
            _ => Key::read(expr, function),
        });
        let within = args.optional(ArgumentName::Within, Value::duration);
        let within = within.or_else(|| match kind {
            Kind::Rate { period, unit: None, .. } => Some(period.clone()),
            _ => None,
        });
        if within.is_none() && matches!(kind, Kind::Rate { .. }) {
            let message = "a period of the calendar has no length: write how long an id is remembered, such as \
                           `within = \"30d\"`";
            args.reject(ArgumentName::Once, message);
        }
        Some(Self { id: id?, within: within? })
    }
}

/// `capacity` is the largest cost that can be admitted, and the argument that sets it.
fn read_key_and_cost(
    args: &Args<'_>,
    function: Option<&Function>,
    capacity: Option<(u64, ArgumentName)>,
) -> (Option<Key>, Option<Expr>) {
    let key = args.optional(ArgumentName::Key, |_, expr| Key::read(expr, function));
    let cost = args.optional(ArgumentName::Cost, |name, expr| read_cost(name, expr, capacity));
    (key, cost)
}

fn read_cost(
    name: ArgumentName,
    expr: &Expr,
    capacity: Option<(u64, ArgumentName)>,
) -> syn::Result<Expr> {
    let zero = "`cost = 0` would charge nothing, so no call is limited: the smallest value is 1";
    let cost = whole_number(name, zero, expr)?;
    if let (Some(cost), Some((capacity, argument))) = (cost, capacity)
        && cost > capacity
    {
        let message = format!(
            "a call with `cost = {cost}` is never admitted, because at most {capacity} can be \
             admitted at once: lower `cost` or raise `{argument}`"
        );
        return Err(syn::Error::new_spanned(expr, message));
    }
    Ok(expr.clone())
}

fn read_limiter(name: ArgumentName, expr: &Expr) -> syn::Result<Expr> {
    if as_literal(expr).is_some() {
        let message = format!(
            "`limiter` must be an expression that gives a `RateLimiter`, such as `{}`",
            name.example()
        );
        return Err(syn::Error::new_spanned(expr, message));
    }
    Ok(expr.clone())
}

fn read_on_limited(name: ArgumentName, expr: &Expr) -> syn::Result<Expr> {
    let message = match unwrap_parens(expr) {
        Expr::Path(_) => return Ok(expr.clone()),
        Expr::Closure(closure)
            if closure.asyncness.is_none() && !matches!(*closure.body, Expr::Async(_)) =>
        {
            return Ok(expr.clone());
        }
        Expr::Closure(_) => "the result of `on_limited` is not awaited: remove `async`".to_owned(),
        other => {
            let advice = match (as_literal(other), other.clone()) {
                (Some((_, Lit::Str(name))), _) if parse_str::<Path>(&name.value()).is_ok() => {
                    format!("`{}`, without quotes", name.value())
                }
                (Some((_, Lit::Str(text))), _) => format!("`|_| {}.into()`", text.token()),
                (_, Expr::Call(mut call)) => {
                    call.args.insert(0, parse_quote!(rejection));
                    format!("`|rejection| {}`", written(&call))
                }
                (_, Expr::MethodCall(mut call)) => {
                    call.args.insert(0, parse_quote!(rejection));
                    format!("`|rejection| {}`", written(&call))
                }
                _ => format!("`{}`", name.example()),
            };
            format!(
                "`on_limited` must be a function or a closure that takes the rejection, such as {advice}"
            )
        }
    };
    Err(syn::Error::new_spanned(expr, message))
}

fn read_runtime(name: ArgumentName, expr: &Expr) -> syn::Result<Path> {
    match as_path(expr) {
        Some(path) if path.qself.is_none() => Ok(path.path.clone()),
        _ => {
            let quotes = if as_literal(expr).is_some() { ", without quotes" } else { "" };
            let message = format!(
                "`crate` must be the path of the runtime, such as `{}`{quotes}",
                name.example()
            );
            Err(syn::Error::new_spanned(expr, message))
        }
    }
}
