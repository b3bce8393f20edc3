//! The outage log: reports when the shared store stops and starts to decide.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::clock::Clock;
use crate::limit::OnError;
use crate::reply::StoreError;
use crate::report;

/// The shortest time between two events.
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct OutageLog {
    /// The time of the last report of a failure; 0 if the store decides.
    reported: AtomicU64,
}

impl OutageLog {
    /// Records the result of a request about the limit `name`.
    pub(super) fn record<T>(
        &self,
        clock: &Clock,
        name: &str,
        on_error: OnError,
        result: &Result<T, StoreError>,
    ) {
        let reported = self.reported.load(Relaxed);
        if reported == 0 && result.is_ok() {
            return;
        }
        let now = clock.local();
        if reported > 0 && now.saturating_sub(reported) < PAUSE.as_micros() as u64 {
            return;
        }
        let next = if result.is_ok() { 0 } else { now.max(1) };
        if self.reported.compare_exchange(reported, next, Relaxed, Relaxed).is_err() {
            return;
        }
        match result {
            Err(error) => report::outage(name, on_error, error),
            Ok(_) => report::outage_ended(),
        }
    }
}
