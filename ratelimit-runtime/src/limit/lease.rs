//! What of a limit is paid for in advance, and by how much stricter that makes it; `lease.rs` says why.

use super::{Algorithm, Grain, InvalidLimit, Limit, identity};

/// The shortest period whose permits are kept for long enough to be of use.
const SHORTEST_US: u64 = 100_000;

/// A permit is kept for this part of the period.
const PART: u64 = 100;

/// And for a second at most.
const LONGEST_US: u64 = 1_000_000;

impl Limit {
    /// Pays up to `permits` units of a busy key in advance, in one question to Redis, and lets calls
    /// spend them in this process: most calls then take less than a microsecond, and Redis is asked once
    /// for many.
    ///
    /// Never more is admitted for it, by however many processes. What it costs:
    ///
    /// - Up to `permits` units of each process may stand idle while another is refused, for a hundredth
    ///   of the period, and for a second at most. Then, or by
    ///   [`return_leases`](crate::RateLimiter::return_leases), or when the limiter is dropped, they are
    ///   given back; those of a process that was killed leave the window by themselves. How many are asked
    ///   for follows demand: a key that is rarely used has none in advance.
    /// - As a unit may be spent a little later than it was charged, the limit is counted a little more
    ///   strictly: over a `period` that is longer by a hundredth, and by a second at most, or with a
    ///   `burst` that is smaller by what refills in that time; also for processes that share the bucket and
    ///   do not lease, while leased units may be spent. The windows of [`fixed`](Self::fixed) are as
    ///   they were, for a permit never outlives its window.
    /// - Such a period is another period: leasing, or not leasing any more, starts new counts, but for
    ///   `fixed` and the buckets.
    ///
    /// On the embedded store, and with [`Scope::Process`](crate::Scope::Process), there is no way to
    /// save, and this changes nothing; nor does it where calls [`wait`](Self::wait). Several limits in one
    /// decision are always asked about.
    ///
    /// # Errors
    ///
    /// On 0 permits; on more than the limit admits at once, less what a bucket refills meanwhile; on a
    /// period below 100 milliseconds.
    pub const fn try_lease(mut self, permits: u32) -> Result<Self, InvalidLimit> {
        if permits == 0 {
            return Err(InvalidLimit("`lease` must be at least 1: 0 would lease nothing"));
        }
        if self.period_us < SHORTEST_US {
            return Err(InvalidLimit(
                "a lease lasts for a hundredth of the period: with `lease`, `period` must be at \
                 least 100 ms",
            ));
        }
        if self.burst as u64 <= self.reserve() {
            return Err(InvalidLimit(
                "with `lease`, `burst` must be more than refills in a hundredth of the period, a \
                 second at most, and that is at least 1: raise `burst`",
            ));
        }
        if permits > self.leased_capacity() {
            return Err(InvalidLimit(
                "`lease` must be at most what can be admitted at once: the threshold, or the burst of \
                 a bucket less what refills in a hundredth of the period, a second at most",
            ));
        }
        self.lease = permits;
        Ok(self)
    }

    /// Pays up to `permits` units of a busy key in advance, in one question to Redis; see
    /// [`try_lease`](Self::try_lease).
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::Limit;
    ///
    /// const API: Limit = Limit::sliding("api", 10_000, Duration::from_secs(60)).lease(50);
    /// ```
    ///
    /// # Panics
    ///
    /// On values that `try_lease` refuses; in a `const` that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn lease(self, permits: u32) -> Self {
        match self.try_lease(permits) {
            Ok(limit) => limit,
            Err(invalid) => panic!("{}", invalid.0),
        }
    }

    /// How many units may be leased; 0 when every call is asked about.
    #[inline]
    pub(crate) const fn permits(&self) -> u32 {
        self.lease
    }

    /// For how long after its charge a unit may be spent, in microseconds.
    pub(crate) const fn term_us(&self) -> u64 {
        let term = self.period_us / PART;
        if term < LONGEST_US { term } else { LONGEST_US }
    }

    /// The most that can be admitted at once by what is left for leases.
    pub(crate) const fn leased_capacity(&self) -> u32 {
        self.burst - self.reserve() as u32
    }

    /// The limit by which leases are charged: what it admits may be spent a term later, and still is
    /// within this one.
    pub(crate) fn leased(&self) -> Self {
        let stretch_us = match self.algorithm {
            Algorithm::Sliding | Algorithm::SlidingCounter => self.term_us(),
            _ => 0,
        };
        let period_us = self.period_us + stretch_us;
        let burst = self.leased_capacity();
        Self {
            period_us,
            stretch_us,
            burst,
            reserved: self.reserve() as u32,
            lease: 0,
            identity: identity(self.algorithm, period_us, self.align, self.name),
            // Processes that do not lease count the same bucket at this rate; windows use none.
            rate: self.rate,
            grain: Grain::new(self.threshold, period_us),
            ..*self
        }
    }

    /// The tokens that a bucket keeps for as long as leased units may be spent; 0 unless this is
    /// [`leased`](Self::leased).
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "scripts are told"))]
    pub(crate) const fn reserved(&self) -> u32 {
        self.reserved
    }

    /// What a bucket refills in a term, rounded up.
    const fn reserve(&self) -> u64 {
        if !self.algorithm.is_bucket() {
            return 0;
        }
        (self.threshold as u64 * self.term_us()).div_ceil(self.period_us)
    }
}
