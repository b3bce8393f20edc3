//! Keys that are closed until a moment: how their calls are decided, what happens to their counts, and when other
//! processes obey.

mod counts;
mod keys;
mod processes;
mod waiting;

use std::time::Duration;

use ratelimit_runtime::{Decision, Limit, Rejection};
use support::limits::MINUTE;

/// A limit of each algorithm: 10 a minute.
fn limits() -> impl Iterator<Item = Limit> {
    support::limits::limits("closed", 10, MINUTE)
}

/// Returns the wait of a call that is rejected because its key is closed.
#[track_caller]
fn closed(result: Result<Decision, Rejection>) -> Duration {
    match result {
        Err(Rejection::Closed { decision, .. }) => {
            assert_eq!((decision.allowed, decision.remaining), (false, 0));
            decision.retry_after
        }
        other => panic!("the key is not closed: {other:?}"),
    }
}
