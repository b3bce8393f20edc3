//! The process that leases: its calls, the task that requests leases, and the watch.

use super::super::state::{Delivery, LeaseCaller, LeaseState, UnspentUnits};
use super::{Action, Body, Fault, State, TARGET};
use crate::algorithm::Outcome;
use crate::bounds::Bound;
use crate::reply::{Source, StoreError};
use crate::store::Reply;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Process {
    /// What its ledger has of the count.
    pub(super) lease: Option<LeaseState<Caller>>,
    /// The task that requests leases, while it runs.
    pub(super) fetch: Option<Fetch>,
    /// The calls that have not ended.
    pub(super) calls: Vec<Call>,
    /// The number of the next request.
    next: u8,
    /// The time of the next look of the watch.
    look: Option<u64>,
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
    id: u8,
    is_present: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) id: u8,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// It waits for the ledger.
    Waiting,
    /// It has received units, which were admitted at this real time.
    Ready { units: Unspent, admitted: u64 },
    /// Its count is not leased, so it sends its own request.
    Asking,
}

/// [`UnspentUnits`] without their target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Unspent {
    pub(super) units: u64,
    pub(super) at: u64,
    pub(super) place: u64,
}

impl State {
    /// A call arrives: it spends units, waits for some, or sends its own request.
    pub(super) fn call(&mut self) {
        let (now, id) = (self.local_clock(), self.used.get(Bound::Calls));
        let process = &mut self.process;
        let lease = process.lease.get_or_insert_default();
        let stage = if lease.is_paused(now) {
            Stage::Asking
        } else if lease.waiters.is_empty() && lease.take(&TARGET, 1, now).is_some() {
            return self.spend(1, self.time);
        } else {
            lease.wait(1, Caller { id, is_present: true });
            process.fetch.get_or_insert(Fetch::Looks);
            Stage::Waiting
        };
        process.calls.push(Call { id, stage });
    }

    /// A call spends all units that the process holds. Returns `None` if it holds none.
    pub(super) fn spend_held(&mut self) -> Option<()> {
        let now = self.local_clock();
        let lease = self.process.lease.as_mut().filter(|lease| lease.waiters.is_empty())?;
        let units = Some(lease.held.spendable(now)).filter(|units| *units > 0)?;
        lease.take(&TARGET, units, now)?;
        self.spend(units, self.time);
        Some(())
    }

    /// The first part of the loop of the task that requests leases.
    pub(super) fn fetch(&mut self) {
        let (now, process) = (self.local_clock(), &mut self.process);
        process.fetch = None;
        let Some(lease) = &mut process.lease else { return };
        let deliveries = lease.serve(&TARGET, now);
        let request = lease.request(&TARGET, now);
        if request.is_none() {
            // The watch looks at all leases after the end of a task.
            process.schedule(now);
        }
        self.deliver(deliveries, self.time);
        if let Some(request) = request {
            self.give_back(request.unspent);
            let (number, units) = (self.process.next, request.units);
            self.process.next += 1;
            self.process.fetch = Some(Fetch::Waits { number, units, since: now });
            self.put(number, Body::Lease { units });
        }
    }

    /// The task receives the reply, which the server has sent at the real time `at`.
    pub(super) fn receive(&mut self, number: u8, outcome: Outcome, at: u64, is_late: bool) {
        if self.process.fetch.is_some_and(|fetch| fetch.waits_for(number)) {
            let is_late = is_late && outcome.is_allowed();
            self.replied(Ok(Reply::one(outcome, Source::Redis)), at, is_late);
        }
    }

    /// The task receives no reply.
    pub(super) fn give_up(&mut self) {
        if let Some(Fetch::Waits { number, .. }) = self.process.fetch {
            self.drop_reply(number);
            self.replied(Err(StoreError::ShuttingDown), 0, false);
        }
    }

    /// The request of the task ends. If `is_late`, the term of its lease begins now.
    fn replied(&mut self, result: Result<Reply, StoreError>, at: u64, is_late: bool) {
        let now = self.local_clock();
        let Some(Fetch::Waits { units, since, .. }) = self.process.fetch.replace(Fetch::Looks)
        else {
            return;
        };
        let Some(lease) = &mut self.process.lease else { return };
        let requested = if is_late { now } else { since };
        let (deliveries, excess) = lease.replied(&TARGET, units, requested, now, result);
        self.deliver(deliveries, at);
        self.give_back(excess);
    }

    /// Delivers what the ledger replies to calls. Units were admitted at the real time `at`.
    fn deliver(&mut self, deliveries: Vec<Delivery<Caller>>, at: u64) {
        for Delivery { to, reply, units } in deliveries {
            let calls = &mut self.process.calls;
            // The channel of a call that was dropped is closed.
            let Some(place) = calls.iter().position(|call| call.id == to.id) else { continue };
            match (reply, units) {
                (_, Some(units)) => {
                    calls[place].stage = Stage::Ready { units: units.into(), admitted: at };
                }
                (None, None) => calls[place].stage = Stage::Asking,
                (Some(_), None) => drop(calls.remove(place)),
            }
        }
    }

    pub(super) fn drop_call(&mut self, id: u8, fault: Option<Fault>) {
        let process = &mut self.process;
        match process.remove(id) {
            Some(Stage::Waiting) => {
                let waiters = process.lease.iter_mut().flat_map(|lease| &mut lease.waiters);
                let own = waiters.map(|waiter| &mut waiter.caller).find(|caller| caller.id == id);
                own.expect("the call waits").is_present = false;
            }
            Some(Stage::Ready { units, .. }) if fault != Some(Fault::DroppedUnitsAreForgotten) => {
                let Unspent { units, at, place } = units;
                let unspent = UnspentUnits { target: TARGET.clone(), units, at, place };
                let lease = process.lease.as_mut();
                let kept = lease.map_or(0, |lease| lease.put_back(&TARGET, &unspent));
                let twice = fault == Some(Fault::DroppedUnitsGoBackTwice);
                let units = units - if twice { 0 } else { kept };
                self.give_back(UnspentUnits { units, ..unspent }.some());
            }
            _ => {}
        }
    }

    /// The watch looks at the lease.
    pub(super) fn look(&mut self) {
        let (now, process) = (self.local_clock(), &mut self.process);
        process.look = None;
        let Some(lease) = &mut process.lease else { return };
        let (unspent, again) = lease.look(&TARGET, process.fetch.is_some(), now);
        match again {
            Some(again) => process.schedule(again),
            None => process.lease = None,
        }
        self.give_back(unspent);
    }

    /// Ends the process and starts another. What it has sent can still be executed.
    pub(super) fn crash(&mut self) {
        if let Some(Fetch::Waits { number, .. }) = self.process.fetch {
            self.drop_reply(number);
        }
        self.process = Process { next: self.process.next, ..Process::default() };
        self.owned = self.known();
    }

    /// Sends units back to the server.
    fn give_back(&mut self, unspent: Option<UnspentUnits>) {
        if let Some(unspent) = unspent {
            self.put(u8::MAX, Body::Return(unspent.into()));
        }
    }
}

impl Process {
    /// Returns the leased units that the process has.
    pub(super) fn known(&self) -> u64 {
        let held = self.lease.as_ref().map_or(0, |lease| lease.held.units);
        let ready = self.calls.iter().map(|call| match call.stage {
            Stage::Ready { units, .. } => units.units,
            Stage::Waiting | Stage::Asking => 0,
        });
        held + ready.sum::<u64>()
    }

    pub(super) fn next_action(&self) -> Option<Action> {
        (self.fetch == Some(Fetch::Looks)).then_some(Action::Fetch)
    }

    /// Returns whether the watch has a lease to look at.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.look.is_some_and(|at| at <= now)
    }

    fn schedule(&mut self, at: u64) {
        self.look = Some(self.look.map_or(at, |planned| planned.min(at)));
    }

    /// Ends a call.
    pub(super) fn remove(&mut self, id: u8) -> Option<Stage> {
        let place = self.calls.iter().position(|call| call.id == id)?;
        Some(self.calls.remove(place).stage)
    }
}

impl Call {
    pub(super) fn next_action(&self) -> Option<Action> {
        match self.stage {
            Stage::Waiting => None,
            Stage::Ready { .. } => Some(Action::Poll(self.id)),
            Stage::Asking => Some(Action::Ask(self.id)),
        }
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

impl From<UnspentUnits> for Unspent {
    fn from(UnspentUnits { units, at, place, .. }: UnspentUnits) -> Self {
        Self { units, at, place }
    }
}
