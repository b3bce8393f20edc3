//! What fails: a process is killed, a reply is lost, and a hash slot moves. A server that evicts counts is in
//! `beside.rs`.

use std::time::Duration;

use ratelimit_runtime::{Limit, Rejection};
use tokio::time::timeout;

use crate::calls::{Open, Waiting};
use crate::fleet::{Losing, Process};
use crate::operation::{Cost, Lost};
use crate::player::Player;

/// A process that was killed. What it held stays where it was, and its calls do not end.
pub(crate) struct Crashed {
    _process: Process,
    _permits: Vec<Open>,
    pub(crate) waiting: Vec<Waiting>,
}

impl Player<'_> {
    /// Kills a process, and starts another in its place. The count of a process on the embedded store ends with it.
    pub(crate) async fn crash(&mut self, process: usize) {
        if self.fleet.is_embedded() {
            return;
        }
        let number = self.process(process);
        let process = std::mem::replace(&mut self.alive[number], self.fleet.process(number));
        self.latest[number] = 0;
        self.move_clocks();
        let (waiting, others) =
            self.waiting.drain(..).partition(|waiting| waiting.process == number);
        self.waiting = others;
        let (permits, others) = self.permits.drain(..).partition(|open| open.process == number);
        self.permits = others;
        let (granted_from, _) = self.granted_from[number].unwrap_or(self.moment());
        self.judge.unseen((granted_from, self.now()));
        let crashed = Crashed { _process: process, _permits: permits, waiting };
        let granted: u64 = crashed.waiting.iter().map(|waiting| waiting.cost).sum();
        self.missing.units += granted + self.setup.most_leased();
        self.crashed.push(crashed);
        (self.ruled[number], self.is_free[number]) = (None, false);
        self.tell(format_args!("p{number} is killed"));
        self.connect(number).await;
    }

    /// The first process sends a request. The server executes it, and the connection breaks before the reply.
    pub(crate) async fn lose_reply(&mut self, request: Lost, cost: Cost) {
        let Some(proxy) = self.fleet.network() else { return };
        let (limiter, limit) = (self.limiter(0), self.limit(0));
        let cost = cost.of(&limit);
        // The background thread may have sent other requests.
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.process == 0) {
            waiting.may_fail = true;
        }
        self.missing.is_excused = true;
        self.missing.units += cost.max(self.setup.most_leased());
        self.tell(format_args!("p0 loses the reply to {request:?}, {cost}"));
        let losing = Losing::replies(proxy);
        let result = match request {
            Lost::Check => {
                let leased = self.setup.leased(&limit);
                limiter.check(&leased, &self.key, cost).await.map(|decision| (decision, None))
            }
            Lost::Acquire if self.setup.settles() => {
                let permit = limiter.acquire(&limit, &self.key, cost).await;
                permit.map(|permit| (permit.decision(), Some(permit)))
            }
            Lost::Acquire => return,
            Lost::Settle(which) => {
                let Some(Open { permit, cost, call, .. }) = self.take_permit(which) else { return };
                // What is given back may be given back. A surplus that is lost is lost.
                permit.settle(cost / 2);
                let _ = limiter.flush().await;
                self.judge.settled(call, self.now(), cost / 2);
                drop(losing);
                return self.reconnect().await;
            }
        };
        drop(losing);
        match result {
            Err(Rejection::Unavailable { .. }) => self.judge.unseen((self.now(), self.now())),
            // Decided in the process: by leased units, a cached rejection or a rule.
            result => self.ended(self.at_once(0, cost, &limit), result),
        }
        self.reconnect().await;
    }

    async fn reconnect(&mut self) {
        self.connect(0).await;
        self.collect().await;
    }

    /// Waits until a process reaches the server, by the connection of its callers and by the one of its background
    /// thread.
    async fn connect(&mut self, process: usize) {
        let limiter = self.limiter(process);
        let second = Duration::from_secs(1);
        let waits = Limit::fixed("connect", 1_000_000_000, second).wait(second);
        let replies = async {
            while limiter.ping().await.is_err()
                || limiter.flush().await.is_err()
                || limiter.check(&waits, &self.key, 1).await.is_err()
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if timeout(Duration::from_secs(20), replies).await.is_err() {
            self.verdict.faults.push(format!("p{process} does not reach the server"));
        }
    }

    /// Begins to move the hash slot of the key, or ends that.
    pub(crate) fn move_slot(&mut self) {
        if self.slot_moves {
            self.fleet.finish_move(&self.key);
            self.slot_moves = false;
            return self.tell("the hash slot has moved");
        }
        // A decision about two keys waits until both are on one node.
        let stays = !self.setup.leaves_out("several");
        self.slot_moves = self.fleet.begin_move(&self.key, stays);
        if self.slot_moves {
            self.tell("the hash slot begins to move");
        }
    }
}
