//! The limit of a charge: a rate, calls in flight, or a constant of the user; and the rules between its arguments.
//!
//! A rule applies when the values are literals. A constant behind a path is checked by the const
//! functions of the runtime, which the expansion evaluates at compile time.

use quote::ToTokens;
use syn::{Expr, ExprPath, Lit, LitStr};

use crate::algorithm::Algorithm;
use crate::args::Args;
use crate::argument::ArgumentName;
use crate::text::duration::{DAY_US, LONGEST_US, parse_period};
use crate::text::offset::{AlignText, read_align};
use crate::values::{self, Value, as_literal, as_path, is_constant};
use crate::words::Word;

/// The shortest period whose lease lasts long enough to be useful. The runtime checks it as well.
const SHORTEST_LEASED_US: u64 = 100_000;

/// An automatic lease is at most the threshold divided by this number, as in the runtime.
const AUTO_SHARE: u64 = 100;

/// The shortest and the longest hold, as in the runtime.
const SHORTEST_HOLD_US: u64 = 1_000_000;
const LONGEST_HOLD_US: u64 = DAY_US;

/// A limit without contradictions.
pub(crate) struct Limit {
    /// `None`: the path of the function.
    pub(crate) name: Option<LitStr>,
    pub(crate) kind: Kind,
    /// The threshold of a rate, or the number of calls in flight. `None` if the limit is a constant, which has it.
    pub(crate) threshold: Option<Value>,
    pub(crate) burst: Option<Value>,
    pub(crate) align: Option<AlignValue>,
    /// The day on which months begin.
    pub(crate) align_day: Option<Value>,
    pub(crate) lease: Option<Lease>,
    /// How long Redis keeps the slots of a process that says nothing; `None`: as the runtime sets it.
    pub(crate) hold: Option<Value>,
    /// Whether responses do not report the limit; `None`: as the constant says.
    pub(crate) hidden: Option<bool>,
    /// The percentage of the limit that is reported.
    pub(crate) notify_at: Option<u8>,
}

#[allow(clippy::large_enum_variant, reason = "there are few for each attribute")]
pub(crate) enum Kind {
    Rate {
        algorithm: Algorithm,
        period: Value,
        /// The word of a unit of the calendar, if that is the period.
        unit: Option<&'static str>,
    },
    InFlight,
    Constant(ExprPath),
}

/// Where windows begin.
pub(crate) enum AlignValue {
    Text(AlignText),
    /// A constant of type `Align`, or an expression that each call evaluates.
    Value(Value),
}

/// How many units of a key a process may charge in advance.
pub(crate) enum Lease {
    UpTo(Value),
    /// As many as a busy key needs; written as this literal.
    Auto(LitStr),
}

impl Limit {
    /// Reads the limit; `None` if an argument of it is missing or wrong.
    pub(crate) fn read(args: &Args<'_>) -> Option<Self> {
        // A mistake that can be any argument is none of calls in flight.
        if args.is_misspelled(ArgumentName::InFlight) && !args.is_misspelled(ArgumentName::Period) {
            return None;
        }
        let errors = args.errors.count();
        let path = args.optional(ArgumentName::Limit, read_path);
        let in_flight = args.optional(ArgumentName::InFlight, Value::amount);
        let is_given = |name| args.get(name).is_some();
        let (kind, threshold) = if is_given(ArgumentName::Limit) || is_given(ArgumentName::InFlight)
        {
            let threshold = args.optional(ArgumentName::Threshold, Value::amount);
            (Some(path.map_or(Kind::InFlight, Kind::Constant)), in_flight.or(threshold))
        } else {
            let rate = read_rate(args);
            let missing = "missing `threshold`: write how many calls a period admits, such as `threshold = 100`";
            (rate, args.required(ArgumentName::Threshold, missing, Value::amount))
        };
        let limit = Self {
            threshold,
            burst: args.optional(ArgumentName::Burst, Value::amount),
            align: args.optional(ArgumentName::Align, AlignValue::read),
            align_day: args.optional(ArgumentName::AlignDay, read_align_day),
            lease: args.optional(ArgumentName::Lease, Lease::read),
            hold: args.optional(ArgumentName::Hold, read_hold),
            name: args.optional(ArgumentName::Name, read_name),
            hidden: args.optional(ArgumentName::Hidden, values::flag),
            notify_at: args.optional(ArgumentName::NotifyAt, |name, expr| {
                let message =
                    "`notify_at` must be a percentage from 1 to 100, such as `notify_at = 80`";
                let percent = values::whole_number(name, message, expr)?;
                let percent = percent.and_then(|percent| u8::try_from(percent).ok());
                let percent = percent.filter(|percent| *percent <= 100);
                percent.ok_or_else(|| syn::Error::new_spanned(expr, message))
            }),
            kind: kind?,
        };
        if let Kind::Rate { algorithm, .. } = limit.kind {
            check_algorithm(args, algorithm);
        }
        if args.errors.count() > errors || args.lacks_value() {
            return None;
        }
        limit.check_rate(args);
        Some(limit)
    }

    /// Whether each call computes the amounts.
    pub(crate) fn varies(&self) -> bool {
        let is_constant = matches!(self.kind, Kind::Constant(_));
        let mut amounts = self.threshold.iter().chain(&self.burst);
        amounts.any(|amount| is_constant || amount.is_computed())
    }

    /// Whether each call computes where its windows begin.
    pub(crate) fn moves(&self) -> bool {
        matches!(&self.align, Some(AlignValue::Value(align)) if align.is_computed())
            || self.align_day.as_ref().is_some_and(Value::is_computed)
    }

    /// Where windows begin, as far as it tells one count from another.
    pub(crate) fn written_align(&self) -> String {
        if self.moves() {
            return String::new();
        }
        let align = self.align.as_ref().map(|align| match align {
            AlignValue::Text(text) => format!("{text:?}"),
            AlignValue::Value(Value { expr, .. }) => expr.to_token_stream().to_string(),
        });
        format!("{align:?} {:?}", self.align_day.as_ref().map(|day| day.known))
    }

    /// The largest cost that can be admitted at once, if it is known, and the argument that sets it.
    pub(crate) fn capacity(&self) -> Option<(u64, ArgumentName)> {
        match &self.kind {
            Kind::Constant(_) => None,
            Kind::InFlight => Some((self.threshold.as_ref()?.known?, ArgumentName::InFlight)),
            Kind::Rate { algorithm, .. } => {
                // A key that is not busy has no reserve.
                let is_leased = matches!(self.lease, Some(Lease::UpTo(_)));
                let reserve = if is_leased { self.lease_reserve()? } else { 0 };
                let argument = algorithm.argument_of_capacity();
                Some((self.bucket_capacity()?.saturating_sub(reserve), argument))
            }
        }
    }

    /// The capacity of a rate without its reserve, if it is known.
    fn bucket_capacity(&self) -> Option<u64> {
        match (&self.burst, &self.kind) {
            (Some(burst), _) => burst.known,
            (None, Kind::Rate { algorithm: Algorithm::LeakyBucket, .. }) => Some(1),
            _ => self.threshold.as_ref()?.known,
        }
    }

    /// Returns the reserve of a leased bucket, if it is known: the units that refill during a lease, rounded up as in
    /// the runtime. A lease lasts for a hundredth of the period, at most a second.
    fn lease_reserve(&self) -> Option<u64> {
        let Kind::Rate { algorithm, period, .. } = &self.kind else { return None };
        let (threshold, period_us) = (self.threshold.as_ref()?.known?, period.known?);
        if !algorithm.is_bucket() {
            return Some(0);
        }
        let term_us = (period_us / 100).min(1_000_000);
        let refilled = u128::from(threshold) * u128::from(term_us);
        u64::try_from(refilled.div_ceil(period_us.into())).ok()
    }

    /// Checks the arguments of a rate against each other.
    fn check_rate(&self, args: &Args<'_>) {
        let Kind::Rate { period: Value { known: Some(period_us), .. }, unit, .. } = self.kind
        else {
            return;
        };
        let threshold = self.threshold.as_ref().and_then(|threshold| threshold.known);
        let burst = self.burst.as_ref().and_then(|burst| burst.known);
        if let (Some(threshold), Some(burst)) = (threshold, burst)
            && u128::from(burst) * u128::from(period_us)
                > u128::from(threshold) * u128::from(LONGEST_US)
        {
            let message = "this bucket takes more than 100 years to fill: lower `burst` or `period`, or raise \
                           `threshold`";
            args.reject(ArgumentName::Burst, message);
        }
        let can_be_zone = !matches!(self.align, Some(AlignValue::Text(AlignText::Minutes(_))));
        let is_day = period_us == DAY_US || period_us == 7 * DAY_US;
        if can_be_zone && !is_day && unit.is_none() {
            let message = "in a time zone, a window is a day or longer: write `period = \"day\"`, `\"week\"`, \
                           `\"month\"`, `\"quarter\"` or `\"year\"`, or an offset such as `align = \"+01:00\"`";
            args.reject(ArgumentName::Align, message);
        } else if !DAY_US.is_multiple_of(period_us) && !is_day && unit.is_none() {
            // With any other period, the boundaries of the windows would move from day to day.
            let message = "aligned windows fill a day or a week, so the period must divide a day, such as `\"15m\"` or \
                           `\"1h\"`, or be `\"7d\"`, `\"month\"`, `\"quarter\"` or `\"year\"`";
            args.reject(ArgumentName::Align, message);
        }
        if unit != Some("month") {
            let message = "`align_day` is the day on which months begin: write `period = \"month\"`, or remove \
                           `align_day`";
            args.reject(ArgumentName::AlignDay, message);
        }
        if let Some(message) = self.lease_mistake(period_us) {
            args.reject(ArgumentName::Lease, &message);
        }
    }

    /// Returns why the limit cannot have its lease.
    fn lease_mistake(&self, period_us: u64) -> Option<String> {
        if period_us < SHORTEST_LEASED_US {
            let message = "a lease lasts a hundredth of the period, which is too short here: with `lease`, the \
                           shortest period is `\"100ms\"`";
            return Some(message.to_owned());
        }
        let threshold = self.threshold.as_ref()?.known?;
        let (capacity, reserve) = (self.bucket_capacity()?, self.lease_reserve()?);
        if capacity <= reserve {
            return Some(format!(
                "a leased bucket keeps back what refills while a lease lasts (a hundredth of the period, at most a \
                 second): {reserve} here, and `burst` is {capacity}; write `burst = {}` or more, or remove `lease`",
                reserve.saturating_add(1)
            ));
        }
        let most = capacity - reserve;
        match self.lease.as_ref()? {
            Lease::Auto(_) if threshold.min(capacity) < AUTO_SHARE => {
                let (argument, smaller) = if threshold < AUTO_SHARE {
                    (ArgumentName::Threshold, threshold)
                } else {
                    (ArgumentName::Burst, capacity)
                };
                Some(format!(
                    "`lease = \"auto\"` leases at most one percent, and of a `{argument}` of {smaller} that is less \
                     than a unit: raise it to {AUTO_SHARE} or more, or write the number of units to lease"
                ))
            }
            Lease::UpTo(lease) if lease.known.is_some_and(|lease| lease > most) => {
                Some(if reserve > 0 {
                    format!(
                        "`lease` can be at most {most} here: the capacity of {capacity}, less the {reserve} that \
                         refill while a lease lasts"
                    )
                } else {
                    format!("`lease` can be at most {most} here, the most that is admitted at once")
                })
            }
            Lease::Auto(_) | Lease::UpTo(_) => None,
        }
    }
}

impl AlignValue {
    /// The text of an offset or a zone, or an expression of type `Align`.
    fn read(_: ArgumentName, expr: &Expr) -> syn::Result<Self> {
        let word = as_path(expr).and_then(|path| path.path.get_ident()).map(ToString::to_string);
        let message = match as_literal(expr) {
            None => match word.filter(|word| read_align(word).is_ok()) {
                Some(word) => format!("`align` must be a string literal: write `\"{word}\"`, with quotes"),
                None => return Ok(Self::Value(Value { expr: expr.clone(), known: None })),
            },
            Some((_, Lit::Str(text))) => match read_align(&text.value()) {
                Ok(text) => return Ok(Self::Text(text)),
                Err(message) => message,
            },
            Some(_) => "`align` must be a string such as `\"utc\"` or `\"Europe/Berlin\"`, or an expression of type \
                        `Align`"
                .to_owned(),
        };
        Err(syn::Error::new_spanned(expr, message))
    }
}

impl Lease {
    /// A number of units, the path of a constant, or `"auto"`.
    fn read(name: ArgumentName, expr: &Expr) -> syn::Result<Self> {
        let message = match (as_literal(expr), as_path(expr)) {
            (Some((_, Lit::Str(text))), _) if text.value() == "auto" => {
                return Ok(Self::Auto(text.clone()));
            }
            (Some((_, Lit::Str(text))), _) if text.value().parse::<u64>().is_err() => {
                "`lease` must be a whole number such as `50`, or `\"auto\"`"
            }
            (_, Some(path)) if path.path.is_ident("auto") => {
                "`auto` must be a string literal: write `lease = \"auto\"`, with quotes"
            }
            (_, path) => {
                let zero = "`lease = 0` would charge nothing in advance: the smallest value is 1";
                let known = values::whole_number(name, zero, expr)?;
                if known.is_some() || path.is_some() {
                    return Ok(Self::UpTo(Value { expr: expr.clone(), known }));
                }
                "`lease` must be a whole number such as `100`, or the path of a `const` of type `u64`"
            }
        };
        Err(syn::Error::new_spanned(expr, message))
    }
}

fn read_rate(args: &Args<'_>) -> Option<Kind> {
    let missing =
        "missing `period`: write the length of a period, such as `period = 30` for 30 seconds";
    let period = args.required(ArgumentName::Period, missing, Value::duration);
    let algorithm = args.optional(ArgumentName::Algo, values::choice);
    let period = period?;
    let unit = match as_literal(&period.expr) {
        Some((_, Lit::Str(text))) => parse_period(&text.value()).map_or(None, |(_, unit)| unit),
        _ => None,
    };
    let algorithm = match (args.get(ArgumentName::Algo), unit) {
        (Some(_), _) => algorithm?,
        (None, Some(_)) => Algorithm::Fixed,
        (None, None) => args.default_algorithm(),
    };
    if let Some(unit) = unit.filter(|_| algorithm != Algorithm::Fixed) {
        let message = format!(
            "`period = \"{unit}\"` is a window of the calendar, which is `fixed`: remove `algo`, or write a length, \
             such as `\"30d\"`"
        );
        args.reject(ArgumentName::Algo, &message);
    }
    Some(Kind::Rate { algorithm, period, unit })
}

/// Rejects what the algorithm does not have.
fn check_algorithm(args: &Args<'_>, algorithm: Algorithm) {
    let word = algorithm.as_str();
    if !algorithm.is_bucket() {
        let message = format!(
            "`burst` is the capacity of a bucket, and `{word}` is not a bucket: remove `burst`, or write `algo = \
             \"token_bucket\"`"
        );
        args.reject(ArgumentName::Burst, &message);
    }
    if algorithm != Algorithm::Fixed {
        let message = format!(
            "`align` works with `algo = \"fixed\"` only, and this limit is `{word}`: remove `align`, or write `algo = \
             \"fixed\"`"
        );
        args.reject(ArgumentName::Align, &message);
    }
}

fn read_path(name: ArgumentName, expr: &Expr) -> syn::Result<ExprPath> {
    let hint = match (as_path(expr), as_literal(expr)) {
        (Some(path), _) if is_constant(path) => return Ok(path.clone()),
        (Some(_), _) => {
            ": for a limit that is known only at run time, call `RateLimiter::check`".to_owned()
        }
        (None, Some((_, Lit::Int(number)))) => {
            format!(": for a number of calls, write `threshold = {number}`")
        }
        (None, Some((_, Lit::Str(name)))) => {
            format!(
                ": to name a limit, write `name = {}`; a constant is written without quotes",
                name.to_token_stream()
            )
        }
        (None, _) => String::new(),
    };
    let example = name.example();
    let message =
        format!("`limit` must be the path of a `const` of type `Limit`, such as `{example}`{hint}");
    Err(syn::Error::new_spanned(expr, message))
}

fn read_align_day(name: ArgumentName, expr: &Expr) -> syn::Result<Value> {
    let message =
        "`align_day` must be a day of the month, from 1 to 31, or an expression of type `u8`";
    let known = values::whole_number(name, message, expr)?;
    if known.is_some_and(|day| day > 31) {
        return Err(syn::Error::new_spanned(expr, message));
    }
    Ok(Value { expr: expr.clone(), known })
}

fn read_hold(name: ArgumentName, expr: &Expr) -> syn::Result<Value> {
    let hold = Value::duration(name, expr)?;
    let message = match hold.known {
        Some(..SHORTEST_HOLD_US) => "`hold` must be at least a second",
        Some(us) if us > LONGEST_HOLD_US => {
            "`hold` must be at most a day: a process that is killed keeps its slots for so long"
        }
        Some(us) if us % 1_000 > 0 => "`hold` must be a whole number of milliseconds",
        _ => return Ok(hold),
    };
    Err(syn::Error::new_spanned(expr, message))
}

pub(crate) fn read_name(name: ArgumentName, expr: &Expr) -> syn::Result<LitStr> {
    let text = values::text(name, expr)?;
    let name = text.value();
    let value = name.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let message = match value {
        _ if name.trim().is_empty() => {
            "`name` cannot be empty: write a name, or remove it to use the path of the function"
                .to_owned()
        }
        Some((value, _)) => format!(
            "`name` is the same in every call: to count each `{value}` separately, write `key = \"{{{value}}}\"`"
        ),
        None => return Ok(text.clone()),
    };
    Err(syn::Error::new(text.span(), message))
}
