//! Calls that wait: they start, are dropped, and are not polled for a while.

use std::sync::Arc;
use std::time::Duration;

use ratelimit_runtime::Rejection;
use support::lines::wait_until_idle;
use tokio::time::timeout;

use crate::calls::{Gate, Gated, Waiting};
use crate::exceptions::Excepted;
use crate::player::{Ended, PATIENCE, Player, show};

impl Player<'_> {
    pub(crate) async fn wait(&mut self, process: usize, cost: u64, ticks: u64, acquires: bool) {
        let (limit, wait) = (self.limit(process), ticks * self.setup.tick);
        let (waits, clock) = (limit.wait(Duration::from_micros(wait)), self.fleet.clock.clone());
        let (limiter, key) = (self.limiter(process), self.key.clone());
        let gate = Arc::new(Gate::default());
        let call = Gated::new(&gate, async move {
            let result = if acquires {
                let permit = limiter.acquire(&waits, key, cost).await;
                permit.map(|permit| (permit.decision(), Some(permit)))
            } else {
                limiter.check(&waits, key, cost).await.map(|decision| (decision, None))
            };
            (clock.now().as_micros() as u64, result)
        });
        let task = tokio::spawn(call);
        self.tell(format_args!("p{process} waits {ticks} ticks for {cost} of {}", show(&limit)));
        let (decided, process) = (self.now(), self.process(process));
        // It starts after the calls before it, or takes the moment of one that is dropped.
        let before = self.waiting.iter().filter(|waiting| waiting.process == process);
        let excepted = before.map(|waiting| waiting.excepted).max().unwrap_or(Excepted::No);
        self.in_force(decided, &limit);
        let (limits, paused, may_fail) = (vec![limit], None, false);
        let is_free = self.is_free[process];
        self.has_waited = true;
        self.waiting.push(Waiting {
            process,
            cost,
            limits,
            decided,
            excepted,
            paused,
            gate,
            task,
            is_free,
            may_fail,
        });
        self.collect().await;
    }

    pub(crate) async fn drop_waiting(&mut self, which: usize) {
        if self.waiting.is_empty() {
            return;
        }
        let waiting = self.waiting.swap_remove(which % self.waiting.len());
        waiting.task.abort();
        self.except_dropped(&waiting);
        let _ = waiting.task.await;
        self.tell(format_args!("p{} drops its call of {}", waiting.process, waiting.cost));
        self.collect().await;
    }

    /// Does not poll a call, or polls it again.
    pub(crate) async fn pause(&mut self, which: usize) {
        if self.waiting.is_empty() {
            return;
        }
        let (which, now) = (which % self.waiting.len(), self.moment());
        let waiting = &mut self.waiting[which];
        let (process, cost) = (waiting.process, waiting.cost);
        if !waiting.gate.is_shut() {
            waiting.gate.shut();
            waiting.paused.get_or_insert(now);
            self.granted_from[process].get_or_insert(now);
            self.tell(format_args!("p{process} does not poll its call of {cost}"));
            return;
        }
        waiting.gate.open();
        self.tell(format_args!("p{process} polls its call of {cost}"));
        // With it, calls behind it can start.
        self.collect().await;
    }

    /// Records the calls that have ended.
    pub(crate) async fn collect(&mut self) {
        if !self.has_waited {
            return;
        }
        self.rest().await;
        self.has_waited = !self.waiting.is_empty();
        let mut index = 0;
        while index < self.waiting.len() {
            if !self.waiting[index].task.is_finished() {
                index += 1;
                continue;
            }
            let waiting = self.waiting.remove(index);
            let Waiting { process, cost, limits, decided, excepted, is_free, .. } = waiting;
            let Waiting { paused, task, may_fail, .. } = waiting;
            let (at, result) = task.await.expect("no panic");
            if may_fail && matches!(result, Err(Rejection::Unavailable { .. })) {
                continue;
            }
            // A call behind one that is not polled can receive the grant of that call.
            let granted_from = paused.into_iter().chain(self.granted_from[process]).min();
            let granted = granted_from.unwrap_or((at, self.verdict.operations));
            let ended = Ended { process, cost, limits, decided, granted, at, excepted, is_free };
            self.ended(ended, result);
        }
        self.forget_pauses();
    }

    /// Forgets the pauses that have ended. A call that still waits after a poll has no grant: it would have taken it,
    /// unless the clock has stepped back to before the grant.
    fn forget_pauses(&mut self) {
        for index in 0..self.waiting.len() {
            let is_behind = self.is_behind(self.waiting[index].process);
            let waiting = &mut self.waiting[index];
            waiting.paused = waiting.paused.filter(|_| waiting.gate.is_shut() || is_behind);
        }
        let paused = |number| {
            let mut all = self.waiting.iter().filter(|waiting| waiting.process == number);
            all.any(|waiting| waiting.paused.is_some())
        };
        for (number, granted_from) in self.granted_from.iter_mut().enumerate() {
            *granted_from = granted_from.filter(|_| paused(number));
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
}
