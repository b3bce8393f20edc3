//! The promises of the embedded store and of Redis, and that both make the same decisions.
//!
//! | a test of ... | belongs in |
//! | --- | --- |
//! | how a call is decided, alone, beside other limits or in a batch | [`decisions`] |
//! | sliding windows beside an exact log of charges: large thresholds, long periods, debts | [`sliding`] |
//! | `settle`, `permit`, and units that go back to their charge | [`settling`] |
//! | `wait`, and streams | [`waiting`] |
//! | `lease` | [`leases`] |
//! | rules, and the sources that a limiter reads them from | [`rules`] |
//! | `block` | [`block`] |
//! | names, bytes, memory, TTL and eviction of keys | [`keys`] |
//! | faults of Redis, connections and runtimes, and the errors that they cause | [`faults`] |
//! | a Lua script, without a limiter | [`scripts`] |
//! | what a release has left in Redis | [`states`] |
//!
//! The helpers of one folder are in its `mod.rs`, the helpers of several folders in this file.

#![allow(clippy::unchecked_time_subtraction, reason = "a negative time fails the test")]

mod block;
mod decisions;
mod faults;
mod keys;
mod leases;
mod rules;
mod scripts;
mod settling;
mod sliding;
mod states;
mod waiting;

use std::time::Duration;

use ratelimit_runtime::{Clock, Decision, Limit, Permit, RateLimiter, VirtualClock};
pub(crate) use support::limits::decision;
use support::limits::is_bucket;
pub(crate) use support::lines::wait_until_idle;
pub(crate) use support::on_both_stores;
use support::server::Server;
pub(crate) use support::wait::wait_until;

/// Returns a limit with another capacity, as a call can compute it.
fn with_amount(limit: &Limit, amount: u64) -> Limit {
    let burst = is_bucket(limit.algorithm()).then_some(amount);
    limit.try_amounts(amount, burst).expect("valid")
}

/// A limiter on a virtual clock.
struct TestLimiter {
    limiter: RateLimiter,
    clock: VirtualClock,
}

impl TestLimiter {
    /// Returns a limiter on each store. Of a test that fails, the output tells which one was the last.
    fn each(server: &Server) -> impl Iterator<Item = Self> {
        let tests = [Self::embedded(), Self::redis(server)].into_iter();
        tests.inspect(|test| println!("{:?}", test.limiter))
    }

    fn embedded() -> Self {
        let clock = VirtualClock::new();
        let limiter = RateLimiter::builder()
            .clock(Clock::Virtual(clock.clone()))
            // A busy test machine must not take the turn of a waiting call that it does not poll for a while.
            .deadline(Duration::from_secs(30))
            .build()
            .expect("valid settings");
        Self { limiter, clock }
    }

    fn redis(server: &Server) -> Self {
        let clock = VirtualClock::new();
        let limiter = server.limiter_on(&clock);
        Self { limiter, clock }
    }

    /// Checks a call, and returns whether the store admits it.
    async fn allows(&self, limit: &Limit, cost: u64) -> bool {
        self.decide(limit, cost).await.allowed
    }

    /// Checks a call, and returns the decision, also if the call is rejected.
    async fn decide(&self, limit: &Limit, cost: u64) -> Decision {
        decision(self.limiter.check(limit, "key", cost).await)
    }

    /// Returns the decision that a call would get.
    async fn peek(&self, limit: &Limit, cost: u64) -> Decision {
        self.limiter.peek(limit, "key", cost).await.expect("a decision")
    }

    async fn acquire(&self, limit: &Limit, cost: u64) -> Permit {
        self.limiter.acquire(limit, "key", cost).await.expect("admitted")
    }

    /// Settles a permit, and waits until the store has settled it.
    async fn settle(&self, permit: Permit, used: u64) {
        permit.settle(used);
        self.limiter.flush().await.expect("settled");
    }

    async fn reset(&self, limit: &Limit) {
        self.limiter.reset(limit, "key").await.expect("a reply");
    }

    fn advance(&self, micros: u64) {
        self.clock.advance(Duration::from_micros(micros));
    }
}
