//! Charges that are corrected once the real cost is known, and units that go back to their charge.

mod debts;
mod permits;
mod queue;

use std::time::Duration;

use ratelimit_runtime::{Clock, Limit, Permit, RateLimiter, VirtualClock};
use support::clocks::embedded_on;
use support::limits::{MINUTE, limits};
use support::server::Server;

use crate::decision;

/// A limiter on the embedded store and one on Redis, on one virtual clock.
fn limiters(server: &Server) -> ([RateLimiter; 2], VirtualClock) {
    let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
    let builder = server.builder().clock(Clock::Virtual(clock.clone())).deadline(MINUTE);
    ([embedded_on(&clock), builder.build().expect("valid")], clock)
}

/// Returns limits of each algorithm, with 100 units, on each store.
fn on_each<'a>(
    limiters: &'a [RateLimiter; 2],
    name: &'static str,
) -> impl Iterator<Item = (&'a RateLimiter, Limit)> {
    limiters.iter().flat_map(move |limiter| limits(name, 100, MINUTE).map(move |it| (limiter, it)))
}

async fn acquire(limiter: &RateLimiter, limit: &Limit, cost: u64) -> Permit {
    limiter.acquire(limit, "key", cost).await.expect("admitted")
}

async fn remaining(limiter: &RateLimiter, limit: &Limit) -> u64 {
    limiter.flush().await.expect("a reply");
    decision(limiter.peek(limit, "key", 1).await).remaining
}
