//! The births of states: random numbers, by which a charge finds only the state that counts it.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::background::seen_process;

/// Draws births. No two processes draw the same, also after a fork.
#[derive(Default)]
pub(crate) struct Births {
    random: RandomState,
    drawn: AtomicU64,
}

impl Births {
    /// Returns a number of 7 bytes that is not 0.
    pub(crate) fn draw(&self) -> u64 {
        // SipHash of a counter under a random key, which a child has in common with its parent.
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let number = self.random.hash_one((seen_process(), drawn));
        (number >> 8).max(1)
    }
}
