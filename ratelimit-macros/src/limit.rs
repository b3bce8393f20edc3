//! The limit that an attribute declares, and the rules between its arguments.
//!
//! A rule applies when the values are literals. A constant behind a path is checked by the const
//! functions of the runtime, which the expansion evaluates at compile time.

use syn::{Expr, Lit, LitStr};

use crate::args::Args;
use crate::argument::ArgumentName;
use crate::diagnostics::ReportedError;
use crate::offset::Offset;
use crate::text::duration::{DAY_US, LONGEST_US};
use crate::values::{self, Amount, Constant};
use crate::words::{self, Word, word_enum};

/// The shortest period whose lease lasts long enough to be useful. The runtime checks it as well.
const SHORTEST_LEASED_US: u64 = 100_000;

/// An automatic lease is at most the threshold divided by this number, as in the runtime.
const AUTO_SHARE: u32 = 100;

/// A limit without contradictions.
pub(crate) struct Limit {
    /// `None`: the path of the function.
    pub(crate) name: Option<LitStr>,
    pub(crate) algorithm: Algorithm,
    pub(crate) threshold: Amount,
    pub(crate) period: Constant<u64>,
    pub(crate) burst: Option<Amount>,
    pub(crate) align: Option<Offset>,
    pub(crate) lease: Option<Lease>,
}

/// How many units of a key a process may charge in advance.
pub(crate) enum Lease {
    UpTo(Constant<u32>),
    /// As many as a busy key needs; written as this literal.
    Auto(LitStr),
}

word_enum! {
    /// How a limit counts. The word is also the name of the constructor in the runtime.
    Algorithm {
        Sliding = "sliding" | "sliding_window" | "sliding_log" | "rolling" | "rolling_window",
        Fixed = "fixed" | "fixed_window" | "window",
        SlidingCounter = "sliding_counter" | "sliding_window_counter",
        TokenBucket = "token_bucket" | "gcra" | "bucket" | "token",
        LeakyBucket = "leaky_bucket" | "leaky" | "pacing",
    }
}

/// The arguments of a limit, parsed one by one. Rules that concern several arguments are not checked yet.
struct LimitDraft<'a> {
    args: &'a Args<'a>,
    name: Option<Result<LitStr, ReportedError>>,
    algorithm: Result<Algorithm, ReportedError>,
    threshold: Result<Amount, ReportedError>,
    period: Result<Constant<u64>, ReportedError>,
    burst: Option<Result<Amount, ReportedError>>,
    align: Option<Result<Offset, ReportedError>>,
    lease: Option<Result<Lease, ReportedError>>,
}

impl Limit {
    pub(crate) fn validate(args: &Args<'_>) -> Result<Self, ReportedError> {
        let draft = LimitDraft::read(args);
        draft.check_burst_has_a_bucket();
        draft.check_burst_fills_in_time();
        draft.check_align_has_fixed_windows();
        draft.check_align_fits_the_day();
        draft.check_lease();
        Ok(Limit {
            name: draft.name.transpose()?,
            algorithm: draft.algorithm?,
            threshold: draft.threshold?,
            period: draft.period?,
            burst: draft.burst.transpose()?,
            align: draft.align.transpose()?,
            lease: draft.lease.transpose()?,
        })
    }

    /// Whether each call computes the amounts.
    pub(crate) fn varies(&self) -> bool {
        self.threshold.is_expression() || self.burst.as_ref().is_some_and(Amount::is_expression)
    }

    /// The largest cost that can be admitted at once, if it is known, and the argument that sets it.
    pub(crate) fn capacity(&self) -> Option<(u32, ArgumentName)> {
        let argument =
            if self.algorithm.is_bucket() { ArgumentName::Burst } else { ArgumentName::Threshold };
        let capacity = self.algorithm.capacity(self.burst.as_ref(), self.threshold.known())?;
        let reserve = match &self.lease {
            Some(Lease::UpTo(_)) => {
                self.algorithm.lease_reserve(self.threshold.known()?, self.period.known?)
            }
            // A key that is not busy has no reserve.
            Some(Lease::Auto(_)) | None => 0,
        };
        Some((capacity.saturating_sub(reserve), argument))
    }
}

impl Algorithm {
    fn is_bucket(self) -> bool {
        match self {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => true,
            Algorithm::Sliding | Algorithm::Fixed | Algorithm::SlidingCounter => false,
        }
    }

    /// Whether the windows can start at calendar boundaries.
    pub(crate) fn has_align(self) -> bool {
        match self {
            Algorithm::Fixed => true,
            Algorithm::Sliding
            | Algorithm::SlidingCounter
            | Algorithm::TokenBucket
            | Algorithm::LeakyBucket => false,
        }
    }

    /// The largest cost that can be admitted at once, if it is known.
    fn capacity(self, burst: Option<&Amount>, threshold: Option<u32>) -> Option<u32> {
        if let Some(burst) = burst {
            return burst.known();
        }
        match self {
            Algorithm::LeakyBucket => Some(1),
            Algorithm::Sliding
            | Algorithm::Fixed
            | Algorithm::SlidingCounter
            | Algorithm::TokenBucket => threshold,
        }
    }

    /// Returns the reserve of a leased bucket: the units that refill during a lease, rounded up as in the
    /// runtime. A lease lasts for a hundredth of the period, at most a second.
    fn lease_reserve(self, threshold: u32, period_us: u64) -> u32 {
        if !self.is_bucket() {
            return 0;
        }
        let term_us = (period_us / 100).min(1_000_000);
        let refilled = (u64::from(threshold) * term_us).div_ceil(period_us);
        u32::try_from(refilled).unwrap_or(u32::MAX)
    }

    fn read(expr: &Expr) -> syn::Result<Self> {
        words::choice(ArgumentName::Algo, "algorithm", expr)
    }
}

impl<'a> LimitDraft<'a> {
    fn read(args: &'a Args<'a>) -> Self {
        let period = |expr: &Expr| Constant::duration(ArgumentName::Period, expr);
        let no_period = "missing `period`: write the length of a period, such as `period = 30` for \
                         30 seconds";
        let no_threshold = "missing `threshold`: write how many calls a period admits, such as \
                            `threshold = 100`";
        LimitDraft {
            args,
            period: args.required(ArgumentName::Period, no_period, period),
            threshold: args.required(ArgumentName::Threshold, no_threshold, read_threshold),
            algorithm: args
                .optional(ArgumentName::Algo, Algorithm::read)
                .unwrap_or(Ok(args.default_algorithm())),
            burst: args.optional(ArgumentName::Burst, read_burst),
            align: args.optional(ArgumentName::Align, Offset::read),
            lease: args.optional(ArgumentName::Lease, Lease::read),
            name: args.optional(ArgumentName::Name, read_name),
        }
    }

    fn check_burst_has_a_bucket(&self) {
        if let Ok(algorithm) = self.algorithm
            && !algorithm.is_bucket()
        {
            self.reject(
                ArgumentName::Burst,
                &format!(
                    "`burst` is the capacity of a bucket, and `{}` is not a bucket: remove `burst`, \
                     or write `algo = \"token_bucket\"`",
                    algorithm.as_str()
                ),
            );
        }
    }

    fn check_burst_fills_in_time(&self) {
        if let (Ok(threshold), Ok(period), Some(Ok(burst))) =
            (&self.threshold, &self.period, &self.burst)
            && let (Some(threshold), Some(period_us), Some(burst)) =
                (threshold.known(), period.known, burst.known())
            && u128::from(burst) * u128::from(period_us)
                > u128::from(threshold) * u128::from(LONGEST_US)
        {
            self.reject(
                ArgumentName::Burst,
                "this bucket takes more than 100 years to fill: lower `burst` or `period`, or raise \
                 `threshold`",
            );
        }
    }

    fn check_align_has_fixed_windows(&self) {
        if let Ok(algorithm) = self.algorithm
            && !algorithm.has_align()
        {
            self.reject(
                ArgumentName::Align,
                &format!(
                    "`align` works with `algo = \"fixed\"` only, and this limit is `{}`: remove \
                     `align`, or write `algo = \"fixed\"`",
                    algorithm.as_str()
                ),
            );
        }
    }

    /// With any other period, the boundaries of the windows would move from day to day.
    fn check_align_fits_the_day(&self) {
        if let Ok(period) = &self.period
            && let Some(period_us) = period.known
            && !DAY_US.is_multiple_of(period_us)
            && period_us != 7 * DAY_US
        {
            self.reject(
                ArgumentName::Align,
                "aligned windows fill a day or a week, so the period must divide a day, such as \
                 `\"15m\"` or `\"1h\"`, or be `\"7d\"`",
            );
        }
    }

    fn check_lease(&self) {
        let Some(Ok(lease)) = &self.lease else { return };
        let (Ok(algorithm), Ok(period)) = (self.algorithm, &self.period) else { return };
        let Some(period_us) = period.known else { return };
        if period_us < SHORTEST_LEASED_US {
            let message = "a lease lasts a hundredth of the period, which is too short here: with \
                           `lease`, the shortest period is `\"100ms\"`";
            return self.reject(ArgumentName::Lease, message);
        }
        let burst = match &self.burst {
            Some(Ok(burst)) => Some(burst),
            Some(Err(_)) => return,
            None => None,
        };
        let Some(threshold) = self.threshold.as_ref().ok().and_then(Amount::known) else {
            return;
        };
        let Some(capacity) = algorithm.capacity(burst, Some(threshold)) else { return };
        let reserve = algorithm.lease_reserve(threshold, period_us);
        if capacity <= reserve {
            let message = format!(
                "a leased bucket keeps back what refills while a lease lasts (a hundredth of the \
                 period, at most a second): {reserve} here, and `burst` is {capacity}; write `burst \
                 = {}` or more, or remove `lease`",
                reserve.saturating_add(1)
            );
            return self.reject(ArgumentName::Lease, &message);
        }
        let most = capacity - reserve;
        let lease = match lease {
            Lease::UpTo(lease) => lease,
            Lease::Auto(_) if threshold.min(capacity) < AUTO_SHARE => {
                let (argument, smaller) = if threshold < AUTO_SHARE {
                    (ArgumentName::Threshold, threshold)
                } else {
                    (ArgumentName::Burst, capacity)
                };
                let message = format!(
                    "`lease = \"auto\"` leases at most one percent, and of a `{argument}` of {smaller} that is less \
                     than a unit: raise it to {AUTO_SHARE} or more, or write the number of units to lease"
                );
                return self.reject(ArgumentName::Lease, &message);
            }
            Lease::Auto(_) => return,
        };
        if lease.known.is_some_and(|lease| lease > most) {
            let message = if reserve > 0 {
                format!(
                    "`lease` can be at most {most} here: the capacity of {capacity}, less the \
                     {reserve} that refill while a lease lasts"
                )
            } else {
                format!("`lease` can be at most {most} here, the most that is admitted at once")
            };
            self.reject(ArgumentName::Lease, &message);
        }
    }

    fn reject(&self, argument: ArgumentName, message: &str) {
        self.args.reject(argument, message);
    }
}

impl Lease {
    /// A number of units, the path of a constant, or `"auto"`.
    pub(crate) fn read(expr: &Expr) -> syn::Result<Self> {
        let message = match (values::as_literal(expr), values::as_path(expr)) {
            (Some((_, Lit::Str(text))), _) if text.value() == "auto" => {
                return Ok(Self::Auto(text.clone()));
            }
            (Some((_, Lit::Str(text))), _) if text.value().parse::<u32>().is_err() => {
                "`lease` must be a whole number such as `50`, or `\"auto\"`"
            }
            (_, Some(path)) if path.path.is_ident("auto") => {
                "`auto` must be a string literal: write `lease = \"auto\"`, with quotes"
            }
            _ => {
                let zero = "`lease = 0` would charge nothing in advance: the smallest value is 1";
                return Constant::count(ArgumentName::Lease, zero, expr).map(Self::UpTo);
            }
        };
        Err(syn::Error::new_spanned(expr, message))
    }
}

pub(crate) fn read_threshold(expr: &Expr) -> syn::Result<Amount> {
    let zero = "`threshold = 0` would reject every call: the smallest value is 1";
    Amount::read(ArgumentName::Threshold, zero, expr)
}

pub(crate) fn read_burst(expr: &Expr) -> syn::Result<Amount> {
    let zero = "`burst = 0` would reject every call: the smallest value is 1";
    Amount::read(ArgumentName::Burst, zero, expr)
}

pub(crate) fn read_name(expr: &Expr) -> syn::Result<LitStr> {
    let text = values::text(ArgumentName::Name, expr)?;
    if text.value().trim().is_empty() {
        let message =
            "`name` cannot be empty: write a name, or remove it to use the path of the function";
        return Err(syn::Error::new(text.span(), message));
    }
    if let Some((_, rest)) = text.value().split_once('{')
        && let Some((value, _)) = rest.split_once('}')
    {
        let message = format!(
            "`name` is the same in every call: to count each `{value}` separately, write `key = \"{{{value}}}\"`"
        );
        return Err(syn::Error::new(text.span(), message));
    }
    Ok(text.clone())
}
