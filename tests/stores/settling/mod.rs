//! Charges that are corrected once the real cost is known, and units that go back to their charge.

mod debts;
mod permits;
mod queue;

use ratelimit_runtime::{Limit, Permit, RateLimiter};

use crate::decision;

async fn acquire(limiter: &RateLimiter, limit: &Limit, cost: u64) -> Permit {
    limiter.acquire(limit, "key", cost).await.expect("admitted")
}

/// Returns the units that are left once all is settled.
async fn remaining(limiter: &RateLimiter, limit: &Limit) -> u64 {
    limiter.flush().await.expect("a reply");
    decision(limiter.peek(limit, "key", 1).await).remaining
}
