//! Constants given by their paths, also associated constants of a type parameter.

use std::time::Duration;

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

const PERIOD: Duration = Duration::from_secs(3600);

mod config {
    pub(crate) const CALLS: u64 = 2;
}

#[rate_limit(period = PERIOD, threshold = config::CALLS)]
async fn by_path() -> Result<(), Rejection> {
    Ok(())
}

trait Plan {
    const CALLS: u64;
    const BURST: u64;
    const PERIOD: Duration;
}

struct Free;

impl Plan for Free {
    const CALLS: u64 = 1;
    const BURST: u64 = 2;
    const PERIOD: Duration = PERIOD;
}

impl Free {
    const MAX: u64 = 1;

    #[rate_limit(period = PERIOD, threshold = Self::MAX, algo = "fixed")]
    async fn by_self(&self) -> Option<()> {
        Some(())
    }
}

#[rate_limit(
    period = <P as Plan>::PERIOD,
    threshold = P::CALLS,
    algo = "token_bucket",
    burst = P::BURST,
    cost = P::CALLS
)]
async fn by_parameter<P: Plan>() -> Option<()> {
    Some(())
}

async fn run() {
    assert!(by_path().await.is_ok());
    assert!(by_path().await.is_ok());
    assert!(by_path().await.is_err());

    assert!(Free.by_self().await.is_some());
    assert!(Free.by_self().await.is_none());

    assert!(by_parameter::<Free>().await.is_some());
    assert!(by_parameter::<Free>().await.is_some());
    assert!(by_parameter::<Free>().await.is_none());
}

#[tokio::test]
async fn reads_constants_by_path() {
    RateLimiter::embedded().scope(run()).await;
}
