//! The keys with the most rejected calls of a limiter, in a table of bounded size. Admitted calls do not touch it.
//!
//! Each thread writes to one of the shards, so threads that reject calls of one key at the same time rarely wait for
//! each other. A rejected call looks at the [`WAYS`] entries of one set (`benches/all -- instructions`). If its key has
//! no entry, it takes the entry with the smallest weight, and that weight: so a key with a large share of the
//! rejections stays, however many other keys are rejected (the algorithm "space saving", in each set).

use std::array;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::LoggedKey;
use crate::key::KeyId;
use crate::limit::{Limit, Name, Period};
use crate::registry;

/// The number of sets of a shard.
const SETS: usize = 16;

/// The number of entries of a set.
const WAYS: usize = 8;

/// The number of limits of which a shard remembers that they are registered.
const KNOWN: usize = 16;

/// How long a key without a rejection stays in the table, in microseconds.
const STAYS_US: u64 = 600_000_000;

/// A key of which a limit has rejected calls: [`RateLimiter::rejected_keys`](crate::RateLimiter::rejected_keys).
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
    /// The number of rejected calls since `since`.
    pub rejected: u64,
    /// The first of these rejections, by the clock of the limiter in this process.
    pub since: SystemTime,
    /// The last of these rejections.
    pub last: SystemTime,
}

/// The keys of a limiter with the most rejected calls.
pub(crate) struct RejectedKeys {
    shards: [RejectionShard; registry::SHARDS],
}

/// A rejected call.
pub(crate) struct RejectedCount<'a> {
    pub(crate) limit: &'a Limit,
    /// The id of the count under the identity of `limit`.
    pub(crate) key_id: KeyId,
    pub(crate) at: u64,
}

/// In cache lines of its own.
#[derive(Default)]
#[repr(align(64))]
struct RejectionShard(Mutex<RejectionTable>);

/// Empty until a thread rejects a call.
#[derive(Default)]
struct RejectionTable {
    entries: Vec<Entry>,
    /// The limits that are registered: the hash of the identity if calls have different amounts, otherwise combined
    /// with the amounts.
    known: [u128; KNOWN],
}

#[derive(Clone)]
struct Entry {
    key_id: KeyId,
    is_shadow: bool,
    /// `None` if the entry is free.
    limit: Option<(Name, Period)>,
    key: LoggedKey,
    /// The rejections of this key, and those of the keys whose entry it has taken.
    weight: u64,
    rejected: u64,
    since: u64,
    last: u64,
}

impl RejectedKeys {
    /// Counts a rejected call. `key` returns the key as events show it.
    pub(crate) fn count(&self, rejected: &RejectedCount<'_>, key: impl FnOnce() -> LoggedKey) {
        let mut table = lock(&self.shards[registry::shard()]);
        if !table.add_to_known_key(rejected) {
            table.add_key(rejected, key());
            if !rejected.limit.is_trial() {
                table.register(rejected.limit);
            }
        }
    }

    /// Returns the keys with the most rejected calls, the first ones first. `now` is the present time.
    pub(crate) fn most(&self, most: usize, now: u64) -> Vec<RejectedKey> {
        let mut all: HashMap<(KeyId, bool), Entry> = HashMap::new();
        for shard in &self.shards {
            let entries = lock(shard).entries.clone();
            for entry in entries.into_iter().filter(|entry| !entry.is_free(now)) {
                all.entry((entry.key_id, entry.is_shadow))
                    .and_modify(|known| known.merge(&entry))
                    .or_insert(entry);
            }
        }
        let mut keys: Vec<_> = all.into_values().filter_map(Entry::shown).collect();
        keys.sort_by(|one, other| {
            let order = |key: &RejectedKey| (key.rejected, key.last);
            order(other).cmp(&order(one)).then_with(|| one.key.cmp(&other.key))
        });
        keys.truncate(most);
        keys
    }
}

impl Default for RejectedKeys {
    fn default() -> Self {
        Self { shards: array::from_fn(|_| RejectionShard::default()) }
    }
}

impl RejectionTable {
    /// Adds the call to the entry of its key. Returns whether there is one.
    fn add_to_known_key(&mut self, rejected: &RejectedCount<'_>) -> bool {
        let RejectedCount { limit, key_id, at } = *rejected;
        if self.entries.is_empty() {
            return false;
        }
        let entry = self.set_of(key_id).iter_mut().find(|entry| {
            entry.key_id == key_id && entry.is_shadow == limit.is_shadow() && !entry.is_free(at)
        });
        let Some(entry) = entry else { return false };
        entry.weight += 1;
        entry.rejected += 1;
        entry.last = entry.last.max(at);
        true
    }

    /// Adds the call of a key without an entry.
    fn add_key(&mut self, rejected: &RejectedCount<'_>, key: LoggedKey) {
        let RejectedCount { limit, key_id, at } = *rejected;
        if self.entries.is_empty() {
            self.entries = vec![Entry::FREE; SETS * WAYS];
        }
        let weight = |entry: &Entry| if entry.is_free(at) { 0 } else { entry.weight };
        let Some(entry) = self.set_of(key_id).iter_mut().min_by_key(|entry| weight(entry)) else {
            return;
        };
        *entry = Entry {
            key_id,
            is_shadow: limit.is_shadow(),
            limit: Some((*limit.terms().name(), limit.terms().period())),
            key,
            weight: weight(entry) + 1,
            rejected: 1,
            since: at,
            last: at,
        };
    }

    /// Returns the entries that a key can have.
    fn set_of(&mut self, key_id: KeyId) -> &mut [Entry] {
        let set = (key_id.bits() >> 72) as usize % SETS;
        &mut self.entries[set * WAYS..][..WAYS]
    }

    /// Registers a limit, also if it is not annotated.
    fn register(&mut self, limit: &Limit) {
        let identity = limit.terms().identity().hash();
        let amounts = u128::from(limit.threshold()) << 64 | u128::from(limit.capacity()) << 1 | 1;
        let known = &mut self.known[(identity >> 64) as usize % KNOWN];
        if *known != identity && *known != identity ^ amounts {
            let is_computed = registry::see(limit);
            *known = if is_computed { identity } else { identity ^ amounts };
        }
    }
}

impl Entry {
    const FREE: Self = Self {
        key_id: KeyId::NONE,
        is_shadow: false,
        limit: None,
        key: LoggedKey::Hash(0),
        weight: 0,
        rejected: 0,
        since: 0,
        last: 0,
    };

    /// Returns whether another key can have this entry, whatever its weight.
    fn is_free(&self, now: u64) -> bool {
        self.limit.is_none() || self.last.saturating_add(STAYS_US) < now
    }

    /// Adds the rejections of the same key in another shard.
    fn merge(&mut self, other: &Self) {
        self.rejected += other.rejected;
        self.since = self.since.min(other.since);
        self.last = self.last.max(other.last);
    }

    fn shown(self) -> Option<RejectedKey> {
        let Self { is_shadow, limit, key, rejected, since, last, .. } = self;
        let (limit, period) = limit?;
        let time = |micros| {
            let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros));
            time.unwrap_or(SystemTime::UNIX_EPOCH)
        };
        Some(RejectedKey {
            limit,
            period: period.duration(),
            key: key.to_string(),
            is_shadow,
            rejected,
            since: time(since),
            last: time(last),
        })
    }
}

fn lock(shard: &RejectionShard) -> MutexGuard<'_, RejectionTable> {
    shard.0.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit::fixed("rejecting", 1, Duration::from_secs(60));

    fn reject(keys: &RejectedKeys, key: u64, at: u64) {
        // Spread, as fingerprints are.
        let key_id = KeyId::from_bits(u128::from(key.wrapping_mul(0x9E37_79B9_7F4A_7C15)) << 32);
        let rejected = RejectedCount { limit: &LIMIT, key_id, at };
        keys.count(&rejected, || LoggedKey::Hash(key));
    }

    #[test]
    fn a_key_with_many_rejections_stays_under_a_flood_of_other_keys() {
        let keys = RejectedKeys::default();
        for round in 0..100_000 {
            // One rejection of 50 is of the key.
            reject(&keys, if round % 50 == 7 { 0 } else { 1 + round }, 1_000 + round);
        }
        let most = keys.most(3, 101_000);
        assert_eq!((most[0].key.as_str(), most[0].rejected), ("0000000000000000", 2_000));
        assert_eq!(most[0].since, SystemTime::UNIX_EPOCH + Duration::from_micros(1_007));
        assert_eq!(most[0].last, SystemTime::UNIX_EPOCH + Duration::from_micros(100_957));
        assert_eq!(most.len(), 3);
        assert!(keys.most(usize::MAX, 101_000).len() <= SETS * WAYS);
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
            for thread in 0..40 {
                let keys = &keys;
                scope.spawn(move || (0..100).for_each(|call| reject(keys, call % 2, thread)));
            }
        });
        let most = keys.most(9, 40);
        assert_eq!(most.iter().map(|key| key.rejected).collect::<Vec<_>>(), [2_000, 2_000]);
    }
}
