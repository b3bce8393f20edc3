//! The lease of one count as a plain value: no clock, no lock, no channel. The [ledger](super::ledger) locks it and
//! sends its replies, and `models/` checks it.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use super::held::HeldUnits;
use super::share::Share;
use super::target::{
    ChargedLease, Delivery, DeliveryContent, LeaseRequest, LeaseTarget, UnspentUnits,
};
use crate::algorithm::{Outcome, Verdict};
use crate::limit::Algorithm;
use crate::reply::{Source, StoreError};
use crate::store::Reply;

/// A process remembers a lease if at least so many of its units were spent.
const LEAST_SPENT: u64 = 4;

/// The units that a process holds of one count, and the calls that wait for more. `C` is what receives the reply to a
/// call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeaseState<C> {
    pub(super) held: HeldUnits,
    pub(super) share: Share,
    pub(super) waiters: VecDeque<LeaseWaiter<C>>,
    /// The number of calls that have waited so far.
    arrivals: u64,
    /// The number of waiters that the pending request includes.
    included: usize,
    /// Whether the count was reset while the request was pending.
    reset: bool,
    /// The time until which no units are leased, because the store has rejected a lease.
    paused: u64,
}

/// A call that waits for a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeaseWaiter<C> {
    arrival: u64,
    cost: u64,
    pub(super) caller: C,
}

/// What receives the reply to a call.
pub(super) trait LeaseCaller {
    /// Returns whether the call still waits for its reply.
    fn is_present(&self) -> bool;
}

impl<C> Default for LeaseState<C> {
    fn default() -> Self {
        Self {
            held: HeldUnits::default(),
            share: Share::default(),
            waiters: VecDeque::new(),
            arrivals: 0,
            included: 0,
            reset: false,
            paused: 0,
        }
    }
}

impl<C: LeaseCaller> LeaseState<C> {
    pub(super) fn is_paused(&self, now: u64) -> bool {
        now < self.paused
    }

    /// Spends `cost` units if the process holds as many.
    #[inline]
    pub(super) fn take(&mut self, target: &LeaseTarget, cost: u64, now: u64) -> Option<Reply> {
        if cost > self.held.spendable(now) {
            return None;
        }
        self.held.units -= cost;
        Some(self.reply(target, now, Source::Lease))
    }

    /// Adds a call to the waiters. Returns its number.
    pub(super) fn wait(&mut self, cost: u64, caller: C) -> u64 {
        self.arrivals += 1;
        self.waiters.push_back(LeaseWaiter { arrival: self.arrivals, cost, caller });
        self.arrivals
    }

    /// Returns whether the call with this number still waits, and the pending request does not include it.
    pub(super) fn is_not_included(&self, arrival: u64) -> bool {
        self.waiters.iter().skip(self.included).any(|waiter| waiter.arrival == arrival)
    }

    /// Serves waiters from the units that the process holds.
    pub(super) fn serve(&mut self, target: &Arc<LeaseTarget>, now: u64) -> Vec<Delivery<C>> {
        let mut deliveries = Vec::new();
        while let Some(first) = self.waiters.front() {
            let is_gone = !first.caller.is_present();
            let cost = first.cost;
            let reply = if is_gone { None } else { self.take(target, cost, now) };
            if reply.is_none() && !is_gone {
                break;
            }
            let first = self.waiters.pop_front();
            if let (Some(first), Some(reply)) = (first, reply) {
                deliveries.push(self.deliver(target, first, reply));
            }
        }
        deliveries
    }

    /// Prepares the next lease: the units that the waiters need; or, if that is more and allowed, twice what was spent
    /// of the last lease, or just that if the last lease has ended.
    pub(super) fn request(&mut self, target: &Arc<LeaseTarget>, now: u64) -> Option<LeaseRequest> {
        let first = self.waiters.front()?.cost;
        let spent = self.held.spent();
        let most = target.max_units.min(self.share.most);
        let ahead = if now < self.held.until { spent.saturating_mul(2) } else { spent }.min(most);
        let needed = self.waiters.iter().filter(|waiter| waiter.caller.is_present());
        let needed = needed.fold(0_u64, |sum, waiter| sum.saturating_add(waiter.cost));
        let units = needed.max(ahead).min(target.capacity()).max(first);
        self.included = self.waiters.len();
        // A reset before this request does not affect the units that it will charge.
        self.reset = false;
        let unspent = self.take_unspent(target);
        self.held.forget();
        Some(LeaseRequest { target: Arc::clone(target), units, unspent })
    }

    /// Records that the store has charged `units` units: serves the waiters that the request included, and keeps the
    /// rest.
    pub(super) fn charged(
        &mut self,
        target: &Arc<LeaseTarget>,
        units: u64,
        requested: u64,
        now: u64,
        outcome: Outcome,
    ) -> ChargedLease<C> {
        let mut deliveries = Vec::new();
        let lasts = match target.charge.terms.algorithm() {
            Algorithm::Fixed => target.lifetime.min(outcome.reset_us),
            Algorithm::Sliding
            | Algorithm::SlidingCounter
            | Algorithm::TokenBucket
            | Algorithm::LeakyBucket
            | Algorithm::InFlight => target.lifetime,
        };
        self.share.update(&target.charge.terms, units, &outcome);
        self.held = HeldUnits {
            units,
            charged: units,
            at: outcome.clock,
            place: outcome.charged_at(&target.charge.terms),
            requested,
            // The clock of the store may run a little faster.
            until: requested + lasts - lasts.div_ceil(1_000),
            remaining: outcome.remaining,
            reset_us: outcome.reset_us,
        };
        // The store has admitted these calls, so they spend units also after the lifetime of the lease.
        let mut source = Source::Redis;
        for _ in 0..mem::take(&mut self.included) {
            let Some(cost) = self.waiters.front().map(|first| first.cost) else { break };
            if cost > self.held.units {
                break;
            }
            let Some(first) = self.waiters.pop_front().filter(|first| first.caller.is_present())
            else {
                continue;
            };
            self.held.units -= cost;
            deliveries.push(self.deliver(target, first, self.reply(target, now, source)));
            source = Source::Lease;
        }
        let place = self.held.place;
        let kept = if now < self.held.until { target.max_units } else { 0 };
        let mut excess = self.held.units.saturating_sub(kept);
        self.held.units -= excess;
        self.held.charged -= excess;
        let end = self.held.until;
        if mem::take(&mut self.reset) {
            // The reset has removed the count to which these units could return.
            excess = 0;
            self.held.forget();
        }
        let target = Arc::clone(target);
        let excess = UnspentUnits { target, units: excess, at: outcome.clock, place }.some();
        ChargedLease { deliveries, excess, look_at: end }
    }

    /// Records that the store has rejected a lease of `units` units. The rejection is also the reply to each waiter of
    /// that cost which the request included. For the lifetime of a lease, the count is not leased. Also returns the
    /// time at which the watch must look at the lease.
    pub(super) fn rejected(
        &mut self,
        target: &LeaseTarget,
        units: u64,
        now: u64,
        rejection: &Reply,
    ) -> (Vec<Delivery<C>>, u64) {
        self.reset = false;
        self.paused = now + target.lifetime;
        let included = mem::take(&mut self.included);
        let delivery = |(index, waiter): (usize, LeaseWaiter<C>)| {
            let is_reply = index < included && waiter.cost == units;
            let content = if is_reply {
                DeliveryContent::Rejection(rejection.clone())
            } else {
                DeliveryContent::NotLeased
            };
            Delivery { to: waiter.caller, content }
        };
        let deliveries = self.waiters.drain(..).enumerate().map(delivery).collect();
        (deliveries, self.paused)
    }

    /// Records that the store has failed.
    pub(super) fn failed(&mut self, error: &StoreError) -> Vec<Delivery<C>> {
        let failed = |waiter: LeaseWaiter<C>| Delivery {
            to: waiter.caller,
            content: DeliveryContent::Failure(error.clone()),
        };
        self.waiters.drain(..).map(failed).collect()
    }

    /// Removes the waiters, whose task has ended. The caller drops them.
    pub(super) fn abandon(&mut self) -> impl Drop + use<C> {
        mem::take(&mut self.waiters)
    }

    /// Takes back units that a waiter did not spend, if they are of the same charge as the units that the process holds
    /// now, and as many as it may hold. Returns how many.
    pub(super) fn put_back(&mut self, target: &LeaseTarget, unspent: &UnspentUnits) -> u64 {
        let UnspentUnits { target: charged, units, at, .. } = unspent;
        if self.held.at != *at || *at == 0 || target.amounts != charged.amounts {
            return 0;
        }
        let kept = (*units).min(target.max_units.saturating_sub(self.held.units));
        self.held.units += kept;
        self.held.charged = self.held.charged.saturating_sub(units - kept);
        kept
    }

    /// Discards the units of a count that was reset.
    pub(super) fn discard(&mut self, is_fetching: bool) {
        self.held.forget();
        (self.reset, self.paused) = (is_fetching, 0);
    }

    /// Takes all units that are held. The lease still knows the spent units.
    pub(super) fn take_unspent(&mut self, target: &Arc<LeaseTarget>) -> Option<UnspentUnits> {
        let HeldUnits { units, at, place, .. } = self.held.take();
        (UnspentUnits { target: Arc::clone(target), units, at, place }).some()
    }

    /// Takes the units of a lease that has ended. Also returns the time of the next look, at which the process still
    /// knows the lease.
    pub(super) fn look(
        &mut self,
        target: &Arc<LeaseTarget>,
        is_fetching: bool,
        now: u64,
    ) -> (Option<UnspentUnits>, Option<u64>) {
        if is_fetching {
            return (None, Some(now + target.lifetime));
        }
        let expired = if self.held.until <= now { self.take_unspent(target) } else { None };
        (expired, self.next_end(target, now))
    }

    /// Returns the next time after `now` at which the units must go back, or at which the process forgets this lease:
    /// if a number of units was spent, one lifetime after its end.
    pub(super) fn next_end(&self, target: &LeaseTarget, now: u64) -> Option<u64> {
        let until = self.held.until;
        let is_busy = self.held.spent() >= LEAST_SPENT;
        let forgotten = if is_busy { until + target.lifetime } else { until };
        [until, forgotten.max(self.paused)].into_iter().find(|end| *end > now)
    }

    /// Returns whether the units of an ended lease are taken, and the lease is not to be forgotten at `now`.
    pub(super) fn is_kept(&self, target: &LeaseTarget, now: u64) -> bool {
        let has_ended = self.held.until <= now && self.held.units > 0;
        self.next_end(target, now).is_some() && !has_ended
    }

    /// Returns whether nothing is held, and nothing is to be remembered.
    pub(super) fn is_empty(&self, target: &LeaseTarget, now: u64) -> bool {
        self.held.units == 0 && self.next_end(target, now).is_none()
    }

    /// Returns the reply to a call that has spent units.
    fn reply(&self, target: &LeaseTarget, now: u64, source: Source) -> Reply {
        let HeldUnits { units, at: clock, requested, remaining, reset_us, .. } = self.held;
        let outcome = Outcome {
            clock,
            verdict: Verdict::Admitted,
            remaining: remaining.saturating_add(units).min(target.capacity()),
            retry_us: 0,
            reset_us: reset_us.saturating_sub(now.saturating_sub(requested)),
        };
        Reply::one(outcome, source)
    }

    fn deliver(
        &self,
        target: &Arc<LeaseTarget>,
        waiter: LeaseWaiter<C>,
        reply: Reply,
    ) -> Delivery<C> {
        let (HeldUnits { at, place, .. }, target) = (self.held, Arc::clone(target));
        let units = UnspentUnits { target, units: waiter.cost, at, place };
        Delivery { to: waiter.caller, content: DeliveryContent::Units { reply, units } }
    }
}
