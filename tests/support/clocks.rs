//! Limiters on a virtual clock.

use ratelimit_runtime::{Clock, RateLimiter, VirtualClock};

use crate::server::Server;

/// Returns a limiter on an embedded store of its own.
pub fn embedded_on(clock: &VirtualClock) -> RateLimiter {
    RateLimiter::builder().clock(Clock::Virtual(clock.clone())).build().expect("valid settings")
}

impl Server {
    /// Starts a server, and a limiter on it as [`builder`](Self::builder) builds it.
    pub fn with_limiter() -> (Self, RateLimiter) {
        let server = Self::start();
        let limiter = server.builder().build().expect("valid settings");
        (server, limiter)
    }

    /// Starts a server, and a limiter on it whose clock stands still until the test moves it.
    pub fn with_clock() -> (Self, VirtualClock, RateLimiter) {
        let (server, clock) = (Self::start(), VirtualClock::new());
        let limiter = server.limiter_on(&clock);
        (server, clock, limiter)
    }

    /// Returns a limiter on this server, as [`builder`](Self::builder) builds it.
    pub fn limiter_on(&self, clock: &VirtualClock) -> RateLimiter {
        self.builder().clock(Clock::Virtual(clock.clone())).build().expect("valid settings")
    }
}
