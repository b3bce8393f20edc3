//! Faults: lost replies, lost connections, and processes that are killed.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{Begun, HOLD, MOST, PATIENCE, RuleOf, Running, SlotPlayer, WaitingCall};
use crate::fleet::Losing;
use ratelimit_runtime::Limit;

impl SlotPlayer<'_> {
    /// The first process loses a reply: to a call, or to the statement about the end of a call.
    pub(super) async fn lose_reply(&mut self, cost: u64, ends: Option<usize>) {
        let Some(proxy) = self.fleet.network() else { return };
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.call.process == 0) {
            waiting.call.may_fail = true;
        }
        let of_first = |call: &Running| call.process == 0;
        let at = self.running.iter().position(of_first).filter(|_| ends.is_some());
        let losing = Losing::replies(proxy);
        if let Some(at) = at {
            let Running { holder, local, permits, .. } = self.running.swap_remove(at);
            drop(permits);
            let now = self.now();
            if let Some(local) = local {
                self.local.ended(local, now);
            }
            // Until the statement is sent.
            let _ = timeout(Duration::from_millis(20), self.limiter(0).flush()).await;
            drop(losing);
            let now = self.now();
            if let Some(holder) = holder {
                self.judge.ended(holder, now);
            }
        } else {
            let call = Begun { may_fail: true, ..self.begin(0, cost, false) };
            let future = self.acquire(call, Duration::ZERO);
            let result = future.await;
            drop(losing);
            self.decided(call, result);
        }
        self.connect().await;
    }

    /// Runs a command on the server, if there is one.
    pub(super) async fn command(&mut self, words: &[&str]) {
        if self.fleet.command(words) {
            for waiting in &mut self.waiting {
                waiting.call.may_fail = true;
            }
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
        let running = std::mem::take(&mut self.running);
        let (dead, running) = running.into_iter().partition(|call| call.process == number);
        let waiting = std::mem::take(&mut self.waiting);
        let (stopped, waiting) = waiting.into_iter().partition(|it| it.call.process == number);
        (self.running, self.waiting, self.rules[number]) = (running, waiting, RuleOf::Nothing);
        // Nothing of it is polled any more.
        let stopped: Vec<WaitingCall> = stopped;
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
            let replies = async {
                loop {
                    // The background thread states the end of a call.
                    if limiter.ping().await.is_ok()
                        && let Ok(permit) = limiter.acquire(&held, "connect", 1).await
                        && permit.release().await.is_ok()
                    {
                        break;
                    }
                    sleep(Duration::from_millis(1)).await;
                }
            };
            if timeout(PATIENCE, replies).await.is_err() {
                self.verdict.faults.push(format!("p{process} does not reach the server"));
            }
            self.flush(process).await;
        }
    }
}
