//! A circuit breaker: whether Redis is worth asking.
//!
//! It opens when a connection cannot be made, or when several decisions in a row ran into their
//! deadline. While it is open nothing is asked, so that a Redis that is away costs no time; a probe
//! in the background finds out when it is back.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::StoreError;

/// So many decisions in a row that ran into their deadline open the breaker.
const STRIKES: u32 = 3;

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

    /// An answer came.
    pub(super) fn answered(&self) {
        if self.strikes.load(Ordering::Relaxed) > 0 {
            self.strikes.store(0, Ordering::Relaxed);
        }
    }

    /// A decision ran into its deadline. Says whether it was the last that is borne.
    pub(super) fn strike(&self) -> bool {
        self.strikes.fetch_add(1, Ordering::Relaxed) + 1 >= STRIKES
    }

    /// Opens the breaker. Says whether it was closed; whoever opened it starts the probe.
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

/// The pauses before each probe: twice as long each time, and a quarter shorter or longer by chance,
/// so that the processes of a fleet do not probe together.
pub(super) fn pauses() -> impl Iterator<Item = Duration> {
    let random = std::hash::RandomState::new();
    let [first, longest] = PAUSES;
    let lengths = std::iter::successors(Some(first), move |last| Some((*last * 2).min(longest)));
    lengths.enumerate().map(move |(index, length)| {
        let chance = std::hash::BuildHasher::hash_one(&random, index) % 512;
        length * (768 + chance as u32) / 1024
    })
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
        let one: Vec<_> = pauses().take(20).collect();
        assert_ne!(one, pauses().take(20).collect::<Vec<_>>());
        assert!(one[0] <= Duration::from_millis(63) && one[0] >= Duration::from_millis(37));
        assert!(one[10..].iter().all(|pause| *pause <= Duration::from_millis(500)));
        assert!(one[10..].iter().all(|pause| *pause >= Duration::from_millis(300)));
    }
}
