//! Calls that wait for units: their order, the end of their wait, and what happens to the units of dropped calls.

mod give_backs;
mod order;
mod rejections;
mod reservations;

use std::time::Duration;

use ratelimit_runtime::__private;
use ratelimit_runtime::{Limit, RateLimiter};
use support::limits::SECOND;
use support::server::Server;

use crate::wait_until;

/// How long a grant is valid in these tests.
const DEADLINE: Duration = Duration::from_millis(200);

/// Limiters on the embedded store and on Redis, on the real clock.
pub(crate) fn limiters(server: &Server) -> [RateLimiter; 2] {
    [RateLimiter::builder(), server.builder()]
        .map(|builder| builder.deadline(DEADLINE).build().expect("valid settings"))
}

fn bucket(threshold: u64) -> Limit {
    Limit::leaky_bucket("lines", threshold, SECOND)
}

/// Waits until no line holds a call or a unit.
pub(crate) async fn rest(limiter: &RateLimiter) {
    wait_until(async || __private::lines(limiter) == 0).await;
}
