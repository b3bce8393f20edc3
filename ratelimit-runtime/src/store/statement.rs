//! What a process states about a count of calls in flight, and what the store replies.

use crate::algorithm::Receipt;

/// What a process states to the shared store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statement {
    /// A random number of the process; 0 states nothing.
    pub(crate) process: u64,
    /// The number of the statement, which only grows.
    pub(crate) seq: u64,
    /// The units that the process holds.
    pub(crate) units: u64,
    /// The time of the last reset of which the process knows, or 0.
    pub(crate) epoch: u64,
    /// For how long the store keeps the units.
    pub(crate) hold_us: u64,
    /// For how long calls of the process have waited while none of them was admitted; 0 before they go first.
    pub(crate) waited_us: u64,
}

/// What the store replies to a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stated {
    pub(crate) epoch: u64,
    /// Whether the units that were stated are lost, because the count was reset.
    pub(crate) is_lost: bool,
    /// The units that the same request has taken.
    pub(crate) granted: u64,
}

impl Stated {
    /// Returns what the receipt of a statement says (`lua/slots.lua`).
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "there is no shared store"))]
    pub(crate) fn new(receipt: Receipt, granted: u64) -> Self {
        Self { epoch: receipt.birth, is_lost: receipt.place > 0, granted }
    }
}
