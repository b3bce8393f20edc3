//! Limiters on a virtual clock.

use ratelimit_runtime::{Clock, RateLimiter, VirtualClock};

use crate::server::Server;

/// Returns a limiter on an embedded store of its own.
pub fn embedded_on(clock: &VirtualClock) -> RateLimiter {
    RateLimiter::builder().clock(Clock::Virtual(clock.clone())).build().expect("valid settings")
}

impl Server {
    /// Returns a limiter on this server, as [`builder`](Self::builder) builds it.
    pub fn limiter_on(&self, clock: &VirtualClock) -> RateLimiter {
        self.builder().clock(Clock::Virtual(clock.clone())).build().expect("valid settings")
    }
}
