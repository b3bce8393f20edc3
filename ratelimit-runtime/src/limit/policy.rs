//! The policy of a limit: the part that stores do not receive.

use std::time::Duration;

use super::{Capability, Lease};

/// The treatment of a call before and after the decision. All limits of one decision have the same policy, except
/// for leases, holds and what is hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(crate) struct Policy {
    pub(super) scope: Scope,
    pub(super) on_error: Option<OnError>,
    pub(super) shadow: bool,
    pub(super) wait: Option<Wait>,
    pub(super) lease: Lease,
    /// How long units in flight are held by a process that says nothing, in milliseconds; 0 unless set. Keeps a limit
    /// small.
    pub(super) hold_ms: u32,
    /// Whether responses do not report the limit.
    pub(super) hidden: bool,
    /// Whether the amounts are computed for each call.
    pub(super) varies: bool,
    /// Whether an amount is 0. The limit keeps other amounts, because a rule can open it.
    pub(super) closed: bool,
    /// Whether the capacity is not the default one of the threshold.
    pub(super) has_burst: bool,
}

/// How long a call may wait, and what decides calls that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wait {
    pub(crate) time: Duration,
    pub(crate) by: Capability,
}

impl Policy {
    pub(super) const DEFAULT: Self = Self {
        scope: Scope::Global,
        on_error: None,
        shadow: false,
        wait: None,
        lease: Lease::None,
        hold_ms: 0,
        hidden: false,
        varies: false,
        closed: false,
        has_burst: false,
    };

    #[inline]
    pub(crate) const fn scope(self) -> Scope {
        self.scope
    }

    pub(crate) const fn on_error(self) -> Option<OnError> {
        self.on_error
    }

    /// Returns how long units in flight are held by a process that says nothing, in microseconds, if that is set.
    pub(crate) fn hold_us(self) -> Option<u64> {
        (self.hold_ms > 0).then_some(u64::from(self.hold_ms) * 1_000)
    }

    /// Returns how long a call may wait, also if it is one of a shadow.
    pub(crate) const fn wait(self) -> Option<Duration> {
        match self.wait {
            Some(wait) => Some(wait.time),
            None => None,
        }
    }

    /// Returns what decides calls that wait, if a call may wait.
    pub(crate) fn waits_by(self) -> Option<Capability> {
        self.wait.map(|wait| wait.by)
    }

    /// Returns whether limits with these policies can be decided together.
    pub(crate) const fn agrees_with(self, other: Self) -> bool {
        let has_same_wait = match (self.wait(), other.wait()) {
            (None, None) => true,
            (Some(one), Some(other)) => one.as_nanos() == other.as_nanos(),
            (None, Some(_)) | (Some(_), None) => false,
        };
        let has_same_on_error = match (self.on_error, other.on_error) {
            (None, None) => true,
            (Some(one), Some(other)) => one as u8 == other as u8,
            (None, Some(_)) | (Some(_), None) => false,
        };
        has_same_wait
            && has_same_on_error
            && self.scope as u8 == other.scope as u8
            && self.shadow == other.shadow
    }
}

/// Which processes share a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// All processes that use the same store.
    #[default]
    Global,
    /// Only this process. It counts in memory, whatever store is configured.
    Process,
}

/// The policy for calls that Redis cannot decide, because it is unreachable, too slow, or replies with an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// This process decides by the same limit, on separate counts. A fleet of `n` processes can then admit up
    /// to `n` times the limit, unless [`Builder::instances`](crate::Builder::instances) gives each process its
    /// share.
    #[default]
    Local,
    /// The call is admitted.
    Allow,
    /// The call is rejected with [`Rejection::Unavailable`](crate::Rejection::Unavailable).
    Deny,
}
