//! The keys with the most rejected calls of a limiter, in a table of bounded size. Admitted calls do not touch it.
//!
//! The table counts the first [`EXACT`] rejections of a second one by one. Of the rest, it counts one of [`SAMPLED`] at
//! random distances, for as many: so a rejected call of a flood costs a few instructions (`benches/all -- embedded`).
//!
//! A counted call looks at the [`WAYS`] entries of one set. If its key has no entry, it takes the entry with the
//! smallest weight, and that weight: so a key with a large share of the rejections stays, however many other keys are
//! rejected (the algorithm "space saving", in each set).

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::key::KeyId;
use crate::limit::{Limit, Name};
use crate::registry;

/// The number of sets.
const SETS: usize = 128;

/// The number of entries of a set.
const WAYS: usize = 8;

/// The rejections of a second that are counted one by one.
const EXACT: u64 = 256;

/// How many of the further rejections a sample stands for.
const SAMPLED: u64 = 64;

const SECOND_US: u64 = 1_000_000;

/// How long a key without a rejection stays in the table.
const STAYS: Duration = Duration::from_secs(600);

/// A key of which a limit has rejected calls: [`Operator::rejected_keys`](crate::Operator::rejected_keys).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RejectedKey {
    /// The name of the limit.
    pub limit: Name,
    /// The period of the limit: limits of several periods can have one name.
    pub period: Duration,
    /// The key as `tracing` events of this process show it: a hash, or the text with
    /// [`log_keys`](crate::Builder::log_keys).
    pub key: String,
    /// Whether the limit is a [shadow](crate::Limit::shadow), which has admitted the calls.
    pub is_shadow: bool,
    /// The number of rejected calls since `since`: exact while the process rejects at most 256 calls in a second,
    /// otherwise an estimate from samples.
    pub rejected: u64,
    /// The first of these rejections, by the clock of the limiter in this process.
    pub since: SystemTime,
    /// The last of these rejections.
    pub last: SystemTime,
}

/// The keys of a limiter with the most rejected calls. Two threads can give their calls one number in `calls`. In a
/// cache line of its own, so that a flood of rejected calls does not slow down admitted ones.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct RejectedKeys {
    /// The second of the last rejection in the upper half, and the number of rejections in it.
    calls: AtomicU64,
    /// Empty until a call is rejected.
    entries: Mutex<Vec<Option<Entry>>>,
}

/// A key of the table.
struct Entry {
    key_id: KeyId,
    /// The rejections of this key, and those of the keys whose entry it has taken.
    weight: u64,
    shown: RejectedKey,
}

impl RejectedKeys {
    /// Returns as how many calls a rejected one is [counted](Self::count); `None` if it is not a sample of a flood.
    /// `at` is the time of the call, by the clock of this process.
    #[inline]
    pub(crate) fn weight(&self, at: u64) -> Option<u64> {
        let (second, last) = (at / SECOND_US, self.calls.load(Ordering::Relaxed));
        let call = if last >> 32 == second { last } else { second << 32 };
        self.calls.store(call + 1, Ordering::Relaxed);
        if call % (1 << 32) < EXACT {
            return Some(1);
        }
        // Samples at equal distances could all be of one key.
        let mixed = call.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let random = (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 32;
        random.is_multiple_of(SAMPLED).then_some(SAMPLED)
    }

    /// Counts a rejected call as `calls`. `key_id` is the id of the count under the identity of `limit`. `key` returns
    /// the key as events show it.
    pub(crate) fn count(
        &self,
        limit: &Limit,
        key_id: KeyId,
        at: u64,
        calls: u64,
        key: impl FnOnce() -> String,
    ) {
        let (mut table, at) = (self.table(), time(at));
        table.resize_with(SETS * WAYS, || None);
        let set = (key_id.bits() >> 72) as usize % SETS;
        let entries = &mut table[set * WAYS..][..WAYS];
        let is_shadow = limit.policy().shadow;
        let is_known = |entry: &&mut Entry| {
            entry.key_id == key_id && entry.shown.is_shadow == is_shadow && !entry.is_free(at)
        };
        if let Some(entry) = entries.iter_mut().flatten().find(is_known) {
            entry.weight += calls;
            entry.shown.rejected += calls;
            entry.shown.last = entry.shown.last.max(at);
            return;
        }
        let weight = |entry: &Option<Entry>| {
            entry.as_ref().filter(|entry| !entry.is_free(at)).map_or(0, |entry| entry.weight)
        };
        let Some(entry) = entries.iter_mut().min_by_key(|entry| weight(entry)) else { return };
        let shown = RejectedKey {
            limit: limit.terms().identity.name,
            period: limit.terms().identity.period.duration(),
            key: key(),
            is_shadow,
            rejected: calls,
            since: at,
            last: at,
        };
        *entry = Some(Entry { key_id, weight: weight(entry) + calls, shown });
        if !limit.is_trial() {
            registry::see(limit);
        }
    }

    /// Returns the keys with the most rejected calls, the first ones first. `now` is the present time.
    pub(crate) fn most(&self, most: usize, now: u64) -> Vec<RejectedKey> {
        let (table, now) = (self.table(), time(now));
        let entries = table.iter().flatten().filter(|entry| !entry.is_free(now));
        let mut keys: Vec<_> = entries.map(|entry| entry.shown.clone()).collect();
        drop(table);
        keys.sort_by_cached_key(|key| (Reverse((key.rejected, key.last)), key.key.clone()));
        keys.truncate(most);
        keys
    }

    fn table(&self) -> MutexGuard<'_, Vec<Option<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Returns whether another key can have this entry, whatever its weight.
    fn is_free(&self, now: SystemTime) -> bool {
        now.duration_since(self.shown.last).is_ok_and(|passed| passed > STAYS)
    }
}

fn time(micros: u64) -> SystemTime {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros));
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const STAYS_US: u64 = STAYS.as_micros() as u64;
    const LIMIT: Limit = Limit::fixed("rejecting", 1, Duration::from_secs(60));

    fn reject(keys: &RejectedKeys, key: u64, at: u64) {
        // Spread, as fingerprints are.
        let key_id = KeyId::from_bits(u128::from(key.wrapping_mul(0x9E37_79B9_7F4A_7C15)) << 32);
        if let Some(calls) = keys.weight(at) {
            keys.count(&LIMIT, key_id, at, calls, || format!("{key:016x}"));
        }
    }

    #[test]
    fn a_key_with_many_rejections_stays_under_a_flood_of_other_keys() {
        let keys = RejectedKeys::default();
        for round in 0..1_000_000 {
            // One rejection of 50 is of the key.
            reject(&keys, if round % 50 == 7 { 0 } else { 1 + round }, 1_000 + round);
        }
        let most = keys.most(3, 1_001_000);
        assert_eq!((most.len(), most[0].key.as_str()), (3, "0000000000000000"));
        assert!(most[0].rejected.abs_diff(20_000) <= 5_000, "{:?}", most[0]);
        assert_eq!(most[0].since, SystemTime::UNIX_EPOCH + Duration::from_micros(1_007));
        assert!(most[0].last > SystemTime::UNIX_EPOCH + Duration::from_millis(950));
        assert!(keys.most(usize::MAX, 1_001_000).len() <= SETS * WAYS);
    }

    #[test]
    fn each_rejection_counts_while_there_are_few_in_a_second() {
        let keys = RejectedKeys::default();
        let rejections = 10 * EXACT;
        for call in 0..rejections {
            reject(&keys, call % 2, call * (SECOND_US / EXACT + 1));
        }
        let most = keys.most(9, rejections);
        let counted = most.iter().map(|key| key.rejected);
        assert_eq!(counted.collect::<Vec<_>>(), [rejections / 2; 2]);
    }

    #[test]
    fn the_first_rejections_after_a_flood_count() {
        let keys = RejectedKeys::default();
        (0..10_000).for_each(|_| reject(&keys, 1, 5));
        (0..3).for_each(|_| reject(&keys, 2, 5 + SECOND_US));
        let most = keys.most(9, 5 + SECOND_US);
        assert!(most[0].rejected.abs_diff(10_000) <= 3_000, "{:?}", most[0]);
        assert_eq!(most[1].rejected, 3);
    }

    /// Samples at equal distances would all be of one key.
    #[test]
    fn keys_that_take_turns_in_a_flood_are_counted_alike() {
        for others in [2, 3, 64, 65] {
            let keys = RejectedKeys::default();
            (0..others * 20_000).for_each(|call| reject(&keys, call % others, 5));
            for key in keys.most(9, 5) {
                assert!(key.rejected.abs_diff(20_000) < 6_000, "{others}: {key:?}");
            }
        }
    }

    #[test]
    fn a_key_leaves_ten_minutes_after_its_last_rejection() {
        let keys = RejectedKeys::default();
        for at in [5, 6] {
            reject(&keys, 1, at);
        }
        assert_eq!(keys.most(9, 6 + STAYS_US)[0].rejected, 2);
        assert_eq!(keys.most(9, 7 + STAYS_US), []);
        // Its next rejection is the first one.
        reject(&keys, 1, 7 + STAYS_US);
        let again = &keys.most(9, 7 + STAYS_US)[0];
        let since = SystemTime::UNIX_EPOCH + Duration::from_micros(7 + STAYS_US);
        assert_eq!((again.rejected, again.since), (1, since));
    }

    #[test]
    fn the_rejections_of_all_threads_are_added_up() {
        let keys = RejectedKeys::default();
        std::thread::scope(|scope| {
            for thread in 0..20 {
                let keys = &keys;
                scope.spawn(move || (0..10).for_each(|call| reject(keys, call % 2, thread)));
            }
        });
        let most = keys.most(9, 20);
        assert_eq!(most.iter().map(|key| key.rejected).collect::<Vec<_>>(), [100, 100]);
    }
}
