//! Budgets: amounts above 32 bits in calendar months, and the event of the call that reaches a percentage of a limit.

mod amounts;
mod notified;

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use ratelimit_runtime::web::{HeldBody, RateLimitLayer};
use ratelimit_runtime::{Clock, RateLimiter, VirtualClock};
use support::server::Server;
use tower::{Layer, ServiceExt, service_fn};

/// When each clock starts: 2023-11-14 22:13:20 UTC, in seconds since the epoch.
const NOW: u64 = 1_700_000_000;

/// A limiter on a virtual clock, and the name of its store, which is also the key of the calls.
struct TestLimiter {
    limiter: RateLimiter,
    clock: VirtualClock,
    key: &'static str,
}

impl TestLimiter {
    fn both(server: &Server) -> [Self; 2] {
        [(RateLimiter::builder(), "embedded"), (server.builder(), "redis")].map(|(builder, key)| {
            let clock = VirtualClock::at(Duration::from_secs(NOW));
            let builder = builder.clock(Clock::Virtual(clock.clone())).log_keys(true);
            Self { limiter: builder.build().expect("valid"), clock, key }
        })
    }
}

async fn respond(layer: &RateLimitLayer) -> Response<HeldBody<String>> {
    let handler = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new())));
    layer.layer(handler).oneshot(Request::new(String::new())).await.expect("infallible")
}
