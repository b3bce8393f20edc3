//! What the process does that leases: its calls, the task that requests leases, and the watch.

use super::execution;
use super::state::{self, Body, Fetch, Message, Stage, State};
use super::{Fault, Leases};
use crate::algorithm::Outcome;
use crate::reply::{Source, StoreError};
use crate::store::Reply;

impl Leases {
    /// A call arrives: it spends units, waits for some, or sends its own request.
    pub(super) fn call(&self, state: &mut State) {
        let now = state.local_clock();
        let id = state.used.calls;
        state.used.calls += 1;
        let process = &mut state.process;
        let lease = process.lease.get_or_insert_default();
        let target = execution::target();
        let stage = if lease.is_paused(now) {
            Stage::Asking
        } else if lease.waiters.is_empty() && lease.take(target, 1, now).is_some() {
            state.spend(1, state.time);
            return;
        } else {
            lease.wait(1, state::Caller { id, is_present: true });
            process.fetch.get_or_insert(Fetch::Looks);
            Stage::Waiting
        };
        state.process.calls.push(state::Call { id, stage });
    }

    /// A call spends all units that the process holds. Returns `None` if it holds none.
    pub(super) fn spend_held(&self, state: &mut State) -> Option<()> {
        let (now, time) = (state.local_clock(), state.time);
        let lease = state.process.lease.as_mut().filter(|lease| lease.waiters.is_empty())?;
        let units = lease.held.spendable(now);
        lease.take(execution::target(), units, now)?;
        state.spend(units, time);
        (units > 0).then_some(())
    }

    /// The first part of the loop of the task that requests leases.
    pub(super) fn fetch(&self, state: &mut State) {
        let (now, time) = (state.local_clock(), state.time);
        let (target, process) = (execution::target(), &mut state.process);
        process.fetch = None;
        let Some(lease) = &mut process.lease else { return };
        let deliveries = lease.serve(target, now);
        let request = lease.request(target, now);
        if request.is_none() {
            // The watch looks at all leases after the end of a task.
            process.schedule(now);
        }
        state.deliver(deliveries, time);
        if let Some(request) = request {
            state.give_back(request.unspent);
            let number = state.process.next;
            state.process.next += 1;
            state.process.fetch = Some(Fetch::Waits { number, units: request.units, since: now });
            state.put(Message { number, body: Body::Lease { units: request.units } });
        }
    }

    /// The task receives the reply, which the server has sent at the real time `at`.
    pub(super) fn receive(&self, state: &mut State, number: u8, outcome: &Outcome, at: u64) {
        let now = state.local_clock();
        let Some(Fetch::Waits { units, since, .. }) =
            state.process.fetch.take_if(|fetch| fetch.waits_for(number))
        else {
            return;
        };
        state.process.fetch = Some(Fetch::Looks);
        let target = execution::target();
        let Some(lease) = &mut state.process.lease else { return };
        let is_late = self.is(Fault::TermSinceReply) && outcome.is_allowed();
        let requested = if is_late { now } else { since };
        let reply = Reply::one(*outcome, Source::Redis);
        let (deliveries, excess) = lease.replied(target, units, requested, now, Ok(reply));
        state.deliver(deliveries, at);
        state.give_back(excess);
    }

    /// The task receives no reply.
    pub(super) fn give_up(&self, state: &mut State) {
        let Some(Fetch::Waits { number, units, since }) = state.process.fetch else { return };
        state.process.fetch = Some(Fetch::Looks);
        state.drop_reply(number);
        let (target, now) = (execution::target(), state.local_clock());
        let Some(lease) = &mut state.process.lease else { return };
        let failed = Err(StoreError::ShuttingDown);
        let (deliveries, _) = lease.replied(target, units, since, now, failed);
        state.deliver(deliveries, 0);
    }

    pub(super) fn drop_call(&self, state: &mut State, id: u8) {
        let process = &mut state.process;
        let Some(at) = process.calls.iter().position(|call| call.id == id) else { return };
        match process.calls.remove(at).stage {
            Stage::Asking => {}
            Stage::Waiting => {
                let waiters = process.lease.iter_mut().flat_map(|lease| &mut lease.waiters);
                let own = waiters.map(|waiter| &mut waiter.caller).find(|caller| caller.id == id);
                own.expect("the call waits").is_present = false;
            }
            Stage::Ready { units, .. } => {
                if self.is(Fault::DroppedUnitsAreForgotten) {
                    return;
                }
                let unspent = units.unspent();
                let kept = process
                    .lease
                    .as_mut()
                    .map_or(0, |lease| lease.put_back(execution::target(), &unspent));
                let twice = self.is(Fault::DroppedUnitsGoBackTwice);
                let rest = unspent.units - if twice { 0 } else { kept };
                state
                    .give_back(super::super::state::UnspentUnits { units: rest, ..unspent }.some());
            }
        }
    }

    /// The watch looks at the lease.
    pub(super) fn look(&self, state: &mut State) {
        let (now, process) = (state.local_clock(), &mut state.process);
        let is_fetching = process.fetch.is_some();
        process.look = None;
        let Some(lease) = &mut process.lease else { return };
        let (unspent, again) = lease.look(execution::target(), is_fetching, now);
        match again {
            Some(again) => process.schedule(again),
            None => process.lease = None,
        }
        state.give_back(unspent);
    }
}
