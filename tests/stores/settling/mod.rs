//! Charges that are corrected once the real cost is known, and units that go back to their charge.

mod beside;
mod debts;
mod estimates;
mod lagging_clocks;
mod permits;
mod queue;
mod settlements;

use std::time::Duration;

use ratelimit_runtime::{Clock, Limit, Permit, RateLimiter, VirtualClock};
use support::limits::MINUTE;
use support::server::Server;

use crate::decision;

/// A limiter on the embedded store and one on Redis, on one virtual clock.
fn limiters(server: &Server) -> ([RateLimiter; 2], VirtualClock) {
    let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
    let virtual_clock = || Clock::Virtual(clock.clone());
    let embedded = RateLimiter::builder().clock(virtual_clock()).build().expect("valid");
    let redis = server.builder().clock(virtual_clock()).deadline(MINUTE).build().expect("valid");
    ([embedded, redis], clock)
}

async fn acquire(limiter: &RateLimiter, limit: &Limit, cost: u64) -> Permit {
    limiter.acquire(limit, "key", cost).await.expect("admitted")
}

async fn remaining(limiter: &RateLimiter, limit: &Limit) -> u64 {
    limiter.flush().await.expect("a reply");
    decision(limiter.peek(limit, "key", 1).await).remaining
}
