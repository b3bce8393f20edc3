//! The algorithms by which a limit can count. ARCHITECTURE.md, "Adding an algorithm", lists the other parts of
//! an algorithm.

use std::fmt;

/// The algorithm by which a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// A log of the calls that were admitted in the last period: exact.
    Sliding,
    /// A count that starts at zero in each window.
    Fixed,
    /// The counts of two windows, and an estimate from them: close to `Sliding`, with as little memory as `Fixed`.
    SlidingCounter,
    /// A bucket whose tokens refill continuously, up to its burst.
    TokenBucket,
    /// A token bucket whose burst is 1 unless set: evenly spaced calls.
    LeakyBucket,
    /// The units of the calls that run now: [`Limit::in_flight`](crate::Limit::in_flight).
    InFlight,
}

impl Algorithm {
    /// The algorithms that limit a rate.
    pub(crate) const RATES: [Self; 5] =
        [Self::Sliding, Self::Fixed, Self::SlidingCounter, Self::TokenBucket, Self::LeakyBucket];

    /// Returns the word for this algorithm in the attribute and in Redis keys.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sliding => "sliding",
            Self::Fixed => "fixed",
            Self::SlidingCounter => "sliding_counter",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::InFlight => "in_flight",
        }
    }

    /// Returns the capacity of a limit without a burst.
    pub(super) const fn default_capacity(self, threshold: u64) -> u64 {
        if matches!(self, Self::LeakyBucket) { 1 } else { threshold }
    }

    pub(super) const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
