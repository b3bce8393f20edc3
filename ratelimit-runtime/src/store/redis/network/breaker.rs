//! The circuit breaker of a server in one runtime: decides whether the server receives requests.
//!
//! The breaker opens when a connection cannot be made, when the server decides no calls (a replica, or one that rejects
//! the keys of scripts), or when it has not replied for several deadlines. While it is open, no caller sends a request,
//! so a server that is down costs no time. The background thread probes the server (`node/jobs.rs`). When the server
//! answers a probe, the breakers of all runtimes half-open: callers send requests again, and one timeout opens the
//! breaker again.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::reply::StoreError;

/// The breaker opens after this many decisions in a row have timed out, or once a request on a connection has
/// been unanswered for this many deadlines.
pub(crate) const TIMEOUTS_TO_OPEN: u32 = 3;

/// The first and the longest pause between probes, before jitter.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(400)];

#[derive(Debug, Default)]
pub(crate) struct Breaker {
    is_open: AtomicBool,
    /// How many decisions in a row have timed out.
    timeouts: AtomicU32,
    cause: Mutex<Option<Arc<StoreError>>>,
}

impl Breaker {
    /// Returns the error that callers receive while the breaker is open; `None` while it is closed.
    pub(crate) fn open_error(&self) -> Option<StoreError> {
        if !self.is_open.load(Ordering::Relaxed) {
            return None;
        }
        let cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cause.map(|cause| StoreError::CircuitOpen { cause })
    }

    /// Records a reply. Returns whether it is the first after a timeout or a probe.
    pub(crate) fn record_reply(&self) -> bool {
        let is_first = self.timeouts.load(Ordering::Relaxed) > 0;
        if is_first {
            self.timeouts.store(0, Ordering::Relaxed);
        }
        is_first
    }

    /// Records that a decision timed out. Returns whether the breaker must open.
    pub(crate) fn record_timeout(&self) -> bool {
        self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_TO_OPEN
    }

    /// Opens the breaker. Returns whether it was closed.
    pub(crate) fn open(&self, cause: StoreError) -> bool {
        // First the cause: a caller that sees the breaker open finds it.
        *self.cause.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(cause));
        !self.is_open.swap(true, Ordering::Relaxed)
    }

    /// Half-opens the breaker after a probe: callers send requests again, and one timeout opens it again.
    pub(crate) fn half_open(&self) {
        self.timeouts.store(TIMEOUTS_TO_OPEN - 1, Ordering::Relaxed);
        self.is_open.store(false, Ordering::Relaxed);
    }
}

/// Returns the pause before the next probe, after `failures` in a row. The pause doubles with each failure up
/// to the longest. Jitter makes it up to a quarter shorter or longer, so that the processes of a fleet do not
/// probe at the same time.
pub(crate) fn pause_after(failures: u32) -> Duration {
    let [first, longest] = PAUSES;
    let pause = first.saturating_mul(1 << failures.min(8)).min(longest);
    let jitter = RandomState::new().hash_one(failures) % 512;
    pause * (768 + jitter as u32) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_after_several_timeouts_or_one_when_half_open() {
        let breaker = Breaker::default();
        let cause = || StoreError::ShuttingDown;
        assert!(!breaker.record_timeout() && !breaker.record_timeout());
        breaker.record_reply();
        assert!(!breaker.record_timeout() && !breaker.record_timeout() && breaker.record_timeout());
        assert!(breaker.open_error().is_none());
        assert!(breaker.open(cause()) && !breaker.open(cause()));
        assert!(matches!(breaker.open_error(), Some(StoreError::CircuitOpen { .. })));
        breaker.half_open();
        assert!(breaker.open_error().is_none());
        assert!(breaker.record_timeout(), "one timeout opens a half-open breaker");
        breaker.record_reply();
        assert!(!breaker.record_timeout());
    }

    #[test]
    fn pauses_grow_and_have_jitter() {
        let first: Vec<_> = (0..20).map(|_| pause_after(0)).collect();
        assert!(first.iter().all(|pause| (37..=63).contains(&pause.as_millis())), "{first:?}");
        assert!(first.iter().any(|pause| *pause != first[0]), "{first:?}");
        for failures in [3, 10, u32::MAX] {
            let pause = pause_after(failures).as_millis();
            assert!((300..=500).contains(&pause), "{pause} ms after {failures}");
        }
    }
}
