//! Finds the busy keys: those with many calls in a short time, without a count for each key.
//!
//! Keys share cells. A cell counts the calls of the key with the most calls: a call of another key lowers the count,
//! and takes the cell once the count is 0. If the other key has another term, it takes the cell at once, because its
//! intervals have other numbers. Counts are estimates, also because threads can overwrite each other: they affect how
//! a call is decided, and never the decision.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::key::KeyId;

/// A key is busy once it has so many calls in one interval.
const BUSY: u8 = 8;

/// So many that the calls of keys that are not busy rarely disturb: a power of two.
const CELLS: usize = 8_192;

/// The largest number of an interval that a cell can hold. Later intervals have the same numbers again.
const MAX_INTERVAL: u32 = (1 << 24) - 1;

/// The calls of the current interval, estimated.
pub(super) struct Heat {
    /// Each cell has, from the highest bit: 32 bits of the id of its key, the interval (24) and the count (8).
    cells: Box<[AtomicU64]>,
}

impl Default for Heat {
    fn default() -> Self {
        Self { cells: (0..CELLS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Heat {
    /// Counts a call, and returns whether its key is busy in this interval.
    pub(super) fn is_busy(&self, key_id: KeyId, interval: u64) -> bool {
        let bits = key_id.bits();
        let (key, interval) = ((bits >> 96) as u32, interval as u32 & MAX_INTERVAL);
        let cell = &self.cells[(bits >> 1) as usize % CELLS];
        let known = cell.load(Relaxed);
        let (known_key, count) = ((known >> 32) as u32, known as u8);
        let is_current = (known >> 8) as u32 & MAX_INTERVAL == interval;
        let (next_key, count) = match count {
            count if !is_current || count == 0 => (key, 1),
            count if known_key == key => (key, count.saturating_add(1).min(BUSY)),
            count => (known_key, count - 1),
        };
        let next = u64::from(next_key) << 32 | u64::from(interval) << 8 | u64::from(count);
        cell.store(next, Relaxed);
        next_key == key && count == BUSY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u128) -> KeyId {
        KeyId::from_bits(number.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
    }

    #[test]
    fn a_key_with_many_calls_in_an_interval_is_busy() {
        let heat = Heat::default();
        for _ in 1..BUSY {
            assert!(!heat.is_busy(key(1), 7));
        }
        assert!(heat.is_busy(key(1), 7) && heat.is_busy(key(1), 7));
        assert!(!heat.is_busy(key(1), 8), "each interval counts anew");
    }

    #[test]
    fn busy_keys_are_found_among_many_others() {
        let heat = Heat::default();
        let mut found = 0;
        for call in 0..100_000 {
            // Ten keys have 100 calls each; all others one.
            let number = if call % 100 == 0 { call / 100 % 10 } else { 10 + call };
            let is_busy = heat.is_busy(key(number), 7);
            assert!(!is_busy || number < 10, "{number}");
            found += u32::from(is_busy);
        }
        assert!(found > 700, "{found} of 1,000");
    }
}
