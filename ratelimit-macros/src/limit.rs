//! The limit that an attribute declares, and the rules between its arguments.
//!
//! A rule speaks when it knows the values: a constant behind a path is checked by the const
//! functions of the runtime instead, which the expansion evaluates at compile time.

use syn::{Expr, LitStr};

use crate::args::Args;
use crate::diagnostics::Reported;
use crate::duration::{DAY_US, LONGEST_US};
use crate::values::{self, Constant};

/// The shortest period whose permits are kept for long enough to be of use.
const SHORTEST_LEASED_US: u64 = 100_000;

/// A limit without a contradiction.
pub(crate) struct Limit {
    /// `None`: the path of the function.
    pub(crate) name: Option<LitStr>,
    pub(crate) algorithm: Algorithm,
    pub(crate) threshold: Constant<u32>,
    pub(crate) period: Constant<u64>,
    pub(crate) burst: Option<Constant<u32>>,
    pub(crate) align: Option<Offset>,
    pub(crate) lease: Option<Constant<u32>>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Algorithm {
    Sliding,
    Fixed,
    SlidingCounter,
    TokenBucket,
    LeakyBucket,
}

/// How far local time is ahead of UTC.
#[derive(Clone, Copy)]
pub(crate) struct Offset {
    pub(crate) minutes: i32,
}

/// The arguments of a limit, each right or wrong by itself.
struct Draft<'a> {
    args: &'a Args<'a>,
    name: Option<Result<LitStr, Reported>>,
    algorithm: Result<Algorithm, Reported>,
    threshold: Result<Constant<u32>, Reported>,
    period: Result<Constant<u64>, Reported>,
    burst: Option<Result<Constant<u32>, Reported>>,
    align: Option<Result<Offset, Reported>>,
    lease: Option<Result<Constant<u32>, Reported>>,
}

impl Limit {
    pub(crate) fn validate(args: &Args<'_>) -> Result<Self, Reported> {
        let draft = Draft::read(args);
        draft.burst_is_for_buckets();
        draft.burst_refills_in_time();
        draft.align_is_for_fixed_windows();
        draft.align_meets_midnight();
        draft.lease_is_within_the_limit();
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

    /// The largest cost that can ever be admitted at once, if it is known, and the argument that
    /// sets it.
    pub(crate) fn capacity(&self) -> Option<(u32, &'static str)> {
        let argument = if self.algorithm.is_bucket() { "burst" } else { "threshold" };
        let capacity = self.algorithm.capacity(self.burst.as_ref(), self.threshold.known)?;
        let reserve = match &self.lease {
            Some(_) => self.algorithm.reserve(self.threshold.known?, self.period.known?),
            None => 0,
        };
        Some((capacity.saturating_sub(reserve), argument))
    }
}

impl Algorithm {
    const ALL: [Algorithm; 5] = [
        Algorithm::Sliding,
        Algorithm::Fixed,
        Algorithm::SlidingCounter,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ];

    /// The word in the attribute, and the constructor in the runtime.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Algorithm::Sliding => "sliding",
            Algorithm::Fixed => "fixed",
            Algorithm::SlidingCounter => "sliding_counter",
            Algorithm::TokenBucket => "token_bucket",
            Algorithm::LeakyBucket => "leaky_bucket",
        }
    }

    fn is_bucket(self) -> bool {
        matches!(self, Algorithm::TokenBucket | Algorithm::LeakyBucket)
    }

    /// The largest cost that can be admitted at once, as far as it is known.
    fn capacity(self, burst: Option<&Constant<u32>>, threshold: Option<u32>) -> Option<u32> {
        match (burst, self) {
            (Some(burst), _) => burst.known,
            (None, Algorithm::LeakyBucket) => Some(1),
            (None, _) => threshold,
        }
    }

    /// How much smaller a bucket is that is leased: what refills while a permit is kept, a hundredth of
    /// the period and a second at most, rounded up.
    fn reserve(self, threshold: u32, period_us: u64) -> u32 {
        if !self.is_bucket() {
            return 0;
        }
        let term = (period_us / 100).min(1_000_000);
        let refilled = (u64::from(threshold) * term).div_ceil(period_us);
        u32::try_from(refilled).unwrap_or(u32::MAX)
    }

    fn read(expr: &Expr) -> syn::Result<Self> {
        values::choice("algo", "algorithm", Self::ALL.map(|it| (it.name(), it)), expr)
    }
}

impl Offset {
    /// RFC 3339's `time-numoffset`, or `utc`. Zones with a name change their offset with the
    /// seasons, and a window that shrinks or grows by an hour is not what a limit promises.
    fn read(expr: &Expr) -> syn::Result<Self> {
        let text = values::text("align", "utc", expr)?;
        let word = text.value();
        let message = match parse_offset(&word) {
            Some(minutes) if minutes.abs() <= 14 * 60 => return Ok(Offset { minutes }),
            Some(_) => format!("`{word}` is out of range: offsets lie within `±14:00`"),
            None if ["utc", "gmt", "z"].contains(&word.to_lowercase().as_str()) => {
                format!("unknown offset `{word}`: did you mean `\"utc\"`?")
            }
            None => format!(
                "unknown offset `{word}`: write `\"utc\"` or an offset such as `\"+08:00\"` or \
                 `\"-03:30\"`"
            ),
        };
        Err(syn::Error::new(text.span(), message))
    }
}

impl<'a> Draft<'a> {
    fn read(args: &'a Args<'a>) -> Self {
        let threshold = |expr: &Expr| {
            let zero = "`threshold = 0` would refuse every call: the smallest is 1";
            Constant::count("threshold", zero, expr)
        };
        let burst = |expr: &Expr| {
            let zero = "a bucket with `burst = 0` would refuse every call: the smallest is 1";
            Constant::count("burst", zero, expr)
        };
        let lease = |expr: &Expr| {
            let zero = "`lease = 0` pays for nothing in advance: the smallest is 1";
            Constant::count("lease", zero, expr)
        };
        let no_period = "missing `period`: say how long, such as `period = 30` for 30 seconds";
        let no_threshold =
            "missing `threshold`: say how many calls one period admits, such as `threshold = 100`";
        Draft {
            args,
            period: args.required("period", no_period, |expr| Constant::duration("period", expr)),
            threshold: args.required("threshold", no_threshold, threshold),
            algorithm: args.optional("algo", Algorithm::read).unwrap_or(Ok(Algorithm::Sliding)),
            burst: args.optional("burst", burst),
            align: args.optional("align", Offset::read),
            lease: args.optional("lease", lease),
            name: args.optional("name", read_name),
        }
    }

    fn burst_is_for_buckets(&self) {
        if let Ok(algorithm) = self.algorithm
            && !algorithm.is_bucket()
        {
            self.reject(
                "burst",
                &format!(
                    "`burst` is the capacity of a bucket, and `{}` has none: remove it, or write \
                     `algo = \"token_bucket\"`",
                    algorithm.name()
                ),
            );
        }
    }

    fn burst_refills_in_time(&self) {
        if let (Ok(threshold), Ok(period), Some(Ok(burst))) =
            (&self.threshold, &self.period, &self.burst)
            && let (Some(threshold), Some(period_us), Some(burst)) =
                (threshold.known, period.known, burst.known)
            && u128::from(burst) * u128::from(period_us)
                > u128::from(threshold) * u128::from(LONGEST_US)
        {
            self.reject(
                "burst",
                "at this rate a bucket of this size takes more than 100 years to fill: \
                 lower `burst` or `period`, or raise `threshold`",
            );
        }
    }

    fn align_is_for_fixed_windows(&self) {
        if let Ok(algorithm) = self.algorithm
            && algorithm != Algorithm::Fixed
        {
            self.reject(
                "align",
                &format!(
                    "`align` moves the windows of `algo = \"fixed\"`, and `{}` has none to move: \
                     remove it, or write `algo = \"fixed\"`",
                    algorithm.name()
                ),
            );
        }
    }

    /// Windows that drift through the day would not be aligned to anything a reader could name.
    fn align_meets_midnight(&self) {
        if let Ok(period) = &self.period
            && let Some(period_us) = period.known
            && !DAY_US.is_multiple_of(period_us)
            && !period_us.is_multiple_of(DAY_US)
        {
            self.reject(
                "align",
                "aligned windows start at midnight, so the period divides a day or is whole days, \
                 such as `\"15m\"`, `\"1h\"` or `\"7d\"`",
            );
        }
    }

    fn lease_is_within_the_limit(&self) {
        let Some(Ok(lease)) = &self.lease else { return };
        let (Ok(algorithm), Ok(period)) = (self.algorithm, &self.period) else { return };
        let Some(period_us) = period.known else { return };
        if period_us < SHORTEST_LEASED_US {
            let message = "units are leased for a hundredth of the period, and here that is too \
                           short to be of use: `lease` needs a period of `\"100ms\"` or more";
            return self.reject("lease", message);
        }
        let burst = match &self.burst {
            Some(Ok(burst)) => Some(burst),
            Some(Err(_)) => return,
            None => None,
        };
        let Some(threshold) = self.threshold.as_ref().ok().and_then(|threshold| threshold.known)
        else {
            return;
        };
        let Some(capacity) = algorithm.capacity(burst, Some(threshold)) else { return };
        let reserve = algorithm.reserve(threshold, period_us);
        if capacity <= reserve {
            let message = format!(
                "a bucket that is leased keeps back what refills in a hundredth of the period, a \
                 second at most: that is {reserve} here, and `burst` is {capacity}: write `burst = \
                 {}` or more, or remove `lease`",
                reserve.saturating_add(1)
            );
            return self.reject("lease", &message);
        }
        let most = capacity - reserve;
        if lease.known.is_some_and(|lease| lease > most) {
            let why = if reserve > 0 {
                format!(
                    ", for a bucket that is leased keeps back the {reserve} that refill meanwhile"
                )
            } else {
                String::new()
            };
            let message =
                format!("`lease` is at most {most}, all that can be admitted at once{why}");
            self.reject("lease", &message);
        }
    }

    /// Points at the whole argument, if it is there.
    fn reject(&self, argument: &str, message: &str) {
        if let Some(argument) = self.args.get(argument) {
            self.args.errors.report(syn::Error::new_spanned(argument, message));
        }
    }
}

pub(crate) fn read_name(expr: &Expr) -> syn::Result<LitStr> {
    let text = values::text("name", "login", expr)?;
    if text.value().trim().is_empty() {
        let message = "an empty `name` identifies nothing: remove it to use the function's path";
        return Err(syn::Error::new(text.span(), message));
    }
    Ok(text.clone())
}

/// Minutes east of UTC, in whatever range two digits have.
fn parse_offset(text: &str) -> Option<i32> {
    if text == "utc" {
        return Some(0);
    }
    let (sign, digits) = match text.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let two_digits = |part: &str| {
        let written = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<i32>().ok().filter(|_| written)
    };
    let (hours, minutes) = digits.split_once(':')?;
    let minutes = two_digits(minutes).filter(|minutes| *minutes < 60)?;
    Some(sign * (two_digits(hours)? * 60 + minutes))
}

#[cfg(test)]
mod tests {
    use super::parse_offset;

    #[test]
    fn offsets_have_a_sign_and_four_digits() {
        assert_eq!(parse_offset("utc"), Some(0));
        assert_eq!(parse_offset("+00:00"), Some(0));
        assert_eq!(parse_offset("+08:00"), Some(480));
        assert_eq!(parse_offset("-03:30"), Some(-210));
        for wrong in ["", "UTC", "08:00", "+8", "+8:00", "+0800", "+08:60", "+-8:00", "−03:30"] {
            assert_eq!(parse_offset(wrong), None, "{wrong}");
        }
    }
}
