//! Calls in flight: how many may run at the same time.
//!
//! | a test of ... | belongs in |
//! | --- | --- |
//! | what admits, rejects and frees, alone and beside rates, rules, blocks and shadows | [`promises`] |
//! | calls that wait until another one ends, in this process or in another one | [`waits`] |
//! | several limiters on one Redis, what fails between them | [`faults`] |
//! | counts in several hash slots of a cluster | [`elsewhere`] |
//! | what is left of calls that end at any time | [`leaks`] |
//!
//! `tests/judged/slots/` plays random histories.

mod elsewhere;
mod faults;
mod leaks;
mod promises;
mod waits;

use std::time::Duration;

use ratelimit_runtime::{Clock, Limit, Permit, RateLimiter, Rejection, VirtualClock};
use support::limits::{MINUTE, SECOND};
use support::server::Server;

const HOLD: Duration = Duration::from_secs(3_600);
const TWO: Limit = Limit::in_flight("two", 2).hold(HOLD);

struct TestLimiter {
    limiter: RateLimiter,
    clock: VirtualClock,
}

impl TestLimiter {
    /// Returns a limiter on each store.
    fn each(server: &Server) -> [Self; 2] {
        [RateLimiter::builder(), server.builder()].map(|builder| {
            let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
            let builder = builder.clock(Clock::Virtual(clock.clone()));
            // A busy test machine must not take the turn of a waiting call that it does not poll for a while.
            let limiter = builder.deadline(MINUTE).build().expect("valid");
            Self { limiter, clock }
        })
    }

    async fn acquire(&self, limit: &Limit, cost: u64) -> Result<Permit, Rejection> {
        self.limiter.acquire(limit, "key", cost).await
    }

    async fn admit(&self, limit: &Limit, cost: u64) -> Permit {
        self.acquire(limit, cost).await.expect("admitted")
    }

    /// Returns the units that are in flight; at most those that may be.
    async fn in_flight(&self, limit: &Limit) -> u64 {
        let peeked = self.limiter.peek(limit, "key", 0).await.expect("admitted");
        peeked.limit - peeked.remaining
    }

    async fn assert_busy(&self, limit: &Limit, in_flight: u64) {
        assert_busy(&self.acquire(limit, 1).await.expect_err("busy"), in_flight);
    }
}

/// Returns a limiter on the real clock, as another process has it.
fn process(server: &Server) -> RateLimiter {
    server.builder().deadline(SECOND).build().expect("valid")
}

fn assert_busy(rejection: &Rejection, units: u64) {
    let Rejection::Busy { in_flight, .. } = rejection else { panic!("{rejection:?}") };
    assert_eq!(*in_flight, units);
    assert_eq!(rejection.retry_after(), None);
}
