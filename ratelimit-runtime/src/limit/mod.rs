//! Limits: how much is admitted, by which algorithm, under which name. The constructors reject invalid limits, at
//! compile time if the limit is a `const`.
//!
//! A limit has three parts. Stores receive the first two, which together are its [`Terms`].
//!
//! - its identity: the values that two calls must have in common to share a count
//! - its amounts: the values that may differ from call to call on one count
//! - its policy: how a call is treated before and after the decision

mod algorithm;
mod align;
mod identity;
mod in_flight;
mod lease;
mod policy;
#[cfg(feature = "serde")]
mod serde;
mod terms;
mod text;
mod varying;

use std::time::Duration;

pub use self::algorithm::Algorithm;
pub use self::align::{Align, Calendar};
pub(crate) use self::identity::{Identity, Name, Period, announced_name, bit_of_name};
pub use self::lease::Lease;
pub(crate) use self::policy::Access;
pub use self::policy::{OnError, Policy, Scope};
pub use self::terms::Quota;
pub(crate) use self::terms::{Rate, Terms, WindowScale};
pub use self::text::ParseLimitError;
use crate::printing::error_of_text;

/// A limit: how much is admitted per period, by which algorithm, and under which name it is counted.
///
/// Constructors are `const`, so a wrong value in a `const` is a compile error; at run time
/// [`Limit::new`] returns the same message as a [`LimitError`].
///
/// A limit is [`Copy`]. A name that is known only at run time is kept by the process: see
/// [`kept_name`](Self::kept_name).
///
/// A method with the name of a setting sets it. [`policy`](Self::policy) has the settings; `get_burst` and `get_align`
/// return the two that are part of the amounts and of the count:
///
/// ```
/// # use std::time::Duration;
/// # use ratelimit_runtime::Limit;
/// let limit = Limit::token_bucket("upload", 100, Duration::from_secs(1)).burst(500);
/// assert_eq!((limit.threshold(), limit.get_burst()), (100, Some(500)));
/// assert_eq!(limit.policy().wait, None);
/// ```
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::Limit;
///
/// const LOGIN: Limit = Limit::sliding("login", 5, Duration::from_secs(60));
/// const UPLOAD: Limit = Limit::token_bucket("upload", 100, Duration::from_secs(1)).burst(500);
/// ```
///
/// ```compile_fail
/// # use std::time::Duration;
/// # use ratelimit_runtime::Limit;
/// const NEVER: Limit = Limit::sliding("never", 0, Duration::from_secs(60));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct Limit {
    terms: Terms,
    policy: Policy,
}

impl Limit {
    /// Admits at most `threshold` units in any trailing `period`, exactly: the store keeps a log of the admitted
    /// calls.
    ///
    /// # Panics
    ///
    /// On values that [`Limit::new`] rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn sliding(name: &'static str, threshold: u64, period: Duration) -> Self {
        valid(Self::new(name, Algorithm::Sliding, threshold, period))
    }

    /// Admits at most `threshold` units in each window of length `period`. A window starts with its first
    /// admitted call, or at a calendar boundary with [`align`](Self::align).
    ///
    /// # Panics
    ///
    /// On values that [`Limit::new`] rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn fixed(name: &'static str, threshold: u64, period: Duration) -> Self {
        valid(Self::new(name, Algorithm::Fixed, threshold, period))
    }

    /// Remembers for `within` which calls it has admitted. In a call of several limits, such a call is admitted again
    /// and takes nothing, so a request that is sent twice is charged once. Its key is the id of the request. A call
    /// that another limit rejects is not remembered.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, Part, RateLimiter, Rejection};
    ///
    /// const REPORTS: Limit = Limit::sliding("reports", 2, Duration::from_secs(60));
    /// const SENT: Limit = Limit::once("reports once", Duration::from_secs(3600));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Rejection> {
    /// let limiter = RateLimiter::embedded();
    /// let check = async |id: &str| {
    ///     let (tenant, request) = ("acme", ("acme", id));
    ///     limiter.check_all(&[Part::new(&REPORTS, &tenant, 1), Part::new(&SENT, &request, 1)]).await
    /// };
    /// check("7").await?;
    /// check("7").await?;
    /// check("8").await?;
    /// assert!(check("9").await.is_err());
    /// assert!(check("8").await?.allowed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// - Its cost is 1, and it comes last: in a Redis Cluster, where id and key are usually in different hash slots,
    ///   the id is then remembered once the others are charged.
    /// - It has one count for each id that was admitted, so the other limits bound their number. In a full embedded
    ///   store, an id can be forgotten: its next call is charged again. So is a call that one store has admitted, and
    ///   the other decides: Redis, or the process while Redis is down.
    /// - The decision about a repeated call reports what the other limits have left. A blocked key rejects it. Alone,
    ///   this limit admits every call.
    /// - Responses do not [report](Self::hidden) it. A rule can block or exempt it, and sets no amounts.
    /// - A repeated call has no charge and no slot. So beside calls in flight, a [`wait`](Self::wait), or charges that
    ///   can be settled, this limit is a [`Mistake`](crate::Mistake::ChargedOnce).
    ///
    /// An annotated function writes `once = request_id`.
    ///
    /// # Panics
    ///
    /// On an empty name, and on a period that [`Limit::new`] rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn once(name: &'static str, within: Duration) -> Self {
        let mut limit = Self::fixed(name, 1, within).hidden(true);
        limit.policy.once = true;
        limit
    }

    /// Admits at most `threshold` units in each month, quarter or year. Windows start at midnight UTC, unless
    /// [`align`](Self::align) sets another place or day. [`period`](Self::period) is the longest length of the unit.
    ///
    /// ```
    /// use ratelimit_runtime::{Align, Calendar, Limit};
    ///
    /// const FREE: Limit = Limit::calendar("free plan", 1_000, Calendar::Month);
    /// const PAID: Limit = FREE.align(Align::zone("Asia/Tokyo").day(31));
    /// assert_eq!(PAID.get_calendar(), Some(Calendar::Month));
    /// ```
    ///
    /// # Panics
    ///
    /// On values that [`Limit::new`] rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn calendar(name: &'static str, threshold: u64, unit: Calendar) -> Self {
        valid(Self::try_calendar(name, threshold, unit))
    }

    /// Creates a limit for each unit of the [calendar](Self::calendar) from values that are known only at run time.
    ///
    /// # Errors
    ///
    /// On values that [`Limit::new`] rejects.
    pub const fn try_calendar(
        name: &'static str,
        threshold: u64,
        unit: Calendar,
    ) -> Result<Self, LimitError> {
        match Self::new(name, Algorithm::Fixed, threshold, Period::of(unit).duration()) {
            _ if !cfg!(feature = "calendar") => Err(LimitError::NO_CALENDAR),
            Ok(mut limit) => {
                let (period, align) = (Period::of(unit), Some(Align::UTC));
                limit.terms.identity = Identity { period, align, ..limit.terms.identity }.hashed();
                Ok(limit)
            }
            Err(invalid) => Err(invalid),
        }
    }

    /// Admits at most `threshold` units by an estimate: the count of the previous window, multiplied by the fraction of
    /// that window that the trailing `period` still overlaps, plus the count of the current window. Windows start at
    /// multiples of `period` since 1970-01-01 00:00 UTC.
    ///
    /// # Panics
    ///
    /// On values that [`Limit::new`] rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn sliding_counter(name: &'static str, threshold: u64, period: Duration) -> Self {
        valid(Self::new(name, Algorithm::SlidingCounter, threshold, period))
    }

    /// Admits calls while a bucket has tokens. The bucket starts full with `threshold` tokens, and refills by
    /// `threshold` tokens per `period`; [`burst`](Self::burst) sets another capacity.
    ///
    /// The rate is exact if `burst × period / gcd(period, threshold)` is at most 2⁵² µs (142 years), where `gcd`
    /// is the greatest common divisor of the threshold and the period in microseconds. The condition holds if the burst
    /// is at most 52,000 and the period at most a day. It also holds for larger round numbers, such as a million
    /// tokens a day. Any other bucket refills slower by less than `burst` parts in 2⁵⁰, and never faster. With
    /// 1,000,003 tokens a day, an empty bucket is full again less than 50 µs late; with 4,000,000,007 tokens a day, it
    /// is full again less than 0.1 s late.
    ///
    /// # Panics
    ///
    /// On values that [`Limit::new`] rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn token_bucket(name: &'static str, threshold: u64, period: Duration) -> Self {
        valid(Self::new(name, Algorithm::TokenBucket, threshold, period))
    }

    /// Admits one call every `period / threshold`. With [`burst`](Self::burst), it admits `burst` calls at once, and
    /// then one every `period / threshold`.
    ///
    /// # Panics
    ///
    /// On values that [`Limit::new`] rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn leaky_bucket(name: &'static str, threshold: u64, period: Duration) -> Self {
        valid(Self::new(name, Algorithm::LeakyBucket, threshold, period))
    }

    /// Creates a limit from values that are known only at run time. For a name that is known only at run time, see
    /// [`kept_name`](Self::kept_name); for a configuration file, [`Limit::parse`] and the feature `serde`.
    ///
    /// # Errors
    ///
    /// On an empty name; on a threshold of 0 or above 999,999,999,999,999; on a period that is below a microsecond,
    /// above 100 years, or not a whole number of microseconds; on a bucket that takes more than 100 years to fill; on a
    /// bucket or a sliding counter whose amounts would be rounded by more than 0.1 % (above 2,000,000,000,000, unless
    /// the rate is a round number); on [`Algorithm::InFlight`], which has no period.
    pub const fn new(
        name: &'static str,
        algorithm: Algorithm,
        threshold: u64,
        period: Duration,
    ) -> Result<Self, LimitError> {
        if threshold == 0 {
            return Err(LimitError("`threshold` must be at least 1: 0 would reject every call"));
        }
        let period = match Period::new(period) {
            Ok(period) => period,
            Err(invalid) => return Err(invalid),
        };
        if matches!(algorithm, Algorithm::InFlight) {
            return Err(LimitError(
                "calls in flight have no period: use `Limit::in_flight(name, in_flight)`",
            ));
        }
        let identity = Identity::new(name, algorithm, period);
        match Terms::new(identity, threshold, algorithm.default_capacity(threshold)) {
            Ok(terms) => Ok(Self { terms, policy: Policy::DEFAULT }),
            Err(invalid) => Err(invalid),
        }
    }

    /// Sets the capacity of a bucket.
    ///
    /// # Errors
    ///
    /// On a limit that is not a bucket; on a burst of 0, or one that [`new`](Self::new) rejects; on a bucket that takes
    /// more than 100 years to fill, or that is too small for its [`lease`](Self::lease).
    pub const fn try_burst(mut self, burst: u64) -> Result<Self, LimitError> {
        if !self.terms.is_bucket() {
            return Err(LimitError(
                "`burst` is the capacity of a bucket: use it with token_bucket or leaky_bucket",
            ));
        }
        if burst == 0 {
            return Err(LimitError("`burst` must be at least 1: 0 would reject every call"));
        }
        self.terms = match Terms::new(self.terms.identity, self.terms.threshold, burst) {
            Ok(terms) => terms,
            Err(invalid) => return Err(invalid),
        };
        self.policy.has_burst = true;
        match self.policy.lease {
            Lease::None => Ok(self),
            Lease::UpTo(units) => self.try_lease(units),
            Lease::Auto => self.try_auto_lease(),
        }
    }

    /// Starts the windows of a [`fixed`](Self::fixed) limit at calendar boundaries. A window of seven days starts on
    /// Monday. A limit with another align has another count.
    ///
    /// # Errors
    ///
    /// On a limit that is not fixed; on a period that neither divides a day nor is seven days; in a time zone, on one
    /// that is neither a day, a week nor a unit of the calendar; on a day of the month unless the period is a month.
    pub const fn try_align(mut self, align: Align) -> Result<Self, LimitError> {
        if !matches!(self.algorithm(), Algorithm::Fixed) {
            return Err(LimitError("`align` sets where fixed windows start: use it with fixed"));
        }
        if !self.terms.identity.period.fits(align) {
            return Err(LimitError(if align.day > 1 {
                "`align_day` is the day on which months begin: use it with the period `month`"
            } else if align.get_offset_minutes().is_none() {
                "in a time zone, a window is a day (1d), a week (7d), a month, a quarter or a year"
            } else {
                "with `align`, `period` must divide a day (15m, 1h, 1d), or be a week (7d) or a month"
            }));
        }
        self.terms.identity = Identity { align: Some(align), ..self.terms.identity }.hashed();
        Ok(self)
    }

    /// Sets the capacity of a bucket. A burst above 52,000 can make the rate a little slower: see
    /// [`token_bucket`](Self::token_bucket).
    ///
    /// # Panics
    ///
    /// On values that [`try_burst`](Self::try_burst) rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn burst(self, burst: u64) -> Self {
        valid(self.try_burst(burst))
    }

    /// Starts the windows of a [`fixed`](Self::fixed) limit at calendar boundaries, by the clock of the store. On the
    /// embedded store, time in which the machine was suspended does not count: see [`Clock`](crate::Clock).
    ///
    /// # Panics
    ///
    /// On values that [`try_align`](Self::try_align) rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn align(self, align: Align) -> Self {
        valid(self.try_align(align))
    }

    /// Returns the identity and the amounts.
    pub(crate) const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Returns how a call of this limit is treated before and after its decision.
    #[must_use]
    pub const fn policy(&self) -> Policy {
        self.policy
    }
}

/// Returns a valid limit.
///
/// # Panics
///
/// With the message of the error; in a `const`, that is a compile error.
#[track_caller]
const fn valid<T: Copy>(value: Result<T, LimitError>) -> T {
    match value {
        Ok(value) => value,
        Err(invalid) => panic!("{}", invalid.0),
    }
}

/// The error of a [`Limit`](crate::Limit) with a wrong value. Its text says what is wrong, and what to write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LimitError(pub(crate) &'static str);

impl LimitError {
    pub(crate) const TOO_LARGE: Self =
        Self("an amount is at most 999,999,999,999,999: count in a larger unit, such as thousands");

    /// The largest amount: what a header field can show (RFC 9651, section 3.3.1).
    pub(crate) const MAX_AMOUNT: u64 = 999_999_999_999_999;

    /// The error of a unit of the calendar or of a zone, in a build without the feature.
    const NO_CALENDAR: Self = Self(
        "months, quarters, years and time zones need the feature `calendar` of `ratelimit-runtime`: enable it",
    );

    const NO_NAME: Self =
        Self("the name of a limit must not be empty: write a name such as `login`");

    const REMEMBERS: Self =
        Self("a limit that remembers calls has no amounts: change the limit beside it");

    /// The longest period and the longest time a bucket may take to fill: 100 years.
    ///
    /// Lua computes times in `f64`, which is exact for integers below 2⁵³. With this bound, a time plus two
    /// periods stays below 2⁵³ microseconds.
    pub(crate) const MAX_US: u64 = 36_525 * 86_400_000_000;
}

error_of_text!(LimitError);

impl Limit {
    /// Returns the name of this limit. Limits with the same name, algorithm, period, align and
    /// scope share their counts.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.terms.identity.name
    }

    /// Returns the algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.terms.identity.algorithm
    }

    /// Returns the units that are admitted per period, or that may be in flight; 0 if an
    /// [amount of 0](Self::try_amounts) blocks the limit.
    #[must_use]
    pub const fn threshold(&self) -> u64 {
        if self.policy.blocked { 0 } else { self.terms.threshold }
    }

    /// Returns the length of the window, or the time in which `threshold` tokens refill; zero if the limit is one of
    /// calls [in flight](Self::in_flight).
    #[must_use]
    pub const fn period(&self) -> Duration {
        self.quota().period()
    }

    /// Returns the largest number of units that can be admitted at once: the burst of a bucket, or the threshold of a
    /// window; 0 if an [amount of 0](Self::try_amounts) blocks the limit.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        if self.policy.blocked { 0 } else { self.terms.capacity }
    }

    /// Returns the [burst](Self::burst), if one is set.
    #[must_use]
    pub const fn get_burst(&self) -> Option<u64> {
        if self.policy.has_burst { Some(self.capacity()) } else { None }
    }

    /// Returns the unit of the calendar, if windows have one.
    #[must_use]
    pub const fn get_calendar(&self) -> Option<Calendar> {
        self.terms.identity.period.calendar
    }

    /// Returns where windows start, if an [align](Self::align) is set.
    #[must_use]
    pub const fn get_align(&self) -> Option<Align> {
        self.terms.align()
    }
}
