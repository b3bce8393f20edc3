//! A state of the model: the server, the processes, and the messages between them.

use super::super::{SlotUnits, TakenUnits};
use crate::server::Keys;
use crate::store::Statement;

/// The length of a step of time, in microseconds.
pub(super) const TICK: u64 = 100_000;
pub(super) const HOLD: u64 = 2 * TICK;
/// The hold as a process measures it. Clocks drift, so a process ends it before the server does.
pub(super) const OWN_HOLD: u64 = HOLD - HOLD / 100;
/// The times at which the clocks of the server and of the limiters start.
const SERVER_START: u64 = 1_000_000_000_000;
const LOCAL_START: u64 = 5_000_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) time: u8,
    pub(super) server: Keys,
    /// How often the server has freed all slots: by a reset, or because it has lost its memory.
    pub(super) generation: u8,
    pub(super) processes: Vec<Process>,
    pub(super) network: Vec<Message>,
    pub(super) used: Used,
}

/// What was done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Used {
    pub(super) calls: u8,
    pub(super) local_calls: u8,
    pub(super) given_up: u8,
    pub(super) resets: u8,
    pub(super) flushes: u8,
    pub(super) crashes: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) id: u64,
    pub(super) units: SlotUnits,
    pub(super) last_seq: u64,
    pub(super) pending: Option<Pending>,
    /// The number of a reset without a reply.
    pub(super) resetting: Option<u64>,
    pub(super) calls: Vec<Call>,
    /// Whether its hold has ended before a reply or a statement, which can lose the slots of all of its calls. Recorded
    /// in models with resets or fallbacks only.
    pub(super) was_late: bool,
}

/// The pending request of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    /// The number of its statement.
    pub(super) number: u64,
    pub(super) sent_at: u64,
    pub(super) wants: bool,
    /// The resets when it was sent; `None` if one of them had no reply.
    pub(super) resets: Option<u8>,
}

/// A call that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) held: TakenUnits,
    /// The generation in which the server has admitted it; `None` if a fallback has.
    pub(super) generation: Option<u8>,
    /// How many resets had their replies before the call began.
    pub(super) resets: u8,
    /// Until when the server keeps the slot, by the clock of the limiter, unless the count is reset; 0 if a reset was
    /// under way when the call began.
    pub(super) kept_until: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Message {
    pub(super) process: u64,
    pub(super) number: u64,
    pub(super) body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Body {
    Take(Vec<u8>),
    State(Vec<u8>),
    Reset,
    Reply { bytes: Vec<u8>, generation: u8 },
}

impl State {
    pub(super) fn server_clock(&self) -> u64 {
        SERVER_START + u64::from(self.time) * TICK
    }

    pub(super) fn local_clock(&self) -> u64 {
        LOCAL_START + u64::from(self.time) * TICK
    }

    /// Returns how many calls of `generation` run and do not know that they have lost their slot.
    pub(super) fn running(&self, generation: u8) -> usize {
        let now = self.local_clock();
        let calls = self.processes.iter().flat_map(|process| {
            process.calls.iter().filter(move |call| !process.units.is_lost(call.held, now))
        });
        calls.filter(|call| call.generation == Some(generation)).count()
    }

    /// Returns whether the calls that fallbacks have admitted since the last reset have their slots.
    pub(super) fn keeps_local_calls(&self) -> bool {
        let has_slot = |process: &Process, call: &Call| {
            let is_local = call.generation.is_none();
            let is_of_before = call.resets < self.used.resets || process.was_late;
            !is_local || is_of_before || process.units.has(call.held)
        };
        self.processes.iter().all(|it| it.calls.iter().all(|call| has_slot(it, call)))
    }

    /// Returns whether the calls that the server has admitted since the last reset have their slots, as long as the
    /// server keeps them.
    pub(super) fn keeps_calls(&self) -> bool {
        let now = self.local_clock();
        let has_slot = |process: &Process, call: &Call| {
            let is_kept = call.generation == Some(self.generation) && now < call.kept_until;
            !is_kept || process.was_late || process.units.has(call.held)
        };
        self.processes.iter().all(|it| it.calls.iter().all(|call| has_slot(it, call)))
    }

    /// Returns how many units are held.
    pub(super) fn held(&self) -> u64 {
        self.processes.iter().map(|process| process.units.units()).sum()
    }

    /// Sends the statement of a process, with a call that wants a unit or without.
    pub(super) fn send(&mut self, process: usize, wants: bool, threshold: u64) {
        let now = self.local_clock();
        let is_reset = self.processes.iter().any(|process| process.resetting.is_some());
        let resets = (!is_reset).then_some(self.used.resets);
        let sender = &mut self.processes[process];
        sender.units.expire(now);
        sender.last_seq += 1;
        let (id, seq) = (sender.id, sender.last_seq);
        let stated = sender.units.state(seq, now);
        sender.pending = Some(Pending { number: seq, sent_at: now, wants, resets });
        let statement = Statement { process: id, seq, ..stated };
        let terms = packed_terms(threshold, &statement);
        let body = if wants { Body::Take(terms) } else { Body::State(terms) };
        self.put(Message { process: id, number: seq, body });
    }

    pub(super) fn put(&mut self, message: Message) {
        let place = self.network.partition_point(|other| *other < message);
        self.network.insert(place, message);
    }
}

impl Process {
    pub(super) fn new(id: u64) -> Self {
        let mut units = SlotUnits::new(1);
        units.set_hold(HOLD);
        Self {
            id,
            units,
            last_seq: 1,
            pending: None,
            resetting: None,
            calls: Vec::new(),
            was_late: false,
        }
    }

    /// Returns whether a statement is due.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let mut units = self.units;
        self.pending.is_none()
            && (units.expire(now) > 0
                || units.is_dirty()
                || units.next_statement().is_some_and(|at| at <= now))
    }

    /// Returns whether the process waits for the reply to a request.
    pub(super) fn waits_for(&self, number: u64) -> bool {
        self.pending.is_some_and(|pending| pending.number == number)
            || self.resetting == Some(number)
    }

    /// The process does not wait for the reply to its request any longer.
    pub(super) fn give_up(&mut self) {
        self.pending = None;
        self.units.unanswered();
    }
}

impl Message {
    pub(super) fn is_reply(&self) -> bool {
        matches!(self.body, Body::Reply { .. })
    }
}

pub(super) fn packed_terms(threshold: u64, stated: &Statement) -> Vec<u8> {
    let mut out = Vec::new();
    let Statement { process, seq, units, epoch, hold_us, waited_us } = *stated;
    for number in [threshold, hold_us, process, seq, units, epoch, waited_us] {
        out.extend(&number.to_be_bytes()[1..]);
    }
    out
}
