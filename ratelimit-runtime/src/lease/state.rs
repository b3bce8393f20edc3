//! The lease of one count as a plain value: no clock, no lock, no channel. The [ledger](super::ledger) locks it and
//! sends its replies, and `models/` checks it.
//!
//! How many units of a count a process requests in advance depends on its share, so that processes do not take the last
//! units from each other. The share of a process is the part that it has charged of all units that were charged between
//! the last two replies of the store. A process requests at most its share of half of the units that are left. So it
//! requests fewer units if few are left or if other processes charge most of them, and little stands idle when calls
//! are rejected. The share is an estimate: it affects the number of requests, and never a decision.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crate::algorithm::{Outcome, Verdict};
use crate::limit::{Algorithm, Limit, Policy, Terms};
use crate::reply::{Source, StoreError};
use crate::store::{Charge, Reply};

/// A process remembers a lease if at least so many of its units were spent.
const LEAST_SPENT: u64 = 4;

/// The units that a process holds of one count, and the calls that wait for more. `C` is what receives the reply to a
/// call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeaseState<C> {
    /// The count. The charge costs what the call costs that came first.
    pub(super) target: Arc<LeaseTarget>,
    /// Whether a task requests units.
    pub(super) is_fetching: bool,
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

impl<C: LeaseCaller> LeaseState<C> {
    pub(super) fn new(target: &Arc<LeaseTarget>) -> Self {
        let (is_fetching, held, share, waiters) = Default::default();
        let (arrivals, included, reset, paused) = Default::default();
        let target = Arc::clone(target);
        Self { target, is_fetching, held, share, waiters, arrivals, included, reset, paused }
    }

    pub(super) fn is_paused(&self, now: u64) -> bool {
        now < self.paused
    }

    /// Spends `cost` units if the process holds as many. Returns the outcome for the call.
    #[inline]
    pub(super) fn take(&mut self, cost: u64, now: u64) -> Option<Outcome> {
        if cost > self.held.spendable(now) {
            return None;
        }
        self.held.spend(cost);
        Some(self.outcome(now))
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
    pub(super) fn serve(&mut self, now: u64) -> Vec<Delivery<C>> {
        let spendable = self.held.spendable(now);
        self.serve_first(usize::MAX, spendable, Source::Lease, now)
    }

    /// Serves at most `most` waiters from `spendable` of the held units. `source` decides the first of them.
    fn serve_first(
        &mut self,
        most: usize,
        mut spendable: u64,
        mut source: Source,
        now: u64,
    ) -> Vec<Delivery<C>> {
        let mut deliveries = Vec::new();
        for _ in 0..most {
            let Some(first) = self.waiters.pop_front() else { break };
            if !first.caller.is_present() {
                continue;
            }
            if first.cost > spendable {
                self.waiters.push_front(first);
                break;
            }
            spendable -= first.cost;
            self.held.spend(first.cost);
            deliveries.push(Delivery {
                to: first.caller,
                reply: Some(Ok(Reply::one(self.outcome(now), source))),
                units: Some(self.unspent(first.cost)),
            });
            source = Source::Lease;
        }
        deliveries
    }

    /// Prepares the next lease: the units that the waiters need; or, if that is more and allowed, twice what was spent
    /// of the last lease, or just that if the last lease has ended.
    pub(super) fn request(&mut self, now: u64) -> Option<LeaseRequest> {
        self.is_fetching = !self.waiters.is_empty();
        let first = self.waiters.front()?.cost;
        let spent = self.held.spent;
        let most = self.target.max_units.min(self.share.most);
        let ahead = if now < self.held.until { spent.saturating_mul(2) } else { spent }.min(most);
        let needed = self.waiters.iter().filter(|waiter| waiter.caller.is_present());
        let needed = needed.fold(0_u64, |sum, waiter| sum.saturating_add(waiter.cost));
        let units = needed.max(ahead).min(self.target.capacity()).max(first);
        self.included = self.waiters.len();
        // A reset before this request does not affect the units that it will charge.
        self.reset = false;
        let unspent = self.take_unspent();
        self.held.forget();
        Some(LeaseRequest { target: Arc::clone(&self.target), units, unspent })
    }

    /// Records the reply to a request for `units` units, which was sent at the time `requested`. If the store has
    /// charged them, serves the waiters that the request included, keeps the rest, and also returns the units that the
    /// process must not keep.
    pub(super) fn replied(
        &mut self,
        units: u64,
        requested: u64,
        now: u64,
        result: Result<Reply, StoreError>,
    ) -> (Vec<Delivery<C>>, Option<UnspentUnits>) {
        let outcome = match result {
            Ok(reply) if reply.is_allowed() => reply.first(),
            Ok(rejection) => return (self.rejected(units, now, &rejection), None),
            Err(error) => {
                let failed = |waiter: LeaseWaiter<C>| waiter.reply(Some(Err(error.clone())));
                return (self.waiters.drain(..).map(failed).collect(), None);
            }
        };
        let ends_with_window = self.target.terms.identity.algorithm == Algorithm::Fixed;
        let window = if ends_with_window { outcome.reset_us } else { u64::MAX };
        let lasts = self.target.lifetime().min(window);
        self.share.update(&self.target.charge.terms, units, &outcome);
        self.held = HeldUnits {
            units,
            spent: 0,
            at: outcome.clock,
            place: outcome.charged_at(&self.target.charge.terms),
            requested,
            // The clock of the store may run a little faster.
            until: requested + lasts - lasts.div_ceil(1_000),
            remaining: outcome.remaining,
            reset_us: outcome.reset_us,
        };
        // The store has admitted these calls, so they spend units also after the lifetime of the lease.
        let included = mem::take(&mut self.included);
        let deliveries = self.serve_first(included, units, Source::Redis, now);
        let kept = if now < self.held.until { self.target.max_units } else { 0 };
        let excess = self.held.units.saturating_sub(kept);
        self.held.units -= excess;
        if mem::take(&mut self.reset) {
            // The reset has removed the count to which the other units could return.
            self.held.forget();
            return (deliveries, None);
        }
        (deliveries, self.unspent(excess).some())
    }

    /// Records that the store has rejected a lease of `units` units. The rejection is also the reply to each waiter of
    /// that cost which the request included. For the lifetime of a lease, the count is not leased.
    fn rejected(&mut self, units: u64, now: u64, rejection: &Reply) -> Vec<Delivery<C>> {
        self.reset = false;
        self.paused = now + self.target.lifetime();
        let included = mem::take(&mut self.included);
        let delivery = |(index, waiter): (usize, LeaseWaiter<C>)| {
            let is_reply = index < included && waiter.cost == units;
            waiter.reply(is_reply.then(|| Ok(rejection.clone())))
        };
        self.waiters.drain(..).enumerate().map(delivery).collect()
    }

    /// Records that the task has ended before its work. Returns the waiters, which the caller drops.
    pub(super) fn abandon(&mut self) -> VecDeque<LeaseWaiter<C>> {
        self.is_fetching = false;
        mem::take(&mut self.waiters)
    }

    /// Takes back units that a waiter did not spend, if they are of the same charge as the units that the process holds
    /// now, and as many as it may hold. Returns how many.
    pub(super) fn put_back(&mut self, unspent: &UnspentUnits) -> u64 {
        let UnspentUnits { target: charged, units, at, .. } = unspent;
        if self.held.at != *at || *at == 0 || self.target.terms != charged.terms {
            return 0;
        }
        let kept = (*units).min(self.target.max_units.saturating_sub(self.held.units));
        self.held.units += kept;
        self.held.spent = self.held.spent.saturating_sub(*units);
        kept
    }

    /// Discards the units of a count that was reset.
    pub(super) fn discard(&mut self) {
        self.held.forget();
        (self.reset, self.paused) = (self.is_fetching, 0);
    }

    /// Takes all units that are held. The lease still knows the spent units.
    pub(super) fn take_unspent(&mut self) -> Option<UnspentUnits> {
        let unspent = self.unspent(self.held.units);
        (self.held.units, self.held.at) = (0, 0);
        unspent.some()
    }

    /// Returns this many units of the charge that the lease holds, to give them back.
    fn unspent(&self, units: u64) -> UnspentUnits {
        let HeldUnits { at, place, .. } = self.held;
        UnspentUnits { target: Arc::clone(&self.target), units, at, place }
    }

    /// Takes the units of a lease that has ended. Also returns the time of the next look, at which the process still
    /// knows the lease.
    pub(super) fn look(&mut self, now: u64) -> (Option<UnspentUnits>, Option<u64>) {
        if self.is_fetching {
            return (None, Some(now + self.target.lifetime()));
        }
        let expired = if self.held.until <= now { self.take_unspent() } else { None };
        (expired, self.next_end(now))
    }

    /// Returns the next time after `now` at which the units must go back, or at which the process forgets this lease:
    /// if a number of units was spent, one lifetime after its end.
    pub(super) fn next_end(&self, now: u64) -> Option<u64> {
        let until = self.held.until;
        let is_busy = self.held.spent >= LEAST_SPENT;
        let forgotten = if is_busy { until + self.target.lifetime() } else { until };
        [until, forgotten.max(self.paused)].into_iter().find(|end| *end > now)
    }

    /// Returns whether the units of an ended lease are taken, and the lease is not to be forgotten at `now`.
    pub(super) fn is_kept(&self, now: u64) -> bool {
        let has_ended = self.held.until <= now && self.held.units > 0;
        self.next_end(now).is_some() && !has_ended
    }

    /// Returns the outcome for a call that has spent units.
    fn outcome(&self, now: u64) -> Outcome {
        let HeldUnits { units, at: clock, requested, remaining, reset_us, .. } = self.held;
        Outcome {
            clock,
            verdict: Verdict::Admitted,
            remaining: remaining.saturating_add(units).min(self.target.capacity()),
            retry_us: 0,
            reset_us: reset_us.saturating_sub(now.saturating_sub(requested)),
        }
    }
}

impl<C> LeaseWaiter<C> {
    /// Returns a reply to the call that gives it no units.
    fn reply(self, reply: Option<Result<Reply, StoreError>>) -> Delivery<C> {
        Delivery { to: self.caller, reply, units: None }
    }
}

/// The units of a charge that are not spent yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct HeldUnits {
    pub(super) units: u64,
    /// The number of units of the charge that were spent.
    pub(super) spent: u64,
    /// The time of the charge, by the clock of the store.
    pub(super) at: u64,
    /// The time that the count has recorded for the charge.
    pub(super) place: u64,
    /// The time of the request, by the clock of this process.
    pub(super) requested: u64,
    /// The time until which the units may be spent, by the clock of this process.
    pub(super) until: u64,
    /// From the reply of the store, as is `reset_us`.
    pub(super) remaining: u64,
    pub(super) reset_us: u64,
}

impl HeldUnits {
    /// Forgets the units of a charge, and keeps its end.
    pub(super) fn forget(&mut self) {
        *self = Self { until: self.until, ..Self::default() };
    }

    fn spend(&mut self, units: u64) {
        self.units -= units;
        self.spent += units;
    }

    pub(super) fn spendable(&self, now: u64) -> u64 {
        if (self.requested..self.until).contains(&now) { self.units } else { 0 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Share {
    /// The time of the last reply, by the clock of the store, and the units that were left.
    last: Option<(u64, u64)>,
    /// The most units to request in advance.
    pub(super) most: u64,
}

impl Share {
    /// Follows the reply to a request for `units` units, which the store has charged.
    fn update(&mut self, terms: &Terms, units: u64, outcome: &Outcome) {
        let (own, rest) = (units, outcome.remaining);
        let last = self.last.replace((outcome.clock, outcome.remaining));
        let others = last.map_or(0, |(at, left)| {
            let returned = returned(terms, left, outcome.clock.saturating_sub(at));
            (left + returned).saturating_sub(own + rest)
        });
        self.most =
            (u128::from(rest) * u128::from(own) / u128::from((own + others).max(1)) / 2) as u64;
    }
}

/// Returns how many units return to a count within some microseconds, as if they had been charged evenly.
fn returned(terms: &Terms, left: u64, elapsed: u64) -> u64 {
    let used = terms.capacity.saturating_sub(left);
    let a_period = match terms.identity.algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => terms.threshold,
        Algorithm::Sliding | Algorithm::SlidingCounter => used,
        Algorithm::Fixed | Algorithm::InFlight => 0,
    };
    let returned = u128::from(a_period) * u128::from(elapsed) / u128::from(terms.period_us());
    returned.min(used.into()) as u64
}

/// The count of a lease, and the settings of its limit.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseTarget {
    /// The charge of the call that created this target, under the terms of the lease. Other calls do not use its
    /// cost.
    pub(super) charge: Arc<Charge>,
    /// The terms of the limit. Calls with the same key id and other amounts do not spend its units.
    pub(super) terms: Terms,
    pub(super) policy: Policy,
    /// The most units that the process may hold.
    pub(super) max_units: u64,
}

impl LeaseTarget {
    /// `charge` is under the terms of the lease.
    pub(crate) fn new(limit: &Limit, charge: Arc<Charge>) -> Arc<Self> {
        let (terms, policy, max_units) = (*limit.terms(), limit.policy(), limit.lease_units());
        Arc::new(Self { charge, terms, policy, max_units })
    }

    /// Returns the time after their charge in which units may be spent, in microseconds.
    pub(super) fn lifetime(&self) -> u64 {
        self.terms.lease_us()
    }

    pub(super) fn capacity(&self) -> u64 {
        self.charge.terms.capacity
    }
}

/// Units to give back.
pub(super) struct UnspentUnits {
    pub(super) target: Arc<LeaseTarget>,
    pub(super) units: u64,
    /// The time of the charge, by the clock of the store.
    pub(super) at: u64,
    /// The time that the count has recorded for the charge.
    pub(super) place: u64,
}

/// A lease to request from the store.
pub(super) struct LeaseRequest {
    pub(super) target: Arc<LeaseTarget>,
    pub(super) units: u64,
    /// The units that were held before.
    pub(super) unspent: Option<UnspentUnits>,
}

impl UnspentUnits {
    /// Returns `None` for 0 units.
    pub(super) fn some(self) -> Option<Self> {
        (self.units > 0).then_some(self)
    }
}

/// A reply to a waiter, which is sent once the ledger is unlocked.
pub(super) struct Delivery<C> {
    pub(super) to: C,
    /// `None` if the count is not leased: the call sends its own request.
    pub(super) reply: Option<Result<Reply, StoreError>>,
    /// What the call spends.
    pub(super) units: Option<UnspentUnits>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns the most units to request after replies: each with its second, the units that were charged, and the
    /// units that were left.
    fn most(limit: &Limit, replies: &[(u64, u64, u64)]) -> u64 {
        let mut share = Share::default();
        for &(second, units, remaining) in replies {
            let outcome = Outcome {
                clock: second * 1_000_000,
                verdict: Verdict::Admitted,
                remaining,
                retry_us: 0,
                reset_us: 0,
            };
            share.update(limit.terms(), units, &outcome);
        }
        share.most
    }

    #[test]
    fn a_process_requests_half_of_its_share_of_what_is_left() {
        let minute = Duration::from_secs(60);
        let fixed = Limit::fixed("share", 1_000, minute);
        assert_eq!(most(&fixed, &[]), 0);
        assert_eq!(most(&fixed, &[(0, 1, 999)]), 499);
        assert_eq!(most(&fixed, &[(0, 1, 999), (1, 2, 997)]), 498, "no other process charges");
        assert_eq!(most(&fixed, &[(0, 1, 999), (1, 10, 899)]), 44, "a tenth is its own");
        assert_eq!(most(&fixed, &[(0, 1, 999), (1, 10, 0)]), 0);
        assert_eq!(most(&fixed, &[(0, 1, 100), (61, 10, 990)]), 495, "another window");
        assert_eq!(most(&fixed, &[(9, 1, 999), (0, 10, 899)]), 44, "a clock that steps back");
    }

    #[test]
    fn units_that_return_were_charged_by_others() {
        let minute = Duration::from_secs(60);
        let bucket = Limit::token_bucket("share", 600, minute).burst(1_000);
        // 10 tokens refill each second, and other processes take 5 of them.
        assert_eq!(most(&bucket, &[(0, 5, 500), (1, 5, 500)]), 125);
        // No more refill than fit.
        assert_eq!(most(&bucket, &[(0, 5, 990), (60, 5, 995)]), 497);
        // A tenth of the 600 used units leaves the window in a tenth of the period.
        for window in
            [Limit::sliding("share", 1_000, minute), Limit::sliding_counter("share", 1_000, minute)]
        {
            assert_eq!(most(&window, &[(0, 6, 400), (6, 6, 400)]), 20);
        }
    }
}
