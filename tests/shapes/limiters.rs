//! Functions whose attribute names the limiter that decides.

use std::cell::Cell;
use std::sync::Arc;

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

struct Service {
    limiter: RateLimiter,
}

impl Service {
    fn new() -> Self {
        Self { limiter: RateLimiter::embedded() }
    }

    fn limiter(&self) -> RateLimiter {
        self.limiter.clone()
    }

    #[rate_limit(name = "limiters", period = "1h", threshold = 1, limiter = self.limiter)]
    async fn by_field(&self) -> Result<(), Rejection> {
        Ok(())
    }

    #[rate_limit(name = "limiters", period = "1h", threshold = 1, limiter = self.limiter())]
    async fn by_method(&self) -> Result<(), Rejection> {
        Ok(())
    }

    #[rate_limit(
        limit(name = "limiters", period = "1h", threshold = 1),
        limit(name = "limiters.day", period = "1d", threshold = most),
        limiter = &self.limiter
    )]
    async fn together(&self, most: u64) -> Result<(), Rejection> {
        Ok(())
    }

    #[rate_limit(
        name = "limiters", period = "1h", threshold = 1, limiter = self.limiter, scope = "process",
        count_if = |_| counts
    )]
    fn synchronous(&self, counts: bool) -> Result<(), Rejection> {
        Ok(())
    }
}

#[rate_limit(name = "limiters", period = "1h", threshold = 1, limiter = limiter)]
async fn shared(limiter: Arc<RateLimiter>) -> Result<(), Rejection> {
    drop(limiter);
    Ok(())
}

/// All of them count on the limiter of the service, and on no other.
#[tokio::test]
async fn the_limiter_that_the_attribute_names_decides() {
    let scoped = RateLimiter::embedded();
    let run = async {
        let (one, other) = (Service::new(), Service::new());
        one.synchronous(false).expect("not counted");
        one.synchronous(true).expect("admitted");
        one.synchronous(true).expect_err("used up");
        one.by_field().await.expect("admitted");
        one.by_method().await.expect_err("used up");
        one.together(9).await.expect_err("used up");
        shared(Arc::new(one.limiter())).await.expect_err("used up");
        other.together(9).await.expect("admitted");
        other.by_field().await.expect_err("used up");
        other.synchronous(true).expect("admitted");
    };
    scoped.scope(run).await;
}

/// First the limiter, then the amounts.
#[tokio::test]
async fn the_limiter_is_evaluated_once_before_the_amounts() {
    fn next<T>(order: &Cell<u64>, expected: u64, value: T) -> T {
        order.set(order.get() + 1);
        assert_eq!(order.get(), expected);
        value
    }
    #[rate_limit(
        name = "order", period = 60, key = next(order, 3, 1), threshold = next(order, 2, 5),
        limiter = next(order, 1, limiter)
    )]
    async fn one(order: &Cell<u64>, limiter: &RateLimiter) -> Result<(), Rejection> {
        Ok(())
    }
    #[rate_limit(
        limit(period = 60, threshold = next(order, 2, 5)), limit(period = 3600, threshold = 9),
        key = next(order, 3, 1), limiter = next(order, 1, limiter)
    )]
    async fn two(order: &Cell<u64>, limiter: &RateLimiter) -> Result<(), Rejection> {
        Ok(())
    }
    let (limiter, order) = (RateLimiter::embedded(), Cell::new(0));
    one(&order, &limiter).await.expect("admitted");
    assert_eq!(order.replace(0), 3);
    two(&order, &limiter).await.expect("admitted");
    assert_eq!(order.get(), 3);
}

/// The future holds no borrow of the limiter, so it is `Send` and can move to another task.
#[tokio::test]
async fn a_future_with_a_limiter_can_be_spawned() {
    let limiter = Arc::new(RateLimiter::embedded());
    tokio::spawn(shared(Arc::clone(&limiter))).await.expect("no panic").expect("admitted");
    tokio::spawn(shared(limiter)).await.expect("no panic").expect_err("used up");
}
