//! Faults: lost replies, lost connections, processes that are killed, without Redis or stand still, and a server that
//! starts again.

use std::time::Duration;

use ratelimit_runtime::{Limit, OnError, Source};
use support::proxy::Network;
use support::wait::wait_until;
use tokio::time::timeout;

use super::{Begun, HOLD, MOST, Resets, RuleOf, Running, SlotPlayer, WaitingCall};
use crate::exceptions::Excepted;
use crate::fleet::Failing;

impl SlotPlayer<'_> {
    /// The first process loses a reply: to a call, or to the statement about the end of a call.
    pub(super) async fn lose_reply(&mut self, cost: u64, ends: Option<usize>) {
        let fleet = self.fleet;
        let Some(proxy) = fleet.network() else { return };
        self.may_fail(|process| process == 0);
        let at = ends.and_then(|_| self.running.iter().position(|call| call.process == 0));
        let losing = Failing::new(proxy, Network::RepliesCut);
        if let Some(at) = at {
            let Running { holder, local, permits, .. } = self.running.swap_remove(at);
            drop(permits);
            self.local.ended(local, self.fleet.now());
            // Until the statement is sent.
            let _ = timeout(Duration::from_millis(20), self.limiter(0).flush()).await;
            drop(losing);
            self.judge.ended(holder, self.fleet.now());
        } else {
            let call = Begun { may_fail: true, ..self.begin(0, cost, false) };
            let result = self.acquire(call, Duration::ZERO).await;
            drop(losing);
            self.granted(call, self.moment(), result);
        }
        self.connect().await;
    }

    pub(super) async fn command(&mut self, words: &str) {
        if self.fleet.command(words) {
            self.may_fail(|_| true);
            self.connect().await;
        }
    }

    pub(super) fn crash(&mut self, number: usize) {
        if self.fleet.is_embedded() {
            return;
        }
        let process = std::mem::replace(&mut self.alive[number], self.fleet.process(number));
        self.ids[number] = self.alive.len() * (self.crashed.len() + 1) + number;
        self.pass(Duration::ZERO);
        let dead = self.running.extract_if(.., |call| call.process == number).collect();
        let stopped: Vec<WaitingCall> =
            self.waiting.extract_if(.., |waiting| waiting.call.process == number).collect();
        self.rules[number] = RuleOf::Nothing;
        // Nothing of it is polled any more.
        for waiting in &stopped {
            waiting.gate.shut();
        }
        self.is_excused |= !stopped.is_empty();
        if number == 0 {
            // The fallback ends with its process.
            self.verdict.breaches.extend(std::mem::take(&mut self.local).breaches());
        }
        self.crashed.push((process, dead, stopped));
        self.rate.unseen((self.now(), self.now()));
    }

    /// Waits until each process reaches the server, by the connection of its callers and by the one of its background
    /// thread.
    pub(super) async fn connect(&mut self) {
        for process in 0..self.alive.len() {
            let limiter = self.limiter(process);
            let held = Limit::in_flight("connect", MOST).hold(HOLD);
            // The background thread states the end of a call.
            wait_until(async || {
                limiter.ping().await.is_ok()
                    && match limiter.acquire(&held, "connect", 1).await {
                        Ok(permit) => permit.release().await.is_ok(),
                        Err(_) => false,
                    }
            })
            .await;
            self.flush(process).await;
        }
    }
}

/// The steps of a time in which a process that stands still loses its units, and others state theirs in each step.
const STEPS: u64 = 4;

impl SlotPlayer<'_> {
    /// The first process reaches no server. Its fallback admits calls, and some end.
    pub(super) async fn outage(&mut self, calls: u64, cost: u64, ends: Option<usize>) {
        let fleet = self.fleet;
        let Some(proxy) = fleet.network() else { return };
        self.may_fail(|process| process == 0);
        let cut = Failing::new(proxy, Network::Cut);
        let (limiter, limit) = (self.limiter(0), self.limit().on_error(OnError::Local));
        let mut taken = Vec::new();
        for _ in 0..calls {
            let call = Begun { may_fail: true, ..self.begin(0, cost, false) };
            match limiter.acquire(&limit, &self.key, cost).await {
                Ok(permit) if permit.decision().source == Source::Fallback => {
                    let (holds, now) = (permit.decision().allowed && !call.is_free, self.now());
                    let local = || self.local.admitted(0, (now, now), cost, call.most);
                    taken.push((holds.then(local), permit));
                }
                result => self.granted(call, self.moment(), result.map(|permit| vec![permit])),
            }
        }
        let at = ends.and_then(|_| self.running.iter().position(|call| call.process == 0));
        let ended = at.map(|at| self.running.swap_remove(at));
        let (holder, local) = ended.map_or((None, None), |call| (call.holder, call.local));
        // A process states what it holds at once when a call has ended.
        let at = taken.iter().rposition(|(local, _)| local.is_some());
        let last = at.and_then(|at| taken.swap_remove(at).0);
        self.local.ended(local.into_iter().chain(last), self.fleet.now());
        self.tell(format_args!("p0: its fallback admits {} calls that run on", taken.len()));
        drop(cut);
        self.connect().await;
        let now = self.now();
        self.judge.ended(holder, now);
        for (local, permit) in taken {
            // The process may have learned of an earlier reset, which loses them.
            let is_counted = local.is_some() && !permit.is_lost();
            let holder = is_counted.then(|| self.judge.registered(self.ids[0], now, cost));
            let permits = vec![permit];
            self.running.push(Running { process: 0, cost, holder, local, rate: None, permits });
        }
        if last.is_some() {
            self.judge.stated(self.ids[0], now);
        }
    }

    pub(super) async fn restart(&mut self) {
        if self.fleet.restart() {
            self.may_fail(|_| true);
            self.forget();
            self.connect().await;
        }
    }

    pub(super) fn forget(&mut self) {
        // A server takes longer than a microsecond to start again. At one time, a reset before and a reset after that
        // would have the same epoch.
        self.pass(Duration::from_millis(1));
        let now = self.now();
        self.judge.lost_memory(now);
        self.rate.excepted(now, support::judge::Exception::Lost);
        self.blocks.iter_mut().for_each(|blocks| blocks.unblocked(now));
        self.except_paused(Excepted::Call);
        if self.resets == Resets::Known {
            self.resets = Resets::Forgotten;
        }
        // A reset is forgotten as well: a process that has not learned of it goes on to hold its units.
        for call in &mut self.running {
            if !call.is_lost() && call.holder.is_some_and(|holder| !self.judge.holds(holder)) {
                (call.holder, self.is_excused) = (None, true);
            }
        }
    }

    /// Ends the calls that a forgotten reset has reached: the server learns of it again from a process that knows it.
    pub(super) fn end_lost_again(&mut self) {
        let now = self.now();
        for call in self.running.iter().filter(|_| self.resets == Resets::Forgotten) {
            let holder = call.holder.filter(|it| call.is_lost() && self.judge.holds(*it));
            self.judge.ended(holder, now);
            self.is_excused |= holder.is_some();
        }
    }

    /// Lets more time pass than the hold. Each process states what it holds, except the `stopped` one. The store frees
    /// the units of the stopped process and of killed processes.
    pub(super) async fn outlive_hold(&mut self, stopped: Option<usize>) {
        if self.fleet.is_embedded() {
            return;
        }
        // Statements about keys on both nodes wait for the end of the move.
        self.finish_move();
        self.stopped = stopped;
        let is_stopped = |process: usize| Some(process) == stopped;
        // They continue after the end of their wait and of their deadline.
        self.may_fail(|_| true);
        for waiting in self.waiting.iter().filter(|waiting| is_stopped(waiting.call.process)) {
            waiting.gate.shut();
        }
        for _ in 0..STEPS {
            self.pass(HOLD / 3);
            for process in 0..self.alive.len() {
                if !is_stopped(process) {
                    self.state(process).await;
                }
            }
        }
        let now = self.now();
        let dead = self.crashed.iter().flat_map(|(_, dead, _)| dead);
        let expired = self.running.iter().filter(|call| is_stopped(call.process));
        self.judge.ended(dead.chain(expired).filter_map(|call| call.holder), now);
        if let Some(process) = self.stopped.take() {
            self.pass(Duration::ZERO);
            for waiting in self.waiting.iter().filter(|waiting| waiting.call.process == process) {
                if waiting.paused.is_none() {
                    waiting.gate.open();
                }
            }
            self.state(process).await;
            let now = self.now();
            for call in self.running.iter_mut().filter(|call| call.process == process) {
                // Units that a fallback has taken have no hold.
                if call.local.is_some() && !call.is_lost() {
                    call.holder = Some(self.judge.registered(self.ids[process], now, call.cost));
                }
            }
        }
        self.end_lost_again();
        for call in &self.running {
            let (process, is_lost) = (call.process, call.is_lost());
            let holder = call.holder.filter(|_| call.cost > 0);
            if let Some(holder) = holder.filter(|it| self.judge.holds(*it) == is_lost) {
                self.verdict.faults.push(format!("p{process}: lost {is_lost}, {holder:?}"));
            }
        }
    }

    /// Lets a process state what it holds now, if that is due: the end of any of its calls wakes the task that states.
    async fn state(&mut self, process: usize) {
        const ANY: Limit = Limit::in_flight("any", 1_000).hold(HOLD);
        match self.limiter(process).acquire(&ANY, &self.key, 1).await {
            Ok(permit) => drop(permit),
            Err(error) => self.verdict.faults.push(format!("p{process}: {error:?}")),
        }
        self.flush(process).await;
        self.judge.stated(self.ids[process], self.fleet.now());
    }
}
