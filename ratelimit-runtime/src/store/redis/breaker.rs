//! A circuit breaker: whether Redis is worth asking.
//!
//! It opens when a connection cannot be made, or when several decisions in a row ran into their
//! deadline. While it is open nothing is asked, so that a Redis that is away costs no time; the
//! background thread probes the server, and closes the breakers that are open in any runtime once it answers.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::reply::StoreError;

/// So many decisions in a row that ran into their deadline open the breaker, and so does a link on which
/// nothing has come for as many deadlines.
pub(super) const STRIKES: u32 = 3;

/// The pauses between probes, from the first to the longest. Redis is back for at most the longest
/// before it is asked again.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(400)];

#[derive(Default)]
pub(super) struct Breaker {
    open: AtomicBool,
    strikes: AtomicU32,
    cause: Mutex<Option<Arc<StoreError>>>,
}

impl Breaker {
    /// Why nothing is asked, if nothing is.
    pub(super) fn is_open(&self) -> Option<StoreError> {
        if !self.open.load(Ordering::Relaxed) {
            return None;
        }
        let cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cause.map(|cause| StoreError::CircuitOpen { cause })
    }

    /// A reply came. Says whether it is the first after a strike or a probe.
    pub(super) fn answered(&self) -> bool {
        let is_first = self.strikes.load(Ordering::Relaxed) > 0;
        if is_first {
            self.strikes.store(0, Ordering::Relaxed);
        }
        is_first
    }

    /// A decision ran into its deadline. Says whether it was the last that is borne.
    pub(super) fn strike(&self) -> bool {
        self.strikes.fetch_add(1, Ordering::Relaxed) + 1 >= STRIKES
    }

    /// Opens the breaker. Says whether it was closed.
    pub(super) fn opens(&self, cause: StoreError) -> bool {
        *self.cause.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(cause));
        !self.open.swap(true, Ordering::Relaxed)
    }

    /// A probe was answered. The next decision that runs into its deadline opens it again.
    pub(super) fn closes(&self) {
        self.strikes.store(STRIKES - 1, Ordering::Relaxed);
        self.open.store(false, Ordering::Relaxed);
    }
}

/// The pause before a probe, after so many that were in vain: twice as long each time, and a quarter
/// shorter or longer by chance, so that the processes of a fleet do not probe together.
pub(super) fn pause(setbacks: u32) -> Duration {
    let [first, longest] = PAUSES;
    let length = first.saturating_mul(1 << setbacks.min(8)).min(longest);
    let chance = RandomState::new().hash_one(setbacks) % 512;
    length * (768 + chance as u32) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_and_closes() {
        let breaker = Breaker::default();
        let cause = || StoreError::NoRuntime;
        assert!(!breaker.strike() && !breaker.strike());
        breaker.answered();
        assert!(!breaker.strike() && !breaker.strike() && breaker.strike());
        assert!(breaker.is_open().is_none());
        assert!(breaker.opens(cause()) && !breaker.opens(cause()));
        assert!(matches!(breaker.is_open(), Some(StoreError::CircuitOpen { .. })));
        breaker.closes();
        assert!(breaker.is_open().is_none());
        assert!(breaker.strike(), "half open");
        breaker.answered();
        assert!(!breaker.strike());
    }

    #[test]
    fn pauses_grow_and_differ() {
        let few: Vec<_> = (0..20).map(|_| pause(0)).collect();
        assert!(few.iter().all(|pause| (37..=63).contains(&pause.as_millis())), "{few:?}");
        assert!(few.iter().any(|pause| *pause != few[0]), "{few:?}");
        for setbacks in [3, 10, u32::MAX] {
            let pause = pause(setbacks).as_millis();
            assert!((300..=500).contains(&pause), "{pause} ms after {setbacks}");
        }
    }
}
