//! Calls: how they begin, wait, are decided and end.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use ratelimit_runtime::{Part, Permit, Rejection, Source};
use support::judge::{GrantedCall, Moment};

use super::{Begun, RATE, Running, SlotPlayer, WaitingCall};
use crate::calls::Gate;
use crate::exceptions::Excepted;
use crate::slots::operation::{End, RuleOf};

impl SlotPlayer<'_> {
    pub(super) fn acquire(
        &self,
        call: Begun,
        wait: Duration,
    ) -> impl Future<Output = Result<Vec<Permit>, Rejection>> + Send + use<> {
        let limiter = self.limiter(call.process);
        let (limit, key) = (self.limit(), self.key.clone());
        let key_of_rate = self.key_of_rate.clone();
        let (limit, rate) =
            if wait.is_zero() { (limit, RATE) } else { (limit.wait(wait), RATE.wait(wait)) };
        let Begun { cost, is_rated, .. } = call;
        async move {
            let rate = is_rated.then(|| Part::new(&rate, &key_of_rate, cost));
            let parts: Vec<_> = rate.into_iter().chain([Part::new(&limit, &key, cost)]).collect();
            limiter.acquire_all(&parts).await
        }
    }

    pub(super) fn wait(&mut self, call: Begun, wait: Duration) {
        let gate = Gate::default();
        let task = tokio::spawn(gate.guard(self.acquire(call, wait)));
        self.waiting.push(WaitingCall { call, gate, paused: None, task });
        self.except_paused(Excepted::Start);
    }

    /// Does not poll a call, or polls it again.
    pub(super) fn pause(&mut self, which: usize) {
        let (length, moment) = (self.waiting.len(), self.moment());
        let Some(waiting) = self.waiting.get_mut(which % length.max(1)) else { return };
        if waiting.paused.take().is_some() {
            return waiting.gate.open();
        }
        waiting.gate.shut();
        waiting.paused = Some(moment);
        self.granted_from[waiting.call.process].get_or_insert(moment);
    }

    /// Forgets since when no call of a process was polled, once all are: a call with a grant has taken it.
    pub(super) fn forget_pauses(&mut self) {
        for (process, granted_from) in self.granted_from.iter_mut().enumerate() {
            let mut of_process = self.waiting.iter().filter(|it| it.call.process == process);
            if of_process.all(|waiting| waiting.paused.is_none()) {
                *granted_from = None;
            }
        }
    }

    pub(super) async fn drop_early(&mut self, call: Begun, polls: u64, wait: Duration) {
        let mut future = Box::pin(self.acquire(call, wait));
        let mut left = polls;
        let result = poll_fn(|context| {
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            context.waker().wake_by_ref();
            future.as_mut().poll(context).map(Some)
        });
        let result = result.await;
        drop(future);
        self.rate.unseen((self.now(), self.now()));
        if let Some(result) = result {
            self.granted(call, self.moment(), result);
        }
    }

    /// Records the result of a call that may have been granted its units since `granted`.
    pub(super) fn granted(
        &mut self,
        call: Begun,
        granted: Moment,
        result: Result<Vec<Permit>, Rejection>,
    ) {
        let Begun { process, cost, is_rated, since, recorded, most, is_free, excepted, .. } = call;
        let now = self.now();
        let permits = match result {
            Ok(permits) => permits,
            Err(Rejection::Unavailable { .. }) if call.may_fail => {
                return self.rate.unseen((since, now));
            }
            Err(
                Rejection::Busy { .. }
                | Rejection::Limited { .. }
                | Rejection::Blocked { .. }
                | Rejection::CostExceedsCapacity { .. },
            ) => return self.tell(format_args!("p{process}: {cost} rejected")),
            Err(other) => return self.verdict.faults.push(format!("{other:?}")),
        };
        self.tell(format_args!("p{process}: {cost} of {most} admitted, free {is_free}"));
        self.verdict.admitted += 1;
        let granted = GrantedCall { process, granted, starts: now, is_ahead: false };
        let [of_slots, of_rate] = self.blocks.each_ref().map(|blocks| blocks.objects_to(granted));
        if !call.is_unlimited && of_slots || is_rated && of_rate {
            self.verdict.faults.push(format!("{now}: p{process} admits a call of a blocked key"));
        }
        let slot = permits.last().expect("a permit of each part");
        // A shadow admits a call whose reply is lost: without units.
        let is_decided = slot.decision().allowed && slot.decision().source != Source::Fallback;
        let holds = !is_free && is_decided && !slot.is_lost();
        // A call that was exempt while it was not polled may have units.
        let was_paused = granted.granted != self.moment();
        self.is_excused |= is_free && (was_paused || self.rules[process] != RuleOf::Exempt);
        let id = self.ids[process];
        let holder = holds.then(|| match excepted {
            Excepted::Call => self.judge.forgotten(id, now, cost),
            Excepted::Start => self.judge.registered(id, now, cost),
            Excepted::No => {
                let holder = self.judge.admitted(id, (since, now), cost, most);
                self.judge.began(holder, recorded);
                holder
            }
        });
        if holds && excepted != Excepted::Call {
            self.judge.stated(id, now);
        }
        let rate =
            (is_rated && cost > 0).then(|| self.rate.admitted_between(&RATE, (since, now), cost));
        match (rate, excepted) {
            (Some(rate), Excepted::Start) => self.rate.except_start(rate),
            (Some(rate), Excepted::Call) => self.rate.except_call(rate),
            _ => {}
        }
        self.running.push(Running { process, cost, holder, local: None, rate, permits });
    }

    pub(super) async fn end_call(&mut self, which: usize, end: End) {
        if self.running.is_empty() {
            return;
        }
        let call = self.running.swap_remove(which % self.running.len());
        let Running { process, cost, holder, local, rate, mut permits } = call;
        let (slot, now) = (permits.pop().expect("a permit of each part"), self.now());
        if let (End::Settle(used), Some(permit), Some(rate)) = (end, permits.pop(), rate) {
            permit.settle(used);
            self.rate.settled(rate, now, used);
            if used > cost {
                self.except_paused(Excepted::Start);
            }
            // Before the units are free for calls that wait.
            self.flush(process).await;
        }
        let is_released = cost > 0 && holder.is_some() && !slot.is_lost();
        match end {
            End::Drop | End::Settle(_) => drop(slot),
            End::Keep => slot.keep(),
            End::Release => {
                let failed = slot.release().await.err();
                let failed = failed.map(|error| format!("p{process} does not release: {error:?}"));
                self.verdict.faults.extend(failed);
            }
        }
        self.judge.ended(holder, now);
        self.local.ended(local, now);
        self.flush(process).await;
        // What is released is stated, with all that the process holds.
        if is_released {
            self.judge.stated(self.ids[process], now);
        }
    }
}
