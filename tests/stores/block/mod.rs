//! Keys that are blocked until a moment: how their calls are decided, what happens to their counts, and when other
//! processes obey.

mod keys;
mod processes;
mod waiting;

use std::time::Duration;

use ratelimit_runtime::{Decision, Limit, Rejection};
use support::limits::MINUTE;

/// A limit of each algorithm: 10 a minute.
fn limits() -> impl Iterator<Item = Limit> {
    support::limits::limits("blocked", 10, MINUTE)
}

/// Returns the wait of a call that is rejected because its key is blocked.
#[track_caller]
fn blocked(result: Result<Decision, Rejection>) -> Duration {
    match result {
        Err(Rejection::Blocked { decision, .. }) => {
            assert_eq!((decision.allowed, decision.remaining), (false, 0));
            decision.retry_after
        }
        other => panic!("the key is not blocked: {other:?}"),
    }
}
