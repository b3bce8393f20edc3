//! `scope`, `on_error`, `shadow`, `lease` and `wait` have their effect.

use std::time::Duration;

use ratelimit_runtime::{OnError, RateLimiter, rate_limit};

const LEASE: u64 = 1;
const WAIT: Duration = Duration::from_millis(1);

/// Functions that admit one call, unless their policies admit more: which of two calls are admitted without Redis, and
/// which on a store that works.
macro_rules! functions {
    ($($name:ident($($policy:tt)*): $without:expr, $with:expr;)*) => {
        $(
            #[rate_limit(period = "1h", threshold = 1, $($policy)*)]
            async fn $name() -> Option<()> {
                Some(())
            }
        )*

        #[tokio::test]
        async fn policies_decide_with_and_without_redis() {
            // No server listens on port 1.
            let limiter = RateLimiter::builder().redis("redis://127.0.0.1:1").on_error(OnError::Deny);
            let (limiter, embedded) = (limiter.build().expect("valid"), RateLimiter::embedded());
            $(
                let twice = async || [$name().await.is_some(), $name().await.is_some()];
                assert_eq!(limiter.scope(twice()).await, $without, "{} without Redis", stringify!($name));
                assert_eq!(embedded.scope(twice()).await, $with, stringify!($name));
            )*
        }
    };
}

functions! {
    process(scope = "process"): [true, false], [true, false];
    local(scope = "global", on_error = "local"): [true, false], [true, false];
    allow(on_error = "allow"): [true, true], [true, false];
    deny(on_error = "deny"): [false, false], [true, false];
    default_policy(): [false, false], [true, false];
    shadow(shadow = true, on_error = "deny"): [true, true], [true, true];
    no_shadow(shadow = false): [false, false], [true, false];
    leased(lease = LEASE): [false, false], [true, false];
    waits_too_short(wait = WAIT): [false, false], [true, false];
}
