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

use ratelimit_runtime::{Answer, Check, Clock, Decision, Limit, Permit, RateLimiter, VirtualClock};
pub(crate) use support::limits::decision;
pub(crate) use support::lines::wait_until_idle;
use support::server::Server;
pub(crate) use support::wait::wait_until;

/// Declares tests that run on the embedded store, and then on Redis. There, each key has to have a TTL.
macro_rules! on_both_stores {
    ($($(#[$attribute:meta])* async fn $name:ident($test:ident: TestLimiter) $body:block)*) => {$(
        $(#[$attribute])*
        #[tokio::test]
        async fn $name() {
            let server = support::server::Server::start();
            for $test in [$crate::TestLimiter::embedded(), $crate::TestLimiter::redis(&server)] {
                println!("{:?}", $test.limiter);
                $body
            }
            server.assert_all_keys_expire();
        }
    )*};
}

use on_both_stores;

/// A limiter on a virtual clock.
struct TestLimiter {
    limiter: RateLimiter,
    clock: VirtualClock,
}

impl TestLimiter {
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

/// The futures of a limiter can move to another task, because they borrow nothing.
#[test]
fn futures_are_send_and_borrow_nothing() {
    fn owned<T: Send + 'static>(_: T) {}
    const LIMIT: Limit = Limit::fixed("owned", 1, Duration::from_secs(1));
    let (limiter, key) = (RateLimiter::embedded(), String::from("key"));
    owned::<Check>(limiter.check(&LIMIT, &key, 1));
    owned::<Answer<Decision>>(limiter.credit(&LIMIT, &*key, 1));
    owned::<Answer<bool>>(limiter.reset(&LIMIT, key));
}
