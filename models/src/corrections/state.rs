//! A state of the model: the server, the queue of the process, and the requests between them.

use super::super::Corrections;
use crate::algorithm::Correction;
use crate::server::Keys;

/// The length of a step of time, in microseconds: a charge leaves the window after three steps.
pub(super) const TICK: u64 = 4_000_000;
/// The times at which the clocks of the server and of the process start.
const SERVER_START: u64 = 1_000_000_000_000;
const LOCAL_START: u64 = 5_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The time since the start, in microseconds.
    pub(super) time: u64,
    pub(super) server: Keys,
    /// The calls that have not ended, as indices of `admissions`.
    pub(super) running: Vec<usize>,
    /// What the process has not sent.
    pub(super) queue: Corrections<Queued>,
    pub(super) pending: Option<Pending>,
    /// The real time of the process, by which a lane pauses.
    pub(super) real: u64,
    /// Requests that the process has given up, before the server executes them.
    pub(super) late: Vec<Vec<Queued>>,
    /// What was admitted, also before a reset.
    pub(super) admissions: Vec<Admission>,
    /// How often the count was reset, and how often by the process.
    pub(super) generation: u8,
    pub(super) own_resets: u8,
    /// Whether a settlement was executed after a reset that was queued later.
    pub(super) was_passed: bool,
    /// The time until which the server keeps the key blocked.
    pub(super) blocked_until: u64,
    pub(super) was_admitted_while_blocked: bool,
    pub(super) used: Used,
}

/// What was done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Used {
    pub(super) calls: u8,
    pub(super) plain: u8,
    pub(super) reserved: u8,
    pub(super) cancelled: u8,
    pub(super) ticks: u8,
    pub(super) blocks: u8,
    pub(super) resets: u8,
    pub(super) own_resets: u8,
    pub(super) refused: u8,
    pub(super) lost: u8,
}

/// Units that the server has admitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Admission {
    pub(super) at: u64,
    pub(super) generation: u8,
    pub(super) charged: u64,
    /// What the call has used, once it has ended.
    pub(super) used: u64,
    pub(super) ended: bool,
    /// Whether the server has corrected the charge.
    pub(super) is_settled: bool,
    /// Whether no request corrects the charge any more, or perhaps a late one.
    pub(super) is_lost: bool,
    /// The birth and the place of its receipt.
    pub(super) receipt: (u64, u64),
    /// Whether the units are of a reserved moment that no call uses yet.
    pub(super) is_reserved: bool,
}

/// A correction that is queued or sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queued {
    pub(super) is_bucket: bool,
    pub(super) change: Change,
    /// The resets that were queued before.
    pub(super) own_resets: u8,
    /// The time at which it was queued, by the clock of the process.
    pub(super) at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Change {
    Settle {
        /// The index of the admission.
        admission: usize,
        correction: Correction,
        /// For how long the key is blocked, in microseconds; 0 if it is not.
        block_us: u64,
    },
    /// `passes` is the fault: it passes settlements.
    Reset { passes: bool },
}

/// The pending request. A probe corrects nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    pub(super) due: Vec<Queued>,
    pub(super) is_executed: bool,
}

impl State {
    pub(super) fn server_clock(&self) -> u64 {
        SERVER_START + self.time
    }

    pub(super) fn local_clock(&self) -> u64 {
        LOCAL_START + self.time
    }
}
