//! The calls of a trace: they are decided at once or wait, and are dropped or not polled for a while.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use ratelimit_runtime::{Decision, Limit, Permit, Rejection, Source};
use support::judge::{Breach, CallId, GrantedCall, JudgedCall, Moment};
use support::lines::wait_until_idle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::exceptions::Excepted;
use crate::operation::Cost;
use crate::player::{A_SECOND, PATIENCE, Player, show};

#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The operations that were played, and the calls that were admitted.
    pub(crate) operations: usize,
    pub(crate) admitted: usize,
    pub(crate) breaches: Vec<Breach>,
    /// Other promises that were broken.
    pub(crate) faults: Vec<String>,
    /// What was played, for a trace that fails.
    pub(crate) story: Vec<String>,
}

impl Verdict {
    pub(crate) fn is_kept(&self) -> bool {
        self.breaches.is_empty() && self.faults.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}\n{}", self.breaches, self.faults, self.story.join("\n"))
    }
}

/// A call that is not recorded yet.
pub(crate) struct Call {
    pub(crate) process: usize,
    pub(crate) cost: u64,
    /// The limit, with the amounts since the call waits.
    pub(crate) limits: Vec<Limit>,
    pub(crate) decided: u64,
    pub(crate) excepted: Excepted,
    /// Whether a rule exempts the call, or makes its limit a shadow.
    pub(crate) is_free: bool,
}

pub(crate) struct Waiting {
    pub(crate) call: Call,
    paused: Option<Moment>,
    gate: Gate,
    pub(crate) task: JoinHandle<(u64, Result<Admitted, Rejection>)>,
    /// Whether the reply to a request of its line may be lost.
    pub(crate) may_fail: bool,
}

/// An admitted call, and its permit if its charge can be settled.
pub(crate) type Admitted = (Decision, Option<Permit>);

pub(crate) struct Open {
    pub(crate) process: usize,
    pub(crate) permit: Permit,
    pub(crate) cost: u64,
    pub(crate) call: CallId,
    /// Whether the judge does not count the call.
    pub(crate) is_excepted: bool,
}

/// Decides whether a call is polled: whether it is shut, and the task to wake once it opens.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<Mutex<(bool, Option<Waker>)>>);

impl Gate {
    fn state(&self) -> MutexGuard<'_, (bool, Option<Waker>)> {
        self.0.lock().expect("no panic")
    }

    pub(crate) fn shut(&self) {
        self.state().0 = true;
    }

    pub(crate) fn open(&self) {
        let mut state = self.state();
        state.0 = false;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }

    pub(crate) fn guard<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let (gate, mut future) = (self.clone(), Box::pin(future));
        poll_fn(move |context| {
            let mut state = gate.state();
            if state.0 {
                state.1 = Some(context.waker().clone());
                return Poll::Pending;
            }
            drop(state);
            future.as_mut().poll(context)
        })
    }
}

impl Player<'_> {
    pub(crate) fn call(
        &self,
        process: usize,
        limit: Limit,
        cost: u64,
        acquires: bool,
    ) -> impl Future<Output = Result<Admitted, Rejection>> + Send + use<> {
        let (limiter, key) = (self.limiter(process), self.key.clone());
        async move {
            if acquires {
                let permit = limiter.acquire(&limit, key, cost).await?;
                return Ok((permit.decision(), Some(permit)));
            }
            Ok((limiter.check(&limit, key, cost).await?, None))
        }
    }

    pub(crate) async fn call_at_once(
        &mut self,
        process: usize,
        limit: &Limit,
        cost: Cost,
        acquires: bool,
    ) {
        let cost = cost.of(limit);
        let result = self.call(process, *limit, cost, acquires).await;
        if let Err(Rejection::Limited { decision, .. }) = &result
            && !acquires
            && self.waiting.is_empty()
            // A cached rejection does not know of a surplus that was charged since.
            && decision.source != Source::Cache
        {
            self.retry = Some((process, cost, decision.retry_after.as_micros() as u64));
        }
        self.decided(process, limit, cost, result);
    }

    /// Records a call that did not wait.
    pub(crate) fn decided(
        &mut self,
        process: usize,
        limit: &Limit,
        cost: u64,
        result: Result<Admitted, Rejection>,
    ) {
        let (limits, decided, excepted) = (vec![*limit], self.now(), Excepted::No);
        let is_free = self.is_free[process];
        let call = Call { process, cost, limits, decided, excepted, is_free };
        self.ended(call, self.moment(), decided, result);
    }

    /// Records a call that has started at the time `at`, and may have been granted since `granted`.
    fn ended(&mut self, call: Call, granted: Moment, at: u64, result: Result<Admitted, Rejection>) {
        let Call { process, cost, limits, decided, mut excepted, is_free } = call;
        let (limit, starts) = (limits.last().expect("a limit"), (granted.0, at));
        if is_free || self.is_free[process] {
            // A shadow charges what the limit admits. The decision about an exempt call has no limit.
            if matches!(&result, Ok((decision, _)) if decision.limit < u64::MAX) {
                self.in_force(at, limit);
            }
            self.missing.units += cost;
            self.judge.unseen(starts);
            return;
        }
        let (decision, permit) = match result {
            Ok(admitted) => admitted,
            Err(Rejection::Limited { .. } | Rejection::Blocked { .. }) => {
                self.in_force(at, limit);
                if starts.0 < at {
                    // It was not polled, and did not take what it may have been granted.
                    self.judge.unseen(starts);
                    self.missing.units += cost;
                }
                return self.tell(format_args!("p{process}: {cost} of {} rejected", show(limit)));
            }
            Err(Rejection::CostExceedsCapacity { .. }) => return,
            Err(other) => return self.verdict.faults.push(format!("{other:?}")),
        };
        self.in_force(decided, limit);
        let is_leased = decision.source == Source::Lease;
        if is_leased && at < self.leases_excepted_until {
            excepted = Excepted::Call;
        }
        if is_leased && at < self.debt_is_new_until {
            excepted = excepted.max(Excepted::Start);
        }
        let amounts = limits.iter().map(|limit| (limit.threshold(), limit.capacity()));
        // Since leased units were charged, other calls may have filled the count under a larger limit.
        let beside = self.recent.iter().filter(|_| is_leased);
        let amounts = amounts.chain(beside.map(|(_, threshold, capacity)| (*threshold, *capacity)));
        let (threshold, capacity) =
            amounts.reduce(|one, other| (one.0.max(other.0), one.1.max(other.1))).unwrap_or((0, 0));
        let call =
            self.judge.admitted(JudgedCall { starts, decided, charged: cost, threshold, capacity });
        let is_ahead = is_leased || self.setup.is_bucket() && decided < at;
        if self.blocks.objects_to(GrantedCall { process, granted, starts: at, is_ahead }) {
            self.verdict.faults.push(format!("{at}: p{process} admits a call of a blocked key"));
        }
        match excepted {
            Excepted::No => {}
            Excepted::Start => self.judge.except_start(call),
            Excepted::Call => {
                self.judge.except_call(call);
                self.missing.units += cost;
            }
        }
        let is_excepted = excepted == Excepted::Call;
        if self.setup.is_bucket() && !is_excepted && is_ahead {
            self.ahead.push((limit.threshold(), cost, at));
        }
        self.verdict.admitted += 1;
        let Decision { source, remaining, .. } = decision;
        let admitted = format!("admitted by {source:?}, {remaining} remain");
        self.tell(format_args!("p{process}: {cost} of {} {admitted}", show(limit)));
        let open = |permit| Open { process, permit, cost, call, is_excepted };
        self.permits.extend(permit.map(open));
    }

    pub(crate) async fn wait(&mut self, process: usize, cost: u64, ticks: u64, acquires: bool) {
        let (limit, wait) = (self.limit(process), ticks * self.setup.tick);
        let (gate, clock) = (Gate::default(), self.fleet.clock.clone());
        let waits = limit.wait(Duration::from_micros(wait));
        let call = self.call(process, waits, cost, acquires);
        let task = tokio::spawn(gate.guard(async move {
            let result = call.await;
            (clock.now().as_micros() as u64, result)
        }));
        // It starts after the calls before it, or takes the moment of one that is dropped.
        let before = self.waiting.iter().map(|waiting| &waiting.call);
        let before = before.filter(|call| call.process == process).map(|call| call.excepted);
        let excepted = before.max().unwrap_or(Excepted::No);
        let (decided, is_free) = (self.now(), self.is_free[process]);
        self.in_force(decided, &limit);
        self.has_waited = true;
        let call = Call { process, cost, limits: vec![limit], decided, excepted, is_free };
        self.waiting.push(Waiting { call, paused: None, gate, task, may_fail: false });
        self.collect().await;
    }

    pub(crate) async fn drop_waiting(&mut self, which: usize) {
        if self.waiting.is_empty() {
            return;
        }
        let waiting = self.waiting.swap_remove(which % self.waiting.len());
        waiting.task.abort();
        self.except_dropped(&waiting.call);
        let _ = waiting.task.await;
        self.collect().await;
    }

    /// Does not poll a call, or polls it again.
    pub(crate) async fn pause(&mut self, which: usize) {
        let (length, now) = (self.waiting.len(), self.moment());
        let Some(waiting) = self.waiting.get_mut(which % length.max(1)) else { return };
        if !waiting.gate.state().0 {
            waiting.gate.shut();
            waiting.paused.get_or_insert(now);
            self.granted_from[waiting.call.process].get_or_insert(now);
            return;
        }
        waiting.gate.open();
        // With it, calls behind it can start.
        self.collect().await;
    }

    pub(crate) async fn collect(&mut self) {
        if !self.has_waited {
            return;
        }
        self.rest().await;
        self.has_waited = !self.waiting.is_empty();
        while let Some(index) = self.waiting.iter().position(|waiting| waiting.task.is_finished()) {
            let Waiting { call, paused, task, may_fail, .. } = self.waiting.remove(index);
            let (at, result) = task.await.expect("no panic");
            if may_fail && matches!(result, Err(Rejection::Unavailable { .. })) {
                continue;
            }
            // A call behind one that is not polled can receive the grant of that call.
            let granted_from = paused.into_iter().chain(self.granted_from[call.process]).min();
            self.ended(call, granted_from.unwrap_or((at, self.verdict.operations)), at, result);
        }
        self.forget_pauses();
    }

    /// Forgets the pauses that have ended. A call that still waits after a poll has no grant: it would have taken it,
    /// unless the clock has stepped back to before the grant.
    fn forget_pauses(&mut self) {
        for index in 0..self.waiting.len() {
            let is_behind = self.is_behind(self.waiting[index].call.process);
            let waiting = &mut self.waiting[index];
            waiting.paused = waiting.paused.filter(|_| waiting.gate.state().0 || is_behind);
        }
        for (number, granted_from) in self.granted_from.iter_mut().enumerate() {
            let mut of_process = self.waiting.iter().filter(|it| it.call.process == number);
            if of_process.all(|waiting| waiting.paused.is_none()) {
                *granted_from = None;
            }
        }
    }

    /// Runs the calls of all processes until they wait for the clock.
    pub(crate) async fn rest(&mut self) {
        for number in 0..self.alive.len() {
            let limiter = self.limiter(number);
            if timeout(PATIENCE, wait_until_idle(&limiter)).await.is_err() {
                self.verdict.faults.push(format!("p{number} does not come to rest"));
            }
        }
    }

    pub(crate) fn take_permit(&mut self, which: usize) -> Option<Open> {
        let length = self.permits.len();
        (length > 0).then(|| self.permits.swap_remove(which % length))
    }

    pub(crate) async fn settle(&mut self, which: usize, used: u64) {
        let Some(open) = self.take_permit(which) else { return };
        let Open { process, permit, cost, call, is_excepted } = open;
        permit.settle(used);
        self.limiter(process).flush().await.expect("settled");
        self.judge.settled(call, self.now(), used);
        if used > cost {
            self.missing.debts += used - cost;
            self.missing.units += if is_excepted { used - cost } else { 0 };
            self.except(None, Excepted::Start);
            self.except_paused(Excepted::Start);
            self.debt_is_new_until = self.now() + A_SECOND;
        }
        self.collect().await;
    }
}
