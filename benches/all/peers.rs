//! The limiters that decide in this process: this library, and limiters from crates.io, each as its documentation
//! recommends.

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota};
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

/// The limiters without keys.
pub(crate) const KEYLESS: [&str; 4] = ["ours", "governor", "ratelimit", "leaky-bucket"];

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

pub(crate) fn keyless(name: &str, threshold: u32) -> Box<dyn Decides> {
    match name {
        "ours" => Box::new(Keyless(Ours::new(Algorithm::TokenBucket, threshold))),
        "governor" => Box::new(DefaultDirectRateLimiter::direct(quota(threshold))),
        "ratelimit" => {
            let limiter = ratelimit::Ratelimiter::builder(threshold.into()).period(PERIOD);
            let limiter = limiter.max_tokens(threshold.into()).initial_available(threshold.into());
            Box::new(limiter.build().expect("valid"))
        }
        "leaky-bucket" => {
            let each = PERIOD / threshold;
            let interval = each.max(Duration::from_millis(1));
            let tokens = threshold as usize;
            let mut limiter = leaky_bucket::RateLimiter::builder();
            limiter.initial(tokens).max(tokens).interval(interval).refill(1);
            Box::new(limiter.build())
        }
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
        Self::bounded(algorithm, threshold, 20_000_000)
    }

    /// Creates a limiter whose store holds at most `max_keys` keys.
    pub(crate) fn bounded(algorithm: Algorithm, threshold: u32, max_keys: usize) -> Self {
        let limiter = RateLimiter::builder().max_keys(max_keys).build().expect("valid");
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

struct Keyless(Ours);

impl Decides for Keyless {
    fn admits(&self, _key: &String) -> bool {
        ready(self.0.limiter.check(&self.0.limit, (), 1)).is_ok()
    }
}

pub(crate) fn quota(threshold: u32) -> Quota {
    let threshold = NonZeroU32::new(threshold).expect("above zero");
    let quota = Quota::with_period(PERIOD / threshold.get()).expect("above zero");
    quota.allow_burst(threshold)
}

/// For a rejection, also requests the wait. All other limiters return the wait with the rejection.
macro_rules! governor {
    ($limiter:ty, $admits:expr) => {
        impl Decides for $limiter {
            fn admits(&self, key: &String) -> bool {
                let admits: fn(&$limiter, &String) -> Result<(), _> = $admits;
                admits(self, key)
                    .map_err(|refused: governor::NotUntil<_>| {
                        let now = governor::clock::Clock::now(self.clock());
                        std::hint::black_box(refused.wait_time_from(now));
                    })
                    .is_ok()
            }
        }
    };
}

governor!(DefaultKeyedRateLimiter<String>, |limiter, key| limiter.check_key(key));
governor!(DefaultDirectRateLimiter, |limiter, _| limiter.check());

impl Decides for ratelimit::Ratelimiter {
    fn admits(&self, _key: &String) -> bool {
        self.try_wait().is_ok()
    }
}

impl Decides for leaky_bucket::RateLimiter {
    fn admits(&self, _key: &String) -> bool {
        self.try_acquire(1)
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
