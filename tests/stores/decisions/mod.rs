//! The decision of a single call, of calls on one count, and of calls that share a script: algorithms, costs, amounts,
//! policies, several limits.

mod amounts;
mod batches;
mod classes;
mod cost_zero;
mod extremes;
mod parity;
mod policies;
mod rejection_cache;
mod semantics;
mod several_limits;
mod usage;

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit};

// Times in microseconds, by which `TestLimiter::advance` moves the clock.
const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3600 * SECOND;
const DAY: u64 = 24 * HOUR;

/// Returns a limit with a period in microseconds.
fn limit(algorithm: Algorithm, threshold: u64, period: u64) -> Limit {
    Limit::new("semantics", algorithm, threshold, Duration::from_micros(period)).expect("valid")
}
