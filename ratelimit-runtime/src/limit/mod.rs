//! What a limit says: algorithm, threshold, period, burst, alignment. Everything that can be wrong
//! with it is found here, at compile time when the limit is a `const`.

mod bucket;
mod identity;
mod invalid;
mod lease;
mod quota;
mod terms;

use std::time::Duration;

pub(crate) use self::bucket::BucketLimit;
use self::identity::identity;
pub use self::invalid::InvalidLimit;
pub use self::quota::Quota;
pub use self::terms::{Algorithm, Align, OnError, Scope};

use crate::algorithm::bucket::Rate;
use crate::algorithm::sliding_counter::Grain;

const DAY_US: u64 = 86_400_000_000;

/// A limit: what is counted under which name, and how much of it is admitted.
///
/// Constructors are `const`, so a bad value in a `const` is a compile error; at run time
/// [`Limit::new`] returns the same message as an [`InvalidLimit`].
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    name: &'static str,
    algorithm: Algorithm,
    threshold: u32,
    period_us: u64,
    burst: u32,
    align: Option<Align>,
    scope: Scope,
    on_error: Option<OnError>,
    shadow: bool,
    wait: Option<Duration>,
    /// How many units may be paid for in advance; 0 when none are.
    lease: u32,
    /// What a bucket keeps for leased units; see [`Limit::leased`].
    reserved: u32,
    /// By how much the period is longer than it was said to be; see [`Limit::leased`].
    stretch_us: u64,
    /// A hash of what a count belongs to beside its key: algorithm, period, align and name.
    pub(crate) identity: u128,
    pub(crate) rate: Rate,
    pub(crate) grain: Grain,
}

impl Limit {
    /// At most `threshold` in any trailing `period`, exactly: the log of admitted calls is kept.
    ///
    /// # Panics
    ///
    /// On values that [`Limit::new`] refuses; in a `const` that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn sliding(name: &'static str, threshold: u32, period: Duration) -> Self {
        Self::expect(name, Algorithm::Sliding, threshold, period)
    }

    /// At most `threshold` in each window of `period`, which begins with the first admitted call,
    /// or at the calendar boundary with [`align`](Self::align).
    ///
    /// # Panics
    ///
    /// On values that [`Limit::new`] refuses; in a `const` that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn fixed(name: &'static str, threshold: u32, period: Duration) -> Self {
        Self::expect(name, Algorithm::Fixed, threshold, period)
    }

    /// At most `threshold` by the estimate "previous window × what of it still overlaps + current
    /// window", over windows that begin at multiples of `period`.
    ///
    /// # Panics
    ///
    /// On values that [`Limit::new`] refuses; in a `const` that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn sliding_counter(name: &'static str, threshold: u32, period: Duration) -> Self {
        Self::expect(name, Algorithm::SlidingCounter, threshold, period)
    }

    /// A bucket of `threshold` tokens, full at first, refilled at `threshold` per `period`.
    /// [`burst`](Self::burst) sets another capacity.
    ///
    /// The rate is exact if `burst × period / gcd(period, threshold)` is at most 2⁵² µs (142 years), where
    /// `gcd` is the greatest common divisor of the threshold and the period in microseconds. That holds for
    /// every bucket of up to 52,000 tokens a day, and for round numbers far beyond: a million a day. Any
    /// other bucket refills slower by less than `burst` parts in 2⁵¹, and never faster. With 1,000,003
    /// tokens a day, an empty bucket is full again less than a nanosecond late; with 4,000,000,007, less
    /// than 0.2 ms late.
    ///
    /// # Panics
    ///
    /// On values that [`Limit::new`] refuses; in a `const` that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn token_bucket(name: &'static str, threshold: u32, period: Duration) -> Self {
        Self::expect(name, Algorithm::TokenBucket, threshold, period)
    }

    /// Calls spaced by `period / threshold`. [`burst`](Self::burst) lets that many go at once.
    ///
    /// # Panics
    ///
    /// On values that [`Limit::new`] refuses; in a `const` that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn leaky_bucket(name: &'static str, threshold: u32, period: Duration) -> Self {
        Self::expect(name, Algorithm::LeakyBucket, threshold, period)
    }

    /// A limit from values that are known at run time only: a plan, a configuration file. The name
    /// is a literal, or one that is made once and kept: `String::leak`.
    ///
    /// # Errors
    ///
    /// An empty name; a threshold of 0; a period below a microsecond, not of whole microseconds or
    /// above 100 years; a bucket that takes more than 100 years to fill.
    pub const fn new(
        name: &'static str,
        algorithm: Algorithm,
        threshold: u32,
        period: Duration,
    ) -> Result<Self, InvalidLimit> {
        if name.is_empty() {
            return Err(InvalidLimit("the name of a limit must not be empty: it is its identity"));
        }
        if threshold == 0 {
            return Err(InvalidLimit("`threshold` must be at least 1: 0 would refuse every call"));
        }
        if !period.subsec_nanos().is_multiple_of(1000) {
            return Err(InvalidLimit("`period` must be a whole number of microseconds"));
        }
        let period_us = period.as_micros();
        if period_us == 0 {
            return Err(InvalidLimit("`period` must be at least one microsecond"));
        }
        if period_us > InvalidLimit::MAX_US as u128 {
            return Err(InvalidLimit("`period` must be at most 100 years (36,525 days)"));
        }
        let period_us = period_us as u64;
        let burst = match algorithm {
            Algorithm::LeakyBucket => 1,
            _ => threshold,
        };
        match Rate::new(threshold, period_us, burst) {
            Some(rate) => Ok(Self {
                name,
                algorithm,
                threshold,
                period_us,
                burst,
                align: None,
                scope: Scope::Global,
                on_error: None,
                shadow: false,
                wait: None,
                lease: 0,
                reserved: 0,
                stretch_us: 0,
                identity: identity(algorithm, period_us, None, name),
                rate,
                grain: Grain::new(threshold, period_us),
            }),
            None => Err(InvalidLimit::SLOW_FILL),
        }
    }

    /// Sets the capacity of a bucket.
    ///
    /// # Errors
    ///
    /// On a limit that is not a bucket; a burst of 0; a bucket that takes more than 100 years to fill, or
    /// is too small for its [`lease`](Self::lease).
    pub const fn try_burst(mut self, burst: u32) -> Result<Self, InvalidLimit> {
        if !self.algorithm.is_bucket() {
            return Err(InvalidLimit(
                "`burst` is the capacity of a bucket: use it with token_bucket or leaky_bucket",
            ));
        }
        if burst == 0 {
            return Err(InvalidLimit("`burst` must be at least 1: 0 would refuse every call"));
        }
        match Rate::new(self.threshold, self.period_us, burst) {
            Some(rate) => {
                self.burst = burst;
                self.rate = rate;
                match self.lease {
                    0 => Ok(self),
                    permits => self.try_lease(permits),
                }
            }
            None => Err(InvalidLimit::SLOW_FILL),
        }
    }

    /// Lets the windows of a [`fixed`](Self::fixed) limit begin at calendar boundaries. A period of
    /// seven days begins on Monday. Another align is another count, as another period is.
    ///
    /// # Errors
    ///
    /// On a limit that is not fixed; on a period that neither divides a day nor is whole days.
    pub const fn try_align(mut self, align: Align) -> Result<Self, InvalidLimit> {
        if !matches!(self.algorithm, Algorithm::Fixed) {
            return Err(InvalidLimit("`align` places fixed windows: use it with fixed"));
        }
        if !DAY_US.is_multiple_of(self.period_us) && !self.period_us.is_multiple_of(DAY_US) {
            return Err(InvalidLimit(
                "with `align`, `period` must divide a day (1h, 15m) or be whole days (1d, 7d)",
            ));
        }
        self.align = Some(align);
        self.identity = identity(self.algorithm, self.period_us, self.align, self.name);
        Ok(self)
    }

    /// Sets the capacity of a bucket. Above 52,000 tokens a day, the rate can become a little slower:
    /// see [`token_bucket`](Self::token_bucket).
    ///
    /// # Panics
    ///
    /// On values that [`try_burst`](Self::try_burst) refuses; in a `const` that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn burst(self, burst: u32) -> Self {
        match self.try_burst(burst) {
            Ok(limit) => limit,
            Err(invalid) => panic!("{}", invalid.0),
        }
    }

    /// Lets the windows of a [`fixed`](Self::fixed) limit begin at calendar boundaries.
    ///
    /// # Panics
    ///
    /// On values that [`try_align`](Self::try_align) refuses; in a `const` that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn align(self, align: Align) -> Self {
        match self.try_align(align) {
            Ok(limit) => limit,
            Err(invalid) => panic!("{}", invalid.0),
        }
    }

    /// Says who counts together; [`Scope::Global`] unless set.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Says what becomes of a call when Redis cannot decide; what the limiter was
    /// [built with](crate::Builder::on_error) unless set.
    #[must_use]
    pub const fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = Some(on_error);
        self
    }

    /// Lets every call go on, for trying a limit out. Calls are decided, counted and reported as
    /// ever, but [`check`](crate::RateLimiter::check) is `Ok` also where the
    /// [`Decision`](crate::Decision) says that the call was not `allowed`.
    #[must_use]
    pub const fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// Lets a call wait up to that long for its permit, instead of being refused at once.
    ///
    /// Calls that want the same key are admitted first come, first served: those of all processes with
    /// a bucket, where a call books its moment ahead in one question to the store; those of one
    /// process with the other algorithms, and with several limits in one decision.
    ///
    /// With a bucket alone, a call that cannot be admitted in time is refused at once; with the others,
    /// as soon as that is known. One that gives up gives back what it booked, and those of its cost
    /// behind it in its process move up; when a call of another process, or of another cost, has booked
    /// a bucket behind it, its moment is left to the next of its cost here, or passes unused. While
    /// calls wait for a bucket, there is nothing to [`refund`](crate::RateLimiter::refund).
    ///
    /// Waiting needs a tokio runtime with time enabled.
    #[must_use]
    pub const fn wait(self, wait: Duration) -> Self {
        self.patient(Some(wait))
    }

    /// The name of this limit. Limits of one name, algorithm, period and align share their counts.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// How this limit counts.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The cost admitted per period.
    #[must_use]
    pub const fn threshold(&self) -> u32 {
        self.threshold
    }

    /// The length of the window, or the time in which `threshold` tokens refill.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_micros(self.period_us)
    }

    /// The most that can be admitted at once: the burst of a bucket, the threshold of a window.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.burst
    }

    pub(crate) const fn counts_in_process(&self) -> bool {
        matches!(self.scope, Scope::Process)
    }

    pub(crate) const fn policy(&self) -> Option<OnError> {
        self.on_error
    }

    pub(crate) const fn is_shadow(&self) -> bool {
        self.shadow
    }

    pub(crate) const fn patient(mut self, wait: Option<Duration>) -> Self {
        self.wait = wait;
        self
    }

    /// How long a call may wait. A shadow refuses nothing, so there is nothing to wait for.
    pub(crate) const fn patience(&self) -> Option<Duration> {
        if self.shadow { None } else { self.wait }
    }

    /// Whether calls under both limits are to be treated alike.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        (self.scope, self.on_error, self.shadow, self.wait)
            == (other.scope, other.on_error, other.shadow, other.wait)
    }

    /// What one of so many processes may admit by itself: its share, and at least one.
    pub(crate) fn share(&self, instances: u32) -> Self {
        if instances <= 1 {
            return *self;
        }
        let (threshold, burst) =
            ((self.threshold / instances).max(1), (self.burst / instances).max(1));
        let rate = Rate::new(threshold, self.period_us, burst).unwrap_or(self.rate);
        let grain = Grain::new(threshold, self.period_us);
        Self { threshold, burst, rate, grain, ..*self }
    }

    /// The period in the largest unit that it is a whole number of.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "keys in Redis have it"))]
    pub(crate) const fn period_in_units(&self) -> (u64, &'static str) {
        match self.period_us {
            us if us.is_multiple_of(DAY_US) => (us / DAY_US, "d"),
            us if us.is_multiple_of(3_600_000_000) => (us / 3_600_000_000, "h"),
            us if us.is_multiple_of(60_000_000) => (us / 60_000_000, "m"),
            us if us.is_multiple_of(1_000_000) => (us / 1_000_000, "s"),
            us if us.is_multiple_of(1_000) => (us / 1_000, "ms"),
            us => (us, "us"),
        }
    }

    /// Where aligned windows begin.
    pub(crate) const fn aligned(&self) -> Option<Align> {
        self.align
    }

    pub(crate) const fn period_us(&self) -> u64 {
        self.period_us
    }

    /// How far calendar boundaries lie before multiples of the period since the epoch, in
    /// microseconds below the period; `None` when windows begin with their first call.
    pub(crate) const fn shift_us(&self) -> Option<u64> {
        match self.align {
            None => None,
            Some(align) => {
                let offset = align.offset_minutes as i64 * 60_000_000;
                // The epoch was a Thursday; weeks begin on Monday.
                let week = if self.period_us == 7 * DAY_US { 3 * DAY_US } else { 0 };
                let shift = offset + week as i64;
                Some(shift.rem_euclid(self.period_us as i64) as u64)
            }
        }
    }

    #[track_caller]
    const fn expect(
        name: &'static str,
        algorithm: Algorithm,
        threshold: u32,
        period: Duration,
    ) -> Self {
        match Self::new(name, algorithm, threshold, period) {
            Ok(limit) => limit,
            Err(invalid) => panic!("{}", invalid.0),
        }
    }
}
