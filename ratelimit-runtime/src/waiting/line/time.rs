//! The times of a line, by two clocks.

use std::time::Instant;

/// The time, by both clocks that a line uses.
#[derive(Clone, Copy, Debug)]
pub(in crate::waiting) struct Now {
    /// By the clock of the limiter: of moments, waits and `retry_after`.
    pub(in crate::waiting) local: u64,
    /// Real time: of grants that are not taken, and of the pauses between requests.
    pub(in crate::waiting) real: Instant,
}

/// The times of a request and its reply.
#[derive(Clone, Copy)]
pub(super) struct ReplyTimes {
    pub(super) asked: Now,
    pub(super) received: Now,
}

/// The times at which the driver of a line acts next.
#[derive(Clone, Copy, Default)]
pub(in crate::waiting) struct WakeTimes {
    pub(in crate::waiting) local: Option<u64>,
    pub(in crate::waiting) real: Option<Instant>,
}

impl WakeTimes {
    pub(super) fn has_come(self, now: Now) -> bool {
        self.local.is_some_and(|at| at <= now.local) || self.real.is_some_and(|at| at <= now.real)
    }

    pub(super) fn or_earlier(self, other: Self) -> Self {
        let local = self.local.into_iter().chain(other.local).min();
        let real = self.real.into_iter().chain(other.real).min();
        Self { local, real }
    }
}
