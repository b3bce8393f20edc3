//! The policy of a limit: the part that stores do not receive.

use std::time::Duration;

/// The treatment of a call before and after the decision. All limits of one decision have the same policy, except
/// for leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Policy {
    pub(super) scope: Scope,
    pub(super) on_error: Option<OnError>,
    pub(super) shadow: bool,
    pub(super) wait: Option<Duration>,
    /// The number of units that a process may lease; 0 for a limit that does not lease.
    pub(super) lease: u32,
}

impl Policy {
    pub(super) const DEFAULT: Self =
        Self { scope: Scope::Global, on_error: None, shadow: false, wait: None, lease: 0 };

    #[inline]
    pub(crate) const fn scope(self) -> Scope {
        self.scope
    }

    pub(crate) const fn on_error(self) -> Option<OnError> {
        self.on_error
    }

    /// Returns whether limits with these policies can be decided together.
    pub(crate) fn agrees_with(self, other: Self) -> bool {
        Self { lease: 0, ..self } == Self { lease: 0, ..other }
    }
}

/// Which processes count together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// All processes that use the same store.
    #[default]
    Global,
    /// This process alone, in memory, whatever store is configured.
    Process,
}

/// What happens to a call when Redis cannot decide: because it is unreachable, too slow, or in error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// This process decides by the same limit, on counts of its own. A fleet of `n` processes may
    /// then admit up to `n` times the limit, unless each process applies its share of it:
    /// [`Builder::instances`](crate::Builder::instances).
    #[default]
    Local,
    /// The call is admitted.
    Allow,
    /// The call is rejected with [`Rejection::Unavailable`](crate::Rejection::Unavailable).
    Deny,
}
