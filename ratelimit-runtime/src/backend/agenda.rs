//! When the job of statements (`statements.rs`) looks at each count of calls in flight.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::key::KeyId;

/// The longest time between two looks at a count, and between two looks of a job: a virtual clock moves at any time.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The next looks at counts. A count that has changed is looked at without a look at the others.
#[derive(Default)]
pub(super) struct Agenda {
    /// By the clock of the limiter.
    by_time: BTreeSet<(u64, KeyId)>,
    times: HashMap<KeyId, u64>,
    /// The counts without such a time, which are forgotten once no call needs them.
    idle: HashSet<KeyId>,
    /// The real time of the last look at those.
    last_idle: Option<Instant>,
}

impl Agenda {
    /// Plans the next look at a count: at a time, or within [`LOOK_AGAIN`].
    pub(super) fn plan(&mut self, key_id: KeyId, at: Option<u64>) {
        match at {
            Some(at) => {
                self.by_time.insert((at, key_id));
                self.times.insert(key_id, at);
            }
            None => {
                self.idle.insert(key_id);
            }
        }
    }

    /// Takes the counts that the job looks at now: `changed`, and the planned ones that are due.
    pub(super) fn take(
        &mut self,
        changed: HashSet<KeyId>,
        now: u64,
        real: Instant,
    ) -> HashSet<KeyId> {
        let mut taken = changed;
        while let Some((at, key_id)) = self.by_time.first().copied().filter(|(at, _)| *at <= now) {
            self.by_time.remove(&(at, key_id));
            self.times.remove(&key_id);
            taken.insert(key_id);
        }
        if self.last_idle.is_none_or(|last| real >= last + LOOK_AGAIN) {
            self.last_idle = Some(real);
            taken.extend(self.idle.drain());
        }
        for key_id in &taken {
            self.idle.remove(key_id);
            if let Some(at) = self.times.remove(key_id) {
                self.by_time.remove(&(at, *key_id));
            }
        }
        taken
    }

    /// Returns how long nothing is due, if nothing changes.
    pub(super) fn pause(&self, now: u64) -> Duration {
        let next = self.by_time.first();
        let next = next.map_or(LOOK_AGAIN, |(at, _)| Duration::from_micros(at.saturating_sub(now)));
        next.clamp(Duration::from_millis(1), LOOK_AGAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;

    fn count(number: u128) -> KeyId {
        const TWO: Limit = Limit::in_flight("two", 2);
        KeyId::new(TWO.terms().identity(), number)
    }

    fn changed(number: u128) -> HashSet<KeyId> {
        HashSet::from([count(number)])
    }

    #[test]
    fn a_change_of_one_count_is_a_look_at_one_count() {
        let (mut agenda, real) = (Agenda::default(), Instant::now());
        for number in 0..10_000 {
            agenda.plan(count(number), Some(1_000 + number as u64));
            agenda.plan(count(20_000 + number), None);
        }
        assert_eq!(agenda.take(HashSet::new(), 0, real).len(), 10_000, "the idle ones");
        for release in 0..1_000 {
            let taken = agenda.take(changed(7), release, real);
            assert_eq!(taken, changed(7));
            agenda.plan(count(7), Some(2_000));
        }
        assert_eq!(agenda.times.len(), 10_000);
        assert_eq!(agenda.by_time.len(), 10_000, "nothing is planned twice");
    }

    #[test]
    fn a_count_is_looked_at_when_its_time_comes() {
        let (mut agenda, real) = (Agenda::default(), Instant::now());
        agenda.plan(count(1), Some(5_000));
        agenda.plan(count(2), Some(9_000));
        assert_eq!(agenda.pause(1_000), Duration::from_millis(4));
        assert_eq!(agenda.take(HashSet::new(), 4_999, real), HashSet::new());
        assert_eq!(agenda.take(HashSet::new(), 5_000, real), changed(1));
        assert_eq!(agenda.take(HashSet::new(), 9_000, real), changed(2));
        assert_eq!(agenda.pause(9_000), LOOK_AGAIN);
        agenda.plan(count(3), None);
        assert_eq!(agenda.take(HashSet::new(), 9_000, real), HashSet::new());
        assert_eq!(agenda.take(HashSet::new(), 9_000, real + LOOK_AGAIN), changed(3));
    }
}
