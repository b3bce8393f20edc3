//! How often the steps of a kind happen: at most in a model, or up to a state.

use std::collections::BTreeMap;

/// A kind of step that a model bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bound {
    Calls,
    LocalCalls,
    Ticks,
    Drops,
    /// Calls of another process, each of as many units as are left.
    Plain,
    Reserved,
    /// Reservations that go back, before their moment or, if no task polls the call, after it.
    Cancelled,
    /// Calls of another process that settles, each charged two units.
    Settled,
    Blocks,
    /// Resets of the count; those of another process, if the model has `OwnResets`.
    Resets,
    OwnResets,
    /// Requests that the server has certainly not executed.
    Refused,
    /// Requests and replies that are lost, and requests whose process does not wait for the reply any longer.
    Lost,
    Repeated,
    Crashes,
    Flushes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts(BTreeMap<Bound, u8>);

impl Counts {
    /// Returns the counts of several lists. A later list replaces counts of an earlier one.
    #[must_use]
    pub fn of(lists: &[&[(Bound, u8)]]) -> Self {
        Self(lists.iter().copied().flatten().copied().collect())
    }

    pub(crate) fn get(&self, bound: Bound) -> u8 {
        self.0.get(&bound).copied().unwrap_or(0)
    }

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
