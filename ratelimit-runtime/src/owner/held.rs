//! The units of one count of calls in flight that this process holds, as a plain value: no clock, no lock, no I/O.
//! `models/` checks it.
//!
//! A process states all its units with each request to the store (`lua/slots.lua`), under a number that only grows, and
//! has one statement pending at a time. So a reply is always about the last statement. If it does not come, the process
//! is unsure of what the store has, and states its units again. Its units are lost by its own clock, before the store
//! can give them to others.
//!
//! [`HeldSlot`] is such units from the request that takes them to the end of their call.

#[cfg(model)]
#[path = "../../../models/src/slots/mod.rs"]
pub mod model;

use std::future::pending;
use std::mem;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Core, LOOK_AGAIN, Owner, ended};
use crate::algorithm::Receipt;
use crate::background::{is_in_runtime, seen_process};
use crate::clock::before;
use crate::key::KeyId;
use crate::one_or_many::OneOrMany;
use crate::reply::StoreError;
use crate::store::{Calls, Charge, Reply, Stated, Statement};

/// The clocks of two machines run at rates that differ by less than one part in this number.
const DRIFT: u64 = 100;

/// The number of statements within a hold.
const STATEMENTS: u64 = 3;

/// A reply to calls that take units in flight, on its way to a caller. If it does not arrive, its units are released.
pub(super) struct HeldReply {
    pub(super) core: Arc<Core>,
    pub(super) reply: Reply,
    pub(super) calls: Calls,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct SlotUnits {
    /// The units that are lost unless the store replies.
    ordinary: u64,
    /// Units that fallbacks have taken and the store has not confirmed: up to the last statement, and since then.
    local: [u64; 2],
    /// For how long the store keeps units.
    hold_us: u64,
    /// The number of the last statement, of the last one that the store has confirmed, and the time at which that was
    /// sent.
    seq: u64,
    confirmed: u64,
    confirmed_at: u64,
    pending: Option<PendingStatement>,
    /// The units that the store has.
    known: u64,
    /// Whether the reply to the last statement is lost.
    is_unsure: bool,
    epoch: u64,
    /// Units whose stamp is smaller are lost.
    lost_below: u64,
    /// The same of units that fallbacks have taken.
    local_lost_below: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PendingStatement {
    seq: u64,
    units: u64,
    sent_at: u64,
}

/// Units of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TakenUnits {
    pub(crate) units: u64,
    /// The number of the last statement before they were held: the next one states them.
    pub(super) stamp: u64,
    pub(super) is_local: bool,
}

/// What a reply changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Replied {
    pub(super) lost: u64,
    /// The stamp of the units that the request has taken; `None` if the reply came too late to use them.
    pub(super) stamp: Option<u64>,
}

impl SlotUnits {
    /// Returns the state of a process without units. `seq` is greater than the number of each statement so far.
    pub(super) fn new(seq: u64) -> Self {
        Self { seq, lost_below: seq, local_lost_below: seq, ..Self::default() }
    }

    /// Sets for how long the store keeps units, if that is shorter than before.
    pub(super) fn set_hold(&mut self, hold_us: u64) {
        self.hold_us = if self.hold_us == 0 { hold_us } else { hold_us.min(self.hold_us) };
    }

    /// Returns the time at which the units are lost unless the store replies; `None` if none can be.
    pub(super) fn alive_until(&self) -> Option<u64> {
        (self.ordinary > 0).then(|| self.end_of_hold(self.confirmed_at))
    }

    /// Loses the units whose time has come, and returns how many. The caller does so before anything else.
    pub(super) fn expire(&mut self, now: u64) -> u64 {
        if self.alive_until().is_none_or(|until| now < until) {
            return 0;
        }
        // What the pending request takes is not lost.
        let below = self.pending.map_or(self.seq + 1, |pending| pending.seq);
        self.lost_below = self.lost_below.max(below);
        self.local_lost_below = self.local_lost_below.max(self.confirmed);
        mem::take(&mut self.ordinary)
    }

    /// Begins the statement with the number `seq` at `now`.
    pub(super) fn state(&mut self, seq: u64, now: u64) -> Statement {
        self.seq = seq;
        self.local = [self.local[0] + self.local[1], 0];
        self.pending = Some(PendingStatement { seq, units: self.units(), sent_at: now });
        self.peeked()
    }

    /// Returns what a statement would state now.
    pub(super) fn peeked(&self) -> Statement {
        let (units, epoch, hold_us) = (self.units(), self.epoch, self.hold_us);
        Statement { units, epoch, hold_us, ..Statement::default() }
    }

    /// Ends the pending statement with its reply, which is received at `now`.
    pub(super) fn replied(&mut self, stated: Stated, now: u64) -> Replied {
        let mut lost = self.expire(now);
        let Some(PendingStatement { seq, units, sent_at }) = self.pending.take() else {
            return Replied { lost, stamp: None };
        };
        if seq != self.seq {
            // The count was reset since then, and the store may have executed the request before or after that.
            self.is_unsure = true;
            return Replied { lost, stamp: None };
        }
        if stated.is_lost {
            // Units that fallbacks have taken since the statement stay.
            lost += self.ordinary + self.local[0];
            (self.ordinary, self.local[0]) = (0, 0);
            self.lost_below = self.lost_below.max(seq);
            self.local_lost_below = self.local_lost_below.max(seq);
        }
        (self.epoch, self.is_unsure) = (stated.epoch, false);
        self.known = if stated.is_lost { 0 } else { units } + stated.granted;
        if now >= self.end_of_hold(sent_at) {
            return Replied { lost, stamp: None };
        }
        (self.confirmed, self.confirmed_at) = (seq, sent_at);
        self.ordinary += mem::take(&mut self.local[0]) + stated.granted;
        Replied { lost, stamp: Some(seq) }
    }

    /// Ends the pending statement without a reply: the store may have executed it, or may do so later.
    pub(super) fn unanswered(&mut self) {
        self.is_unsure |= self.pending.take().is_some();
    }

    /// Ends the pending statement, which the store has certainly not executed.
    pub(super) fn not_sent(&mut self) {
        self.pending = None;
    }

    /// Takes units without the store, which learns of them when it replies again.
    pub(super) fn take_locally(&mut self, units: u64) -> TakenUnits {
        self.local[1] += units;
        TakenUnits { units, stamp: self.seq, is_local: true }
    }

    /// Returns whether units are held that were not lost.
    pub(super) fn has(&self, taken: TakenUnits) -> bool {
        taken.stamp >= if taken.is_local { self.local_lost_below } else { self.lost_below }
    }

    /// Returns the time at which units are lost unless the store replies: 0 if they were lost, `None` if they cannot
    /// be.
    pub(super) fn lost_at(&self, taken: TakenUnits) -> Option<u64> {
        if self.has(taken) {
            self.alive_until().filter(|_| self.is_ordinary(taken))
        } else {
            Some(0)
        }
    }

    /// Releases units. Returns whether they were held.
    pub(super) fn release(&mut self, taken: TakenUnits) -> bool {
        if !self.has(taken) {
            return false;
        }
        let held = match taken {
            _ if self.is_ordinary(taken) => &mut self.ordinary,
            _ => &mut self.local[usize::from(taken.stamp == self.seq)],
        };
        *held = held.saturating_sub(taken.units);
        true
    }

    /// Loses all units, because the count was reset at the time `epoch` of the store. `seq` is greater than the number
    /// of each statement.
    pub(super) fn reset(&mut self, seq: u64, epoch: u64) {
        (self.ordinary, self.local, self.seq) = (0, [0, 0], seq);
        self.epoch = epoch.max(self.epoch);
        (self.lost_below, self.local_lost_below) = (seq, seq);
        // The store may have units that a pending request takes.
        self.is_unsure = true;
    }

    /// Returns whether the store needs a statement: the units have changed since its last reply, or a reply is missing.
    pub(super) fn is_dirty(&self) -> bool {
        self.units() != self.known || self.is_unsure
    }

    /// Returns whether a request is pending.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns whether there is nothing to state, now or later.
    pub(super) fn is_idle(&self) -> bool {
        self.units() == 0 && !self.is_dirty() && !self.is_pending()
    }

    /// Returns the time of the next statement that nothing else causes; `None` if no units are held.
    pub(super) fn next_statement(&self) -> Option<u64> {
        (self.units() > 0).then(|| self.confirmed_at.saturating_add(self.hold_us / STATEMENTS))
    }

    /// Returns the time until which an idle count is kept. The store keeps the epoch as long: a process that has
    /// forgotten it would lose what its fallback takes.
    pub(super) fn kept_until(&self) -> u64 {
        if self.epoch > 0 { self.confirmed_at.saturating_add(self.hold_us) } else { 0 }
    }

    pub(super) fn units(&self) -> u64 {
        self.ordinary + self.local[0] + self.local[1]
    }

    fn is_ordinary(&self, taken: TakenUnits) -> bool {
        !taken.is_local || taken.stamp < self.confirmed
    }

    fn end_of_hold(&self, sent_at: u64) -> u64 {
        sent_at.saturating_add(self.hold_us - self.hold_us / DRIFT)
    }
}

/// Units of a call that runs. They are released when this is dropped.
pub(crate) struct HeldSlot {
    core: Arc<Core>,
    key_id: KeyId,
    taken: TakenUnits,
    os_process: u32,
}

impl Owner {
    /// Decides calls that take units in flight. The units of the reply are held: see [`granted`](Self::granted).
    pub(crate) async fn take(self: &Arc<Self>, calls: Calls) -> Result<Reply, StoreError> {
        let (reply_to, reply) = oneshot::channel();
        self.core.lock().slots.want(calls, reply_to, self.core.real());
        self.wake();
        reply.await.unwrap_or_else(|_| Err(ended())).map(|mut held| {
            let received = Reply::new(OneOrMany::new(), held.reply.source);
            mem::replace(&mut held.reply, received)
        })
    }

    /// Returns calls that take nothing, with what this process holds of their counts.
    pub(crate) fn peek(&self, calls: &Calls) -> Calls {
        let queue = self.core.lock();
        let peeked = calls.charges.iter().map(|charge| queue.slots.peeked(charge));
        Calls { charges: peeked.collect(), ..calls.clone() }
    }

    /// Returns the units of a call that a reply has admitted.
    pub(crate) fn granted(&self, charge: &Charge, units: u64, receipt: Receipt) -> HeldSlot {
        let taken = TakenUnits { units, stamp: receipt.place, is_local: false };
        self.core.slot(charge.key_id, taken)
    }

    /// Takes units without the store, which learns of them when it replies again.
    pub(crate) fn take_locally(self: &Arc<Self>, charge: &Arc<Charge>, units: u64) -> HeldSlot {
        let taken = self.core.lock().slots.take_locally(charge, units, self.core.real());
        self.wake();
        self.core.slot(charge.key_id, taken)
    }

    /// Returns the units in flight that this process holds, and whether the store knows all of it.
    pub(crate) fn in_flight(&self) -> (u64, bool) {
        self.core.lock().slots.in_flight()
    }

    /// Completes once the store knows which units in flight were released.
    pub(crate) async fn stated(&self) {
        self.core.until(|slots| slots.in_flight().1.then_some(())).await;
    }
}

impl Core {
    fn slot(self: &Arc<Self>, key_id: KeyId, taken: TakenUnits) -> HeldSlot {
        HeldSlot { core: Arc::clone(self), key_id, taken, os_process: seen_process() }
    }
}

impl HeldSlot {
    /// Returns whether the units were lost.
    pub(crate) fn is_lost(&self) -> bool {
        let now = self.core.clock.boottime();
        self.lost_at().is_some_and(|at| now >= at)
    }

    fn lost_at(&self) -> Option<u64> {
        self.core.lock().slots.lost_at(self.key_id, self.taken)
    }

    /// Takes some of the units out of these.
    pub(crate) fn split(&mut self, units: u64) -> Self {
        let units = units.min(self.taken.units);
        self.taken.units -= units;
        self.core.slot(self.key_id, TakenUnits { units, ..self.taken })
    }

    /// Completes once the units are lost.
    pub(crate) async fn lost(&self) {
        let clock = &self.core.clock;
        loop {
            let lost = self.core.until(|slots| {
                let at = slots.lost_at(self.key_id, self.taken);
                at.filter(|at| clock.boottime() >= *at)
            });
            let rest = self.lost_at().unwrap_or(u64::MAX).saturating_sub(clock.boottime());
            let at = clock.steady() + rest.min(LOOK_AGAIN);
            let look = async {
                // No timer tells that the machine was suspended, and there is none without a runtime. The task of the
                // owner notifies as well.
                if clock.is_virtual() || is_in_runtime() {
                    clock.sleep_until_steady(at).await;
                } else {
                    pending::<()>().await;
                }
            };
            if before(look, lost).await.is_some() {
                return;
            }
        }
    }

    /// Releases the units. The future completes once the store knows of it, and fails if the store does not reply.
    pub(crate) fn release(
        mut self,
    ) -> impl Future<Output = Result<(), StoreError>> + Send + 'static {
        let (core, key_id) = (Arc::clone(&self.core), self.key_id);
        self.free(true);
        async move { core.until(|slots| slots.is_stated(key_id)).await }
    }

    fn free(&mut self, hurries: bool) {
        let taken = TakenUnits { units: mem::take(&mut self.taken.units), ..self.taken };
        // A process that was forked does not release what its parent holds.
        if taken.units == 0 || self.os_process != seen_process() {
            return;
        }
        let real = self.core.real();
        self.core.change(|queue| queue.slots.release(self.key_id, taken, hurries, real));
        self.core.notices.released(self.key_id);
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        self.free(false);
    }
}

impl Drop for HeldReply {
    fn drop(&mut self) {
        let Self { core, reply, calls } = self;
        for (charge, receipt, units) in charged(calls, reply) {
            if charge.statement.is_some() {
                let taken = TakenUnits { units, stamp: receipt.place, is_local: false };
                drop(core.slot(charge.key_id, taken));
            }
        }
    }
}

/// Returns each charge of the calls that a reply has admitted, with its receipt and its cost.
pub(super) fn charged<'a>(
    calls: &'a Calls,
    reply: &'a Reply,
) -> impl Iterator<Item = (&'a Arc<Charge>, Receipt, u64)> {
    let by_call = reply.receipts.chunks(calls.charges.len()).enumerate();
    by_call.flat_map(|(call, receipts)| {
        let costs = calls.costs_of(call).into_iter().flatten();
        let charges = calls.charges.iter().zip(receipts).zip(costs);
        charges.map(|((charge, receipt), cost)| (charge, *receipt, *cost))
    })
}
