//! What comes next: keys by their times, each once.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Agenda<K> {
    order: BTreeSet<(u64, K)>,
    times: BTreeMap<K, u64>,
}

impl<K> Default for Agenda<K> {
    fn default() -> Self {
        Self { order: BTreeSet::new(), times: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> Agenda<K> {
    /// Plans a key for a time, in place of the time that it had; without one, removes it.
    pub(crate) fn plan(&mut self, key: K, at: Option<u64>) {
        let before = match at {
            Some(at) => self.times.insert(key, at),
            None => self.times.remove(&key),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, key));
        }
        self.order.extend(at.map(|at| (at, key)));
    }

    /// Plans a key for a time, unless it comes earlier.
    pub(crate) fn plan_by(&mut self, key: K, at: u64) {
        let planned = self.times.get(&key).copied();
        self.plan(key, Some(planned.map_or(at, |planned| planned.min(at))));
    }

    /// Returns the first time.
    pub(crate) fn first(&self) -> Option<u64> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes the first key whose time has come.
    pub(crate) fn take_due(&mut self, now: u64) -> Option<K> {
        let (_, key) = self.order.first().copied().filter(|(at, _)| *at <= now)?;
        self.plan(key, None);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_in_the_order_of_their_last_times() {
        let mut agenda = Agenda::default();
        for (key, at) in [('a', 3), ('b', 5), ('c', 4), ('b', 1), ('a', 3)] {
            agenda.plan(key, Some(at));
        }
        agenda.plan('c', None);
        agenda.plan_by('a', 7);
        assert_eq!(agenda.first(), Some(1));
        assert_eq!(agenda.take_due(0), None);
        assert_eq!(agenda.take_due(3), Some('b'));
        assert_eq!(agenda.take_due(3), Some('a'));
        assert_eq!((agenda.take_due(9), agenda), (None, Agenda::default()));
    }
}
