//! Waiting for what happens in the background.

use std::thread;
use std::time::{Duration, Instant};

/// The time after which something that does not happen has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a condition holds.
///
/// # Panics
///
/// If it does not hold for half a minute.
pub async fn wait_until(mut holds: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < PATIENCE, "the condition does not hold after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a condition holds, and blocks the thread.
///
/// # Panics
///
/// If it does not hold for half a minute. The message tells `what` is missing.
pub fn block_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
