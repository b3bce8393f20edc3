//! A state of the model: the server, the queue of the process, and the requests between them.

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
    /// The settlements of each lane: first of the one that closes no key, then of the one that closes the key.
    pub(super) queued: [Vec<Queued>; 2],
    /// The pending request of each lane.
    pub(super) sent: [Option<Sent>; 2],
    /// Requests for which no job waits, and that the server has not executed.
    pub(super) late: Vec<Vec<Queued>>,
    /// What was admitted, also before a reset.
    pub(super) admissions: Vec<Admission>,
    /// How often the count was reset.
    pub(super) generation: u8,
    /// The time until which the server keeps the key closed.
    pub(super) closed_until: u64,
    pub(super) was_admitted_while_closed: bool,
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
    pub(super) closings: u8,
    pub(super) resets: u8,
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
    /// If the units are reserved and can be cancelled, the time of the full bucket after them, by the clock of the
    /// server.
    pub(super) reserved_until: Option<u64>,
}

/// A settlement that is queued or sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queued {
    /// The index of the admission.
    pub(super) admission: usize,
    pub(super) correction: Correction,
    /// For how long the key is closed, in microseconds; 0 if it is not.
    pub(super) close_us: u64,
    /// The time of the settlement, by the clock of the process.
    pub(super) at: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sent {
    /// What the job has taken from the lane.
    pub(super) taken: Vec<Queued>,
    /// What was left to correct of it when it was sent.
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
