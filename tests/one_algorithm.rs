//! A program that names one algorithm; `tests/linked.rs` looks at what it contains.

use std::time::Duration;

use ratelimit_runtime::{Limit, RateLimiter};

fn main() {
    let limit = Limit::token_bucket("one", 1, Duration::from_secs(1));
    let result = RateLimiter::embedded().check_now(&limit, "key", 1);
    assert!(result.is_ok(), "{result:?}");
}
