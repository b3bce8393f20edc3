//! The limiters that decide in this process: this library, and limiters from crates.io, each as its documentation
//! recommends.

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use governor::{DefaultKeyedRateLimiter, Quota};
use ratelimit_runtime::{Algorithm, Limit, RateLimiter};
use throttle_kit::{InMemoryBackend, RateLimitBackend};
use trypema::local::LocalRateLimiterProvider;
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use crate::PERIOD;
use crate::table::{Column, Kind};

/// Decides one call.
#[allow(clippy::ptr_arg, reason = "governor borrows a `String`")]
pub(crate) trait Decides: Sync {
    fn admits(&self, key: &String) -> bool;
}

/// The limiters with keys. [`keyed`] creates them by name. They admit `threshold` calls of a key in [`PERIOD`].
pub(crate) const KEYED: [&str; 4] = ["ours", "governor", "throttle-kit", "trypema"];

pub(crate) fn keyed(name: &str, threshold: u32) -> Box<dyn Decides> {
    match name {
        "ours" => Box::new(Ours::new(Algorithm::TokenBucket, threshold)),
        "ours, sliding" => Box::new(Ours::new(Algorithm::Sliding, threshold)),
        "governor" => Box::new(DefaultKeyedRateLimiter::<String>::keyed(quota(threshold))),
        "throttle-kit" => Box::new(ThrottleKit::new(threshold)),
        "trypema" => Box::new(Trypema::new(threshold)),
        _ => unreachable!("no limiter {name}"),
    }
}

pub(crate) fn column(name: &str) -> Column {
    Column::new(name, if name.starts_with("ours") { Kind::Ours } else { Kind::Peer })
}

/// Returns the reply of the embedded store, which is ready at once.
#[allow(
    clippy::inline_always,
    reason = "applications also compile the future into the function that awaits it"
)]
#[inline(always)]
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("the embedded store answers at once"),
    }
}

pub(crate) struct Ours {
    limiter: RateLimiter,
    limit: Limit,
}

impl Ours {
    pub(crate) fn new(algorithm: Algorithm, threshold: u32) -> Self {
        let limiter = RateLimiter::builder().max_keys(20_000_000).build().expect("valid");
        let mut limit = Limit::new("bench", algorithm, threshold.into(), PERIOD).expect("valid");
        if algorithm == Algorithm::LeakyBucket {
            limit = limit.burst(threshold.into());
        }
        Self::of(limiter, limit)
    }

    pub(crate) fn of(limiter: RateLimiter, limit: Limit) -> Self {
        Self { limiter, limit }
    }
}

impl Decides for Ours {
    fn admits(&self, key: &String) -> bool {
        ready(self.limiter.check(&self.limit, key, 1)).is_ok()
    }
}

pub(crate) fn quota(threshold: u32) -> Quota {
    let threshold = NonZeroU32::new(threshold).expect("above zero");
    let quota = Quota::with_period(PERIOD / threshold.get()).expect("above zero");
    quota.allow_burst(threshold)
}

impl Decides for DefaultKeyedRateLimiter<String> {
    /// For a rejection, also requests the wait. All other limiters return the wait with the rejection.
    fn admits(&self, key: &String) -> bool {
        let decision = self.check_key(key).map_err(|rejected| {
            let now = governor::clock::Clock::now(self.clock());
            std::hint::black_box(rejected.wait_time_from(now));
        });
        decision.is_ok()
    }
}

struct ThrottleKit {
    backend: InMemoryBackend,
    quota: throttle_kit::Quota,
}

impl ThrottleKit {
    fn new(threshold: u32) -> Self {
        let quota = throttle_kit::Quota::from_parts(PERIOD / threshold, threshold);
        Self { backend: InMemoryBackend::new(), quota }
    }
}

impl Decides for ThrottleKit {
    fn admits(&self, key: &String) -> bool {
        ready(self.backend.check(key, &self.quota)).allowed
    }
}

struct Trypema {
    provider: Arc<LocalRateLimiterProvider>,
    rate: RateLimit,
}

impl Trypema {
    fn new(threshold: u32) -> Self {
        let provider = LocalRateLimiterProvider::builder().window_size(trypema_window());
        let provider = provider.bucket_size(BucketSize::milliseconds_or_panic(10));
        Self { provider: provider.build().expect("valid"), rate: trypema_rate(threshold) }
    }
}

impl Decides for Trypema {
    fn admits(&self, key: &String) -> bool {
        let decision = self.provider.absolute().inc(key, &self.rate, 1);
        matches!(decision, RateLimitDecision::Allowed)
    }
}

pub(crate) fn trypema_window() -> WindowSize {
    WindowSize::seconds_or_panic(PERIOD.as_secs())
}

pub(crate) fn trypema_rate(threshold: u32) -> RateLimit {
    RateLimit::per_second_or_panic(f64::from(threshold) / PERIOD.as_secs_f64())
}
