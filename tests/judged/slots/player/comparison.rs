//! What the store counts is compared with what the judge knows, after each step and at the end.

use std::time::Duration;

use ratelimit_runtime::__private::lines;
use ratelimit_runtime::RuleSet;
use support::judge::HolderJudge;
use support::lines::wait_until_decided;
use tokio::time::{sleep, timeout};

use super::{PATIENCE, RuleOf, SlotPlayer, TICK, WaitingCall};
use crate::calls::Verdict;

/// How many milliseconds a call may take to end once it is decided.
const A_WHILE: u32 = 500;

impl SlotPlayer<'_> {
    /// Waits until the server knows what a process has released and settled.
    pub(super) async fn flush(&mut self, process: usize) {
        let limiter = self.limiter(process);
        let flushed = async {
            // A statement that has failed is made again after a pause, by the clock of the limiter.
            while !matches!(timeout(TICK, limiter.flush()).await, Ok(Ok(()))) {
                self.pass(2 * TICK);
            }
        };
        if timeout(PATIENCE, flushed).await.is_err() {
            self.verdict.faults.push(format!("p{process} is not flushed"));
        }
    }

    /// Lets everything happen that happens now, and records the calls that have ended their wait.
    pub(super) async fn rest(&mut self) {
        loop {
            for process in 0..self.alive.len() {
                let limiter = self.limiter(process);
                if timeout(PATIENCE, wait_until_decided(&limiter)).await.is_err() {
                    self.verdict.faults.push(format!("p{process} does not come to rest"));
                }
                self.flush(process).await;
            }
            for _ in 0..A_WHILE {
                if !self.is_ending() {
                    break;
                }
                sleep(Duration::from_millis(1)).await;
            }
            self.end_lost_again();
            let waiting = std::mem::take(&mut self.waiting);
            let (ended, waiting): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|waiting| waiting.task.is_finished());
            self.waiting = waiting;
            if ended.is_empty() {
                return self.forget_pauses();
            }
            for WaitingCall { mut call, task, .. } in ended {
                let (_, result) = task.await.expect("no panic");
                let from = self.granted_from[call.process];
                call.is_free |= from.is_some() && self.last_reset >= from;
                self.granted(call, from.unwrap_or(self.moment()), result);
            }
        }
    }

    /// Returns whether a call that waits in no line has not ended: a shadow can decide beside it.
    fn is_ending(&self) -> bool {
        self.waiting.iter().any(|WaitingCall { call, paused, task, .. }| {
            paused.is_none() && !task.is_finished() && lines(&self.limiter(call.process)) == 0
        })
    }

    /// Returns the units in flight that the server counts; `None` if the key is blocked.
    pub(super) async fn counted(&self) -> Option<u64> {
        // Of a limiter without rules, which is not killed.
        let wide = self.limit().try_amounts(1_000, None).expect("valid");
        let process = (0..self.alive.len()).find(|it| self.rules[*it] == RuleOf::Nothing)?;
        match self.limiter(process).peek(&wide, &self.key, 0).await {
            Ok(peeked) if peeked.allowed => Some(1_000 - peeked.remaining),
            Ok(_) | Err(_) => None,
        }
    }

    /// Compares what the server counts with the calls that run.
    pub(super) async fn compare(&mut self) {
        let is_known = self.judge.knows_all() && !self.is_excused;
        if !is_known || !self.waiting.is_empty() {
            return;
        }
        let held = self.judge.held();
        if let Some(counted) = self.counted().await.filter(|counted| *counted != held) {
            self.verdict.faults.push(format!("the store counts {counted}, and {held} are held"));
        }
    }

    /// Ends all calls. Then nothing is held.
    pub(super) async fn end(mut self) -> (Verdict, HolderJudge) {
        for process in &self.alive {
            process.limiter.set_rules(RuleSet::new()).expect("no rules");
        }
        self.rules.fill(RuleOf::Nothing);
        let crashed = std::mem::take(&mut self.crashed);
        let stopped = crashed.into_iter().flat_map(|(process, _, stopped)| {
            process.clock.set(self.fleet.clock.now());
            stopped
        });
        let waiting: Vec<_> = stopped.chain(std::mem::take(&mut self.waiting)).collect();
        for waiting in &waiting {
            waiting.task.abort();
        }
        for waiting in waiting {
            let _ = waiting.task.await;
        }
        self.running.clear();
        if self.slot_moves {
            self.fleet.finish_move(&self.key);
        }
        self.rest().await;
        self.verdict.breaches.extend(self.judge.breaches());
        self.verdict.breaches.extend(self.local.breaches());
        self.verdict.breaches.extend(self.rate.breaches());
        if self.blocks.slots.knows_any() {
            self.limiter(0).unblock(&self.limit(), &self.key).await.expect("unblocked");
        }
        let is_free = async {
            while self.counted().await != Some(0) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(PATIENCE, is_free).await.is_err() {
            let left = self.counted().await;
            self.verdict.faults.push(format!("{left:?} units are left when all calls have ended"));
        }
        (self.verdict, self.judge)
    }
}
