//! How often the steps of a kind happen: at most in a model, or up to a state.

use std::collections::BTreeMap;

/// A kind of step that a model bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bound {
    /// Calls of the process whose machine the model runs.
    Calls,
    /// Calls that a fallback admits.
    LocalCalls,
    Ticks,
    /// Calls that are dropped.
    Drops,
    /// Calls of another process, each of as many units as are left.
    Plain,
    /// Calls for which another process reserves a moment.
    Reserved,
    /// Reservations that go back, before their moment or, if no task polls the call, after it.
    Cancelled,
    /// Calls of another process that settles, each charged two units.
    Settled,
    /// Calls whose result blocks the key.
    Blocks,
    /// Resets of the count; those of another process, if the model has `OwnResets`.
    Resets,
    OwnResets,
    /// Requests that the server has certainly not executed.
    Refused,
    /// Requests and replies that are lost, and requests whose process does not wait for the reply any longer.
    Lost,
    /// Requests that are executed a second time.
    Repeated,
    Crashes,
    /// How often the server loses its memory.
    Flushes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts(BTreeMap<Bound, u8>);

impl Counts {
    #[must_use]
    pub fn of(counts: &[(Bound, u8)]) -> Self {
        Self(counts.iter().copied().collect())
    }

    /// Returns these counts with others in place of some.
    #[must_use]
    pub fn with(mut self, counts: &[(Bound, u8)]) -> Self {
        self.0.extend(counts.iter().copied());
        self
    }

    pub(crate) fn get(&self, bound: Bound) -> u8 {
        self.0.get(&bound).copied().unwrap_or(0)
    }

    /// Counts a step of a kind that is bounded.
    pub(crate) fn add(&mut self, bound: Option<Bound>) {
        if let Some(bound) = bound {
            *self.0.entry(bound).or_default() += 1;
        }
    }

    /// Returns whether one more step of a kind happens, at most as often as `self` says.
    pub(crate) fn allow(&self, used: &Self, bound: Option<Bound>) -> bool {
        bound.is_none_or(|bound| used.get(bound) < self.get(bound))
    }
}
