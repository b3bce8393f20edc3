//! Waiting for what happens in the background.

use std::thread;
use std::time::{Duration, Instant};

/// The time after which something that does not happen has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a condition holds.
pub async fn wait_until(mut holds: impl AsyncFnMut() -> bool) {
    wait_for(async || holds().await.then_some(())).await;
}

/// Waits until there is a value.
///
/// # Panics
///
/// If there is none for half a minute.
pub async fn wait_for<T>(mut find: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = find().await {
            return value;
        }
        assert!(started.elapsed() < PATIENCE, "the condition does not hold after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a condition holds, and blocks the thread.
pub fn block_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
