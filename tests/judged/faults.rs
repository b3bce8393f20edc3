//! What fails: a process is killed, and a reply is lost.

use ratelimit_runtime::{Limit, Rejection};
use support::limits::SECOND;
use support::proxy::Network;
use support::wait::wait_until;

use crate::calls::{Open, Waiting};
use crate::fleet::{Failing, Process};
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
    pub(crate) async fn crash(&mut self, number: usize) {
        if self.fleet.is_embedded() {
            return;
        }
        let process = std::mem::replace(&mut self.alive[number], self.fleet.process(number));
        self.latest[number] = 0;
        self.move_clocks();
        let waiting: Vec<_> =
            self.waiting.extract_if(.., |waiting| waiting.call.process == number).collect();
        let permits = self.permits.extract_if(.., |open| open.process == number).collect();
        let (granted_from, _) = self.granted_from[number].unwrap_or(self.moment());
        self.judge.unseen((granted_from, self.now()));
        let granted: u64 = waiting.iter().map(|waiting| waiting.call.cost).sum();
        self.missing.units += granted + self.setup.most_leased();
        self.crashed.push(Crashed { _process: process, _permits: permits, waiting });
        (self.ruled[number], self.is_free[number]) = (None, false);
        self.connect(number).await;
    }

    /// The first process sends a request. The server executes it, and the connection breaks before the reply.
    pub(crate) async fn lose_reply(&mut self, request: Lost, cost: Cost) {
        let Some(proxy) = self.fleet.network() else { return };
        let limit = self.limit(0);
        let cost = cost.of(&limit);
        // The background thread may have sent other requests.
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.call.process == 0) {
            waiting.may_fail = true;
        }
        self.missing.is_excused = true;
        self.missing.units += cost.max(self.setup.most_leased());
        let losing = Failing::new(proxy, Network::RepliesCut);
        let result = match request {
            Lost::Check => self.call(0, self.setup.leased(&limit), cost, false).await,
            Lost::Acquire if self.setup.settles() => self.call(0, limit, cost, true).await,
            Lost::Acquire => return,
            Lost::Settle(which) => {
                let Some(Open { permit, cost, call, .. }) = self.take_permit(which) else { return };
                // What is given back may be given back. A surplus that is lost is lost.
                permit.settle(cost / 2);
                let _ = self.limiter(0).flush().await;
                self.judge.settled(call, self.now(), cost / 2);
                drop(losing);
                return self.reconnect().await;
            }
        };
        drop(losing);
        match result {
            Err(Rejection::Unavailable { .. }) => self.judge.unseen((self.now(), self.now())),
            // Decided in the process: by leased units, a cached rejection or a rule.
            result => self.decided(0, &limit, cost, result),
        }
        self.reconnect().await;
    }

    async fn reconnect(&mut self) {
        self.connect(0).await;
        self.collect().await;
    }

    /// Waits until a process reaches the server, by the connection of its callers and by the one of its background
    /// thread.
    async fn connect(&self, process: usize) {
        let limiter = self.limiter(process);
        let waits = Limit::fixed("connect", 1_000_000_000, SECOND).wait(SECOND);
        wait_until(async || {
            limiter.ping().await.is_ok()
                && limiter.flush().await.is_ok()
                && limiter.check(&waits, &self.key, 1).await.is_ok()
        })
        .await;
    }
}
