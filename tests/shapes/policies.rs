//! `scope`, `on_error`, `shadow`, `lease` and `wait` have their effect.

use std::time::Duration;

use ratelimit_runtime::{OnError, RateLimiter, rate_limit};

const LEASE: u64 = 1;
const WAIT: Duration = Duration::from_millis(1);

/// Functions that admit one call, unless their policies admit more.
macro_rules! functions {
    ($($name:ident($($policy:tt)*);)*) => {$(
        #[rate_limit(period = "1h", threshold = 1, $($policy)*)]
        async fn $name() -> Option<()> {
            Some(())
        }
    )*};
}

functions! {
    process(scope = "process");
    local(scope = "global", on_error = "local");
    allow(on_error = "allow");
    deny(on_error = "deny");
    default_policy();
    shadow(shadow = true, on_error = "deny");
    no_shadow(shadow = false);
    leased(lease = LEASE);
    waits_too_short(wait = WAIT);
}

async fn twice(call: impl AsyncFn() -> Option<()>) -> [bool; 2] {
    [call().await.is_some(), call().await.is_some()]
}

/// No server listens on port 1.
#[tokio::test]
async fn applies_on_error_without_redis() {
    let limiter = RateLimiter::builder().redis("redis://127.0.0.1:1").on_error(OnError::Deny);
    let run = async {
        assert_eq!(twice(process).await, [true, false]);
        assert_eq!(twice(local).await, [true, false]);
        assert_eq!(twice(allow).await, [true, true]);
        assert_eq!(twice(deny).await, [false, false]);
        assert_eq!(twice(default_policy).await, [false, false]);
        assert_eq!(twice(shadow).await, [true, true]);
    };
    limiter.build().unwrap().scope(run).await;
}

#[tokio::test]
async fn decides_when_the_store_works() {
    let run = async {
        assert_eq!(twice(deny).await, [true, false]);
        assert_eq!(twice(allow).await, [true, false]);
        assert_eq!(twice(shadow).await, [true, true]);
        assert_eq!(twice(no_shadow).await, [true, false]);
        assert_eq!(twice(leased).await, [true, false]);
        assert_eq!(twice(waits_too_short).await, [true, false]);
    };
    RateLimiter::embedded().scope(run).await;
}
