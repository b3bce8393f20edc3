//! A crate that limits its functions through a facade, and does not depend on the runtime.

#![cfg(test)]

use std::fmt::Debug;
use std::time::Duration;

use acme::limits::{self, Limit, RateLimiter, Rejection, key, rate_limit};

const LOGIN: Limit = Limit::sliding("login", 1, Duration::from_secs(3600));

#[rate_limit(limit = LOGIN, key = "{tenant}:{user:?}", crate = acme::limits)]
async fn log_in(tenant: u64, user: &str) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(
    limit(period = 1, threshold = most, algo = "token_bucket", burst = 5, key = "{most}"),
    limit(in_flight = 2, hold = "30s"),
    limit(limit = LOGIN, count_if = Result::is_err, block = |_| None),
    wait = "1s", crate = ::acme::limits
)]
async fn several(most: u64) -> Result<u64, Rejection> {
    Ok(most)
}

#[rate_limit("1/h", scope = "process", shadow = true, crate = self::limits)]
fn synchronous() -> impl Debug {
    "done"
}

mod deeper {
    use super::limits;

    #[limits::rate_limit(period = "1h", threshold = 1, crate = super::limits, key = "{id}")]
    pub(super) async fn relative(id: u8) -> Option<u8> {
        Some(id)
    }
}

#[tokio::test]
async fn a_facade_is_enough() {
    let limiter = RateLimiter::embedded();
    let run = async {
        assert!(log_in(1, "ann").await.is_ok());
        assert!(log_in(1, "ann").await.is_err());
        let (tenant, user) = (1, "ann");
        assert_eq!(limiter.reset(&LOGIN, key!("{tenant}:{user:?}")).await, Ok(true));
        assert_eq!(several(7).await.expect("admitted"), 7);
        assert_eq!(format!("{:?}", synchronous()), r#"Ok("done")"#);
        assert_eq!((deeper::relative(1).await, deeper::relative(1).await), (Some(1), None));
    };
    limiter.scope(run).await;
}
