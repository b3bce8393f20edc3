//! What a limit admits in which time: the part of it that clients are told.

use std::time::Duration;

use super::Limit;

/// So much per period: what a client is told of a limit, whatever its algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    threshold: u32,
    period_us: u64,
}

impl Quota {
    /// The cost admitted per period.
    #[must_use]
    pub const fn threshold(self) -> u32 {
        self.threshold
    }

    /// The length of the window, or the time in which a bucket gains `threshold` tokens.
    #[must_use]
    pub const fn period(self) -> Duration {
        Duration::from_micros(self.period_us)
    }
}

impl Limit {
    /// What this limit admits in which time.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        Quota { threshold: self.threshold, period_us: self.period_us - self.stretch_us }
    }
}
