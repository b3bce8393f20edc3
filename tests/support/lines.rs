//! Waiting calls on a virtual clock.

use std::time::Duration;

use ratelimit_runtime::__private::{lines_are_idle, store_is_idle};
use ratelimit_runtime::RateLimiter;

/// Runs all other tasks until they and the lines of the limiter wait for the clock, and no call is decided on Redis.
/// This takes real time there.
pub async fn wait_until_idle(limiter: &RateLimiter) {
    let mut quiet = 0;
    // A task that was woken may change its line again.
    while quiet < 3 {
        yield_to_tasks().await;
        if lines_are_idle(limiter) && store_is_idle(limiter) {
            quiet += 1;
        } else {
            quiet = 0;
            // The background thread drives the lines.
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }
}

/// Runs all other tasks until they wait for the clock, if they drive their lines themselves.
pub async fn run_tasks() {
    for _ in 0..3 {
        yield_to_tasks().await;
    }
}

/// A task that was woken runs within a few yields.
async fn yield_to_tasks() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}
