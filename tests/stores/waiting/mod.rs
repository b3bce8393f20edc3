//! Calls that wait for units: their order, the end of their wait, and what happens to the units of dropped calls.

mod give_backs;
mod order;
mod rejections;
mod reservations;

use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::FutureExt;
use ratelimit_runtime::__private::lines;
use ratelimit_runtime::{
    Algorithm, Builder, Check, Clock, Decision, Limit, OnError, RateLimiter, Rejection, Source,
    StoreError, VirtualClock,
};
use support::limits::{MINUTE, SECOND, is_bucket, limits};
use support::proxy::{Network, Proxy};
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::{TestLimiter, decision, on_both_stores, wait_until, wait_until_idle};

/// How long a grant is valid in these tests.
const DEADLINE: Duration = Duration::from_millis(200);

/// Limiters on the embedded store and on Redis, on the real clock.
pub(crate) fn limiters(server: &Server) -> [RateLimiter; 2] {
    [RateLimiter::builder(), server.builder()]
        .map(|builder| builder.deadline(DEADLINE).build().expect("valid settings"))
}

/// Returns a limiter on a virtual clock.
fn on_clock(builder: Builder, clock: &VirtualClock) -> RateLimiter {
    builder.clock(Clock::Virtual(clock.clone())).build().expect("valid settings")
}

fn bucket(threshold: u64) -> Limit {
    Limit::leaky_bucket("lines", threshold, SECOND)
}

/// A bucket that refills a token each 100 ms.
fn tokens(burst: u64) -> Limit {
    Limit::token_bucket("tokens", 10, SECOND).burst(burst)
}

/// Starts a call, and polls it once: it is in its line then, and has reserved its moment.
async fn waiting(limiter: &RateLimiter, limit: &Limit, key: &str, cost: u64) -> Pin<Box<Check>> {
    let mut call = Box::pin(limiter.check(&limit.wait(MINUTE), key, cost));
    assert!(call.as_mut().now_or_never().is_none(), "the call waits");
    wait_until_idle(limiter).await;
    call
}

/// Waits until no line holds a call or a unit.
pub(crate) async fn rest(limiter: &RateLimiter) {
    wait_until(async || lines(limiter) == 0).await;
}
