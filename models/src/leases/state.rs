//! A state of the model: the server, the process that leases, and the messages between them.

use super::super::state::{Delivery, LeaseCaller, LeaseState, UnspentUnits};
use crate::algorithm::{Outcome, Verdict};
use crate::judge::Admitted;
use crate::server::Keys;

/// The length of a step of time, in microseconds: a lease ends right after two steps.
pub(super) const TICK: u64 = 499_499;
/// The times at which the clocks of the server and of the process start.
const SERVER_START: u64 = 1_000_000_000_000;
const LOCAL_START: u64 = 5_000_000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The real time since the start, in microseconds.
    pub(super) time: u64,
    /// The real time at which the clock of the server has stepped, and by how much.
    pub(super) stepped: Option<(u64, i64)>,
    pub(super) server: Keys,
    pub(super) process: Process,
    pub(super) network: Vec<Message>,
    /// The receipts of the charges that are not settled: births and places.
    pub(super) receipts: Vec<(u64, u64)>,
    /// What was admitted, at its real time, in the order of the times.
    pub(super) admitted: Vec<Admitted>,
    /// The leased units that are not spent, given back or lost by a fault.
    pub(super) owned: u64,
    pub(super) used: Used,
}

/// What was done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Used {
    pub(super) calls: u8,
    pub(super) ticks: u8,
    pub(super) drops: u8,
    pub(super) plain: u8,
    pub(super) reserved: u8,
    pub(super) settled: u8,
    pub(super) lost: u8,
    pub(super) repeated: u8,
    pub(super) crashes: u8,
}

/// The process that leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Process {
    /// What its ledger has of the count.
    pub(super) lease: Option<LeaseState<Caller>>,
    /// The task that requests leases, while it runs.
    pub(super) fetch: Option<Fetch>,
    /// The calls that have not ended.
    pub(super) calls: Vec<Call>,
    /// The number of the next request.
    pub(super) next: u8,
    /// The time of the next look of the watch.
    pub(super) look: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fetch {
    /// It looks for calls that wait.
    Looks,
    /// It waits for the reply to a request, which was sent at `since`.
    Waits { number: u8, units: u64, since: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Caller {
    pub(super) id: u8,
    pub(super) is_present: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) id: u8,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// It waits for the ledger.
    Waiting,
    /// It has received units, which were admitted at this real time.
    Ready { units: PlainUnits, admitted: u64 },
    /// Its count is not leased, so it sends its own request.
    Asking,
}

/// [`UnspentUnits`] without their target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PlainUnits {
    pub(super) units: u64,
    pub(super) at: u64,
    pub(super) place: u64,
}

/// An [`Outcome`] that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PlainOutcome {
    pub(super) clock: u64,
    pub(super) is_allowed: bool,
    pub(super) remaining: u64,
    pub(super) retry_us: u64,
    pub(super) reset_us: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Message {
    pub(super) number: u8,
    pub(super) body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Body {
    /// A request for units.
    Lease { units: u64 },
    /// Its reply, and the real time of its execution.
    Reply { units: u64, outcome: PlainOutcome, at: u64 },
    /// Units that go back. No reply is needed.
    Return(PlainUnits),
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            time: 0,
            stepped: None,
            server: Keys::default(),
            process: Process::default(),
            network: Vec::new(),
            receipts: Vec::new(),
            admitted: Vec::new(),
            owned: 0,
            used: Used::default(),
        }
    }

    pub(super) fn server_clock(&self) -> u64 {
        let stepped = self.stepped.map_or(0, |(_, by)| by);
        (SERVER_START + self.time).saturating_add_signed(stepped)
    }

    pub(super) fn local_clock(&self) -> u64 {
        LOCAL_START + self.time
    }

    /// Records that units were admitted at the real time `at`.
    pub(super) fn admit(&mut self, units: u64, at: u64) {
        let place = self.admitted.partition_point(|other| *other < (at, units));
        self.admitted.insert(place, (at, units));
    }

    /// Records that a call has spent leased units, which were admitted at the real time `at`.
    pub(super) fn spend(&mut self, units: u64, at: u64) {
        self.owned = self.owned.wrapping_sub(units);
        self.admit(units, at);
    }

    /// Returns the leased units that are somewhere.
    pub(super) fn known(&self) -> u64 {
        let held = self.process.lease.as_ref().map_or(0, |lease| lease.held.units);
        let ready = self.process.calls.iter().map(|call| match call.stage {
            Stage::Ready { units, .. } => units.units,
            Stage::Waiting | Stage::Asking => 0,
        });
        let sent = self.network.iter().map(|message| message.body.owned());
        held + ready.sum::<u64>() + sent.sum::<u64>()
    }

    pub(super) fn put(&mut self, message: Message) {
        let place = self.network.partition_point(|other| *other < message);
        self.network.insert(place, message);
    }

    /// Sends units back to the server.
    pub(super) fn give_back(&mut self, unspent: Option<UnspentUnits>) {
        if let Some(UnspentUnits { units, at, place, .. }) = unspent {
            let body = Body::Return(PlainUnits { units, at, place });
            self.put(Message { number: u8::MAX, body });
        }
    }

    /// Loses a message.
    pub(super) fn lose(&mut self, index: usize) {
        let message = self.network.remove(index);
        self.owned -= message.body.owned();
    }

    /// Loses the reply to a request.
    pub(super) fn drop_reply(&mut self, number: u8) {
        let is_reply = |it: &Message| it.number == number && matches!(it.body, Body::Reply { .. });
        while let Some(index) = self.network.iter().position(is_reply) {
            self.lose(index);
        }
    }

    /// Ends the process and starts another. What it has sent can still be executed.
    pub(super) fn crash(&mut self) {
        if let Some(Fetch::Waits { number, .. }) = self.process.fetch {
            self.drop_reply(number);
        }
        self.process = Process { next: self.process.next, ..Process::default() };
        self.owned = self.known();
    }

    /// Delivers what the ledger replies to calls. Units were admitted at the real time `at`.
    pub(super) fn deliver(&mut self, deliveries: Vec<Delivery<Caller>>, at: u64) {
        for Delivery { to, reply, units } in deliveries {
            let calls = &mut self.process.calls;
            // The channel of a call that was dropped is closed.
            let Some(place) = calls.iter().position(|call| call.id == to.id) else { continue };
            match (reply, units) {
                (_, Some(UnspentUnits { units, at: charged, place: recorded, .. })) => {
                    let units = PlainUnits { units, at: charged, place: recorded };
                    calls[place].stage = Stage::Ready { units, admitted: at };
                }
                (None, None) => calls[place].stage = Stage::Asking,
                (Some(_), None) => {
                    calls.remove(place);
                }
            }
        }
    }
}

impl Process {
    /// Returns whether the watch has a lease to look at.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.look.is_some_and(|at| at <= now)
    }

    pub(super) fn schedule(&mut self, at: u64) {
        self.look = Some(self.look.map_or(at, |planned| planned.min(at)));
    }
}

impl Fetch {
    pub(super) fn waits_for(self, sent: u8) -> bool {
        matches!(self, Self::Waits { number, .. } if number == sent)
    }
}

impl LeaseCaller for Caller {
    fn is_present(&self) -> bool {
        self.is_present
    }
}

impl From<Outcome> for PlainOutcome {
    fn from(outcome: Outcome) -> Self {
        let Outcome { clock, remaining, retry_us, reset_us, .. } = outcome;
        Self { clock, is_allowed: outcome.is_allowed(), remaining, retry_us, reset_us }
    }
}

impl PlainOutcome {
    pub(super) fn outcome(self) -> Outcome {
        let Self { clock, is_allowed, remaining, retry_us, reset_us } = self;
        Outcome { clock, verdict: Verdict::from(is_allowed), remaining, retry_us, reset_us }
    }
}

impl Body {
    /// Returns the leased units that this message carries.
    fn owned(&self) -> u64 {
        match self {
            Self::Lease { .. } => 0,
            Self::Reply { units, outcome, .. } => {
                if outcome.is_allowed {
                    *units
                } else {
                    0
                }
            }
            Self::Return(units) => units.units,
        }
    }
}
