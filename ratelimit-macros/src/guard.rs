//! The check that the attribute puts in front of a body: which charges it makes, and what it does
//! with a rejection.

use syn::{Expr, Lit, LitStr, Path, parse_quote, parse_str};

use crate::after_call::{AfterCall, Correction};
use crate::args::{Args, LEASE_WITH_GROUPS};
use crate::argument::{ArgumentName, Place};
use crate::diagnostics::{ReportedError, written};
use crate::function::Function;
use crate::in_flight::InFlight;
use crate::key::Key;
use crate::limit::{Limit, read_name};
use crate::limit_source::LimitSource;
use crate::policy::{LimitPolicy, Policy};
use crate::values::{as_literal, as_path, unwrap_parens, whole_number};
use crate::words::Word;

pub(crate) struct Guard {
    pub(crate) charges: Charges,
    pub(crate) policy: Policy,
    /// The limiter that decides, if it is not the one of the process.
    pub(crate) limiter: Option<Expr>,
    /// Makes the return value of a rejected call.
    pub(crate) on_limited: Option<Expr>,
    /// The path of the runtime, if it is not `::ratelimit_runtime`.
    pub(crate) runtime: Option<Path>,
}

/// The charges of one call.
pub(crate) enum Charges {
    One(Box<Charge>),
    Several(Box<ChargeGroup>),
}

/// The charges of an attribute with `limit(…)` groups, which are decided together.
pub(crate) struct ChargeGroup {
    pub(crate) name: Option<LitStr>,
    pub(crate) charges: Vec<Charge>,
    /// The key and the cost for the limits that do not have their own.
    pub(crate) shared: KeyAndCost,
    /// What happens after the call to the charges that do not say it themselves.
    pub(crate) shared_after_call: AfterCall,
}

pub(crate) struct Charge {
    pub(crate) limit: LimitSource,
    pub(crate) policy: LimitPolicy,
    pub(crate) key_and_cost: KeyAndCost,
    pub(crate) after_call: AfterCall,
}

pub(crate) struct KeyAndCost {
    /// `None`: all calls share one count.
    pub(crate) key: Option<Key>,
    /// `None`: one unit.
    pub(crate) cost: Option<Expr>,
}

impl Guard {
    /// Without a function, the checks that depend on it are skipped.
    pub(crate) fn validate(
        args: &Args<'_>,
        function: Option<&Function>,
    ) -> Result<Self, ReportedError> {
        let charges = if args.groups.is_empty() {
            Charge::validate(args, args, function).map(|charge| Charges::One(Box::new(charge)))
        } else {
            ChargeGroup::validate(args, function).map(|group| Charges::Several(Box::new(group)))
        };
        let policy = Policy::validate(args);
        let limiter = args.optional(ArgumentName::Limiter, read_limiter);
        let on_limited = args.optional(ArgumentName::OnLimited, read_on_limited);
        let runtime = args.optional(ArgumentName::Crate, read_runtime);
        if let Some(function) = function.filter(|it| it.returns_impl_trait())
            && on_limited.is_none()
        {
            let cause = "`-> impl Trait` and without `on_limited`";
            args.errors.record(function.require_no_track_caller(cause, "write `on_limited`"))?;
        }
        Ok(Guard {
            charges: charges?,
            policy: policy?,
            limiter: limiter.transpose()?,
            on_limited: on_limited.transpose()?,
            runtime: runtime.transpose()?,
        })
    }
}

impl Charges {
    /// What happens after the call to each charge, in their order.
    pub(crate) fn after_calls(&self) -> Vec<AfterCall> {
        match self {
            Self::One(charge) => vec![charge.after_call.clone()],
            Self::Several(group) => group
                .charges
                .iter()
                .map(|charge| charge.after_call.or(&group.shared_after_call))
                .collect(),
        }
    }
}

impl ChargeGroup {
    fn validate(args: &Args<'_>, function: Option<&Function>) -> Result<Self, ReportedError> {
        let placed = check_places(args);
        let name = args.optional(ArgumentName::Name, read_name).transpose();
        let charges: Vec<_> =
            args.groups.iter().map(|group| Charge::validate(group, args, function)).collect();
        check_counts_differ(args, &charges);
        check_permits_differ(args, &charges);
        // The shared cost has to fit the smallest capacity that is known.
        let sharing = charges.iter().flatten().filter(|it| it.key_and_cost.cost.is_none());
        let capacity = sharing
            .filter_map(|charge| charge.limit.capacity())
            .min_by_key(|(capacity, _)| *capacity);
        let shared = KeyAndCost::validate(args, function, capacity);
        let shared_after_call = AfterCall::validate(args, function);
        let shared_policy = LimitPolicy::validate(args);
        placed?;
        let mut charges = charges.into_iter().collect::<Result<Vec<_>, _>>()?;
        let shared_policy = shared_policy?;
        for charge in &mut charges {
            charge.policy.inherit(&shared_policy);
        }
        Ok(Self { name: name?, charges, shared: shared?, shared_after_call: shared_after_call? })
    }
}

/// The message for a `close` beside groups: it would close a key of each group, also the one that all calls share.
const CLOSE_BESIDE_GROUPS: &str = "`close` closes the key of one limit: move it into the `limit(…)` whose \
                                   key it closes";

/// Rejects the arguments beside `limit(..)` groups that belong to one limit.
fn check_places(args: &Args<'_>) -> Result<(), ReportedError> {
    let mut outcome = Ok(());
    for name in ArgumentName::ALL {
        let message = match name.place() {
            Place::Anywhere | Place::Attribute => continue,
            Place::OneLimit if *name == ArgumentName::Close => CLOSE_BESIDE_GROUPS.to_owned(),
            Place::OneLimit => format!("`{name}` describes one limit: move it into `limit(…)`"),
            Place::WithoutGroups => LEASE_WITH_GROUPS.to_owned(),
        };
        if let Some(argument) = args.get(*name) {
            outcome = Err(args.errors.report(syn::Error::new_spanned(argument, message)));
        }
    }
    outcome
}

/// Rejects two limits with one name, algorithm, period and align: they would share one count.
fn check_counts_differ(args: &Args<'_>, charges: &[Result<Charge, ReportedError>]) {
    let mut counts = Vec::new();
    let mut in_flight: Vec<String> = Vec::new();
    for charge in charges.iter().flatten() {
        if let LimitSource::InFlight(InFlight { name: Some(name), .. }) = &charge.limit {
            let value = name.value();
            if in_flight.contains(&value) {
                let message = format!(
                    "two limits of calls in flight are named `{value}`, so they share one count: give one of them \
                     another `name`"
                );
                args.errors.report(syn::Error::new(name.span(), message));
            }
            in_flight.push(value);
        }
        let LimitSource::Arguments(limit) = &charge.limit else { continue };
        let Limit { name: Some(name), algorithm, period, align, .. } = limit else { continue };
        let align = align.map(|offset| offset.minutes);
        let count = (name.value(), *algorithm, period.known, align);
        if period.known.is_some() && counts.contains(&count) {
            let message = format!(
                "two limits named `{}` have the same algorithm, period and align, so they share one \
                 count: give one of them another `name`",
                count.0
            );
            args.errors.report(syn::Error::new(name.span(), message));
        }
        counts.push(count);
    }
}

/// Rejects two permits with one name: the body could not use the first.
fn check_permits_differ(args: &Args<'_>, charges: &[Result<Charge, ReportedError>]) {
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
    /// `attribute` has the arguments beside the groups, or the same as `args`.
    fn validate(
        args: &Args<'_>,
        attribute: &Args<'_>,
        function: Option<&Function>,
    ) -> Result<Self, ReportedError> {
        let limit = LimitSource::validate(args, attribute);
        let capacity = limit.as_ref().ok().and_then(LimitSource::capacity);
        let policy = LimitPolicy::validate(args);
        let key_and_cost = KeyAndCost::validate(args, function, capacity);
        let (limit, mut after_call) = (limit, AfterCall::validate(args, function)?);
        let limit = limit?;
        if let LimitSource::InFlight(_) = limit {
            after_call.holds = true;
        }
        Ok(Self { limit, policy: policy?, key_and_cost: key_and_cost?, after_call })
    }
}

impl KeyAndCost {
    /// `capacity` is the largest cost that can be admitted, and the argument that sets it.
    fn validate(
        args: &Args<'_>,
        function: Option<&Function>,
        capacity: Option<(u32, ArgumentName)>,
    ) -> Result<Self, ReportedError> {
        let key = args.optional(ArgumentName::Key, |expr| Key::read(expr, function));
        let cost = args.optional(ArgumentName::Cost, |expr| read_cost(expr, capacity));
        Ok(Self { key: key.transpose()?, cost: cost.transpose()? })
    }
}

fn read_cost(expr: &Expr, capacity: Option<(u32, ArgumentName)>) -> syn::Result<Expr> {
    let zero = "`cost = 0` would charge nothing, so no call is limited: the smallest value is 1";
    let cost = whole_number(ArgumentName::Cost, zero, expr)?;
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

fn read_limiter(expr: &Expr) -> syn::Result<Expr> {
    if as_literal(expr).is_some() {
        let message = format!(
            "`limiter` must be an expression that gives a `RateLimiter`, such as `{}`",
            ArgumentName::Limiter.example()
        );
        return Err(syn::Error::new_spanned(expr, message));
    }
    Ok(expr.clone())
}

fn read_on_limited(expr: &Expr) -> syn::Result<Expr> {
    let message = match unwrap_parens(expr) {
        Expr::Path(_) => return Ok(expr.clone()),
        Expr::Closure(closure)
            if closure.asyncness.is_none() && !matches!(*closure.body, Expr::Async(_)) =>
        {
            return Ok(expr.clone());
        }
        Expr::Closure(_) => "the result of `on_limited` is not awaited: remove `async`".to_owned(),
        other => {
            let advice = match (as_literal(other), other) {
                (Some((_, Lit::Str(name))), _) if parse_str::<Path>(&name.value()).is_ok() => {
                    format!("`{}`, without quotes", name.value())
                }
                (Some((_, Lit::Str(text))), _) => format!("`|_| {}.into()`", text.token()),
                (_, Expr::Call(_) | Expr::MethodCall(_)) => {
                    let mut call = other.clone();
                    let arguments = match &mut call {
                        Expr::Call(call) => Some(&mut call.args),
                        Expr::MethodCall(call) => Some(&mut call.args),
                        _ => None,
                    };
                    if let Some(arguments) = arguments {
                        arguments.insert(0, parse_quote!(rejection));
                    }
                    format!("`|rejection| {}`", written(&call))
                }
                _ => format!("`{}`", ArgumentName::OnLimited.example()),
            };
            format!(
                "`on_limited` must be a function or a closure that takes the rejection, such as {advice}"
            )
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
                "`crate` must be the path of the runtime, such as `{}`{quotes}",
                ArgumentName::Crate.example()
            );
            Err(syn::Error::new_spanned(expr, message))
        }
    }
}
