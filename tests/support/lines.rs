//! Waiting calls on a virtual clock.

use std::time::Duration;

use ratelimit_runtime::__private::{lines_are_idle, store_is_idle};
use ratelimit_runtime::RateLimiter;

/// Runs all other tasks until they and the lines of the limiter wait for the clock. This takes real time: the
/// background thread drives the lines.
pub async fn wait_until_idle(limiter: &RateLimiter) {
    wait_until(|| lines_are_idle(limiter)).await;
}

/// Does the same for calls that are all tasks, and waits until none of them is decided by Redis.
pub async fn wait_until_decided(limiter: &RateLimiter) {
    wait_until(|| lines_are_idle(limiter) && store_is_idle(limiter)).await;
}

async fn wait_until(is_idle: impl Fn() -> bool) {
    let mut quiet = 0;
    // A task that was woken may change its line again.
    while quiet < 3 {
        yield_to_tasks().await;
        if is_idle() {
            quiet += 1;
        } else {
            quiet = 0;
            // The background thread drives the lines.
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }
}

/// Runs all other tasks until they wait. The background thread may still be at work for them.
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
