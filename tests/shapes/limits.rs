//! Where the limit of a function stands: in a text, in a constant, in several groups; and which limiter decides.

use std::sync::Arc;
use std::time::Duration;

use ratelimit_runtime::{Limit, RateLimiter, Rejection, VirtualClock, key, rate_limit};
use support::clocks::embedded_on;
use support::limits::HOUR;

limited! {
    ("2/s", key = user) async fn sliding(user: u64);
    ("1 per 30s burst 3", name = "texts.bucket", scope = "process") fn bucket();
    // The text names no algorithm.
    ("10/h burst 5", algo = "leaky_bucket", cost = 5) async fn paced() -> Option<u8> { Some(1) }
}

limited! {
    (limit("2 per minute fixed"), limit("3/day", key = user)) async fn together(user: u64);
    (limit(period = "1h", threshold = 1)) async fn only_one() -> Option<u8> { Some(1) }
}

#[tokio::test]
async fn a_text_stands_for_the_arguments_of_a_limit() {
    for _ in 0..2 {
        sliding(1).await.expect("admitted");
        together(1).await.expect("admitted");
    }
    let rejection = sliding(1).await.expect_err("used up");
    assert!(rejection.retry_after() <= Some(Duration::from_secs(1)), "{rejection:?}");
    sliding(2).await.expect("another key");
    together(2).await.expect_err("used up");
    for _ in 0..3 {
        bucket().expect("admitted");
    }
    let rejection = bucket().expect_err("used up");
    assert!(rejection.retry_after() > Some(Duration::from_secs(29)), "{rejection:?}");
    assert_eq!((paced().await, paced().await), (Some(1), None));
    assert_eq!((only_one().await, only_one().await), (Some(1), None));
}

const LOGIN: Limit = Limit::fixed("login", 2, HOUR);

struct User {
    name: String,
}

limited! {
    (limit = LOGIN, key = "{tenant}:{user.name:?}")
        async fn log_in(tenant: u8, user: User) -> Result<String, Rejection> { Ok(user.name) }
}

trait Limited {
    const LIMIT: Limit;
}

impl Limited for User {
    const LIMIT: Limit = Limit::sliding("generic", 1, HOUR);
}

#[rate_limit(limit = T::LIMIT, key = r#type)]
async fn generic<T: Limited>(r#type: u8) -> Option<u8> {
    Some(r#type)
}

/// The functions below set another policy than this constant.
const SHADOWED: Limit = Limit::fixed("shadowed", 1, HOUR).shadow(true);

limited! {
    (limit = SHADOWED) async fn shadowed() -> Option<()> { Some(()) }
    (limit = SHADOWED, shadow = false, on_error = "deny", cost = cost)
        async fn enforced(cost: u64) -> Option<()> { Some(()) }
}

/// The text of the key of the attribute reaches its count by hand, and no other text does.
#[tokio::test]
async fn limits_of_constants_are_counted_under_their_names() {
    let limiter = RateLimiter::embedded();
    let run = async {
        let user = || User { name: "a:b".into() };
        log_in(1, user()).await.expect("admitted");
        let key = {
            let (tenant, user) = (1, user());
            key!("{tenant}:{user.name:?}")
        };
        let left = async || limiter.peek(&LOGIN, key.clone(), 1).await.expect("embedded").remaining;
        assert_eq!(left().await, 1);
        log_in(1, user()).await.expect("admitted");
        log_in(1, user()).await.expect_err("used up");
        limiter.credit(&LOGIN, &key, 1).await.expect("embedded");
        assert_eq!(left().await, 1);
        assert!(limiter.reset(&LOGIN, &key).await.expect("embedded"));
        assert_eq!(left().await, 2);
        assert!(!limiter.reset(&LOGIN, "1:\"a:b\"").await.expect("embedded"));

        assert_eq!((generic::<User>(1).await, generic::<User>(1).await), (Some(1), None));
        assert_eq!(generic::<User>(2).await, Some(2));
        assert_eq!((shadowed().await, shadowed().await), (Some(()), Some(())));
        assert_eq!((enforced(1).await, enforced(0).await), (None, Some(())));
    };
    limiter.scope(run).await;
}

const PLANS: Limit = Limit::token_bucket("plans", 100, HOUR).lease(10);

limited! {
    (limit = PLANS, key = tenant, threshold = quota, burst = burst)
        async fn by_plan(tenant: &str, quota: u64, burst: Option<u64>);
    (
        limit(limit = PLANS, key = tenant, burst = 2),
        limit(limit = LOGIN, key = tenant, threshold = const { 3 }, count_if = |_| false)
    ) async fn by_plan_together(tenant: &str);
}

/// The constant gives the identity, so code elsewhere reaches the counts of each tenant.
#[tokio::test]
async fn the_amounts_of_a_call_stand_beside_a_constant() {
    let limiter = RateLimiter::embedded();
    let run = async {
        by_plan("acme", 5, Some(2)).await.expect("admitted");
        by_plan("acme", 5, Some(2)).await.expect("admitted");
        by_plan("acme", 5, Some(2)).await.expect_err("used up");
        by_plan("acme", 5, None).await.expect("a capacity of 5");
        by_plan("acme", 0, None).await.expect_err("blocked");
        by_plan_together("acme").await.expect_err("a burst of 2, which is used up");
        for _ in 0..2 {
            by_plan_together("other").await.expect("admitted");
        }
        by_plan_together("other").await.expect_err("used up");
    };
    limiter.scope(run).await;
    let acme = PLANS.try_amounts(5, None).expect("valid");
    assert_eq!(limiter.peek(&acme, "acme", 1).await.expect("embedded").remaining, 2);
    assert!(limiter.reset(&PLANS, "acme").await.expect("embedded"));
    assert_eq!(limiter.peek(&acme, "acme", 1).await.expect("embedded").remaining, 5);
    assert_eq!(limiter.peek(&LOGIN, "other", 1).await.expect("embedded").remaining, 2);
}

#[rate_limit(
    name = "upload", key = (tenant.as_str(), "{tenant}".len()),
    cost = size,
    limit(period = "1s", threshold = 100, algo = "leaky_bucket", burst = 50),
    limit(period = "1d", threshold = 120, algo = "sliding_counter"),
    limit(period = "1d", threshold = 4, cost = 1, key = address, name = "address"),
    on_limited = |rejection| Err(rejection.name().to_owned())
)]
async fn upload(tenant: String, address: [u8; 4], size: u64) -> Result<String, String> {
    Ok(tenant)
}

#[tokio::test]
async fn decides_several_limits_together() {
    // Noon, so that no window of the sliding counter ends during the test.
    let clock = VirtualClock::at(Duration::from_secs(86_400 * 20_000 + 43_200));
    let run = async {
        let upload = async |tenant: &str, size| upload(tenant.to_owned(), [1; 4], size).await;
        assert_eq!(upload("shop", 50).await.as_deref(), Ok("shop"));
        assert_eq!(upload("shop", 50).await, Err("upload#1".to_owned()));
        clock.advance(Duration::from_secs(1));
        upload("shop", 50).await.expect("admitted");
        clock.advance(Duration::from_secs(1));
        assert_eq!(upload("shop", 50).await, Err("upload#2".to_owned()));
        upload("shop", 10).await.expect("admitted");
        upload("other", 10).await.expect("admitted");
        assert_eq!(upload("shop", 0).await, Err("address".to_owned()));
    };
    embedded_on(&clock).scope(run).await;
}

struct Service {
    limiter: RateLimiter,
}

impl Service {
    fn limiter(&self) -> RateLimiter {
        self.limiter.clone()
    }

    limited! {
        (name = "limiters", period = "1h", threshold = 1, limiter = self.limiter())
            async fn by_method(&self);
        (
            limit(name = "limiters", period = "1h", threshold = 1),
            limit(name = "limiters.day", period = "1d", threshold = most),
            limiter = &self.limiter
        ) async fn together(&self, most: u64);
        (name = "limiters", period = "1h", threshold = 1, limiter = self.limiter,
            scope = "process", count_if = |_| counts) fn synchronous(&self, counts: bool);
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
        let service = || Service { limiter: RateLimiter::embedded() };
        let (one, other) = (service(), service());
        one.synchronous(false).expect("not counted");
        one.synchronous(true).expect("admitted");
        one.synchronous(true).expect_err("used up");
        one.by_method().await.expect("admitted");
        one.together(9).await.expect_err("used up");
        shared(Arc::new(one.limiter())).await.expect_err("used up");
        other.together(9).await.expect("admitted");
        other.by_method().await.expect_err("used up");
        other.synchronous(true).expect("admitted");
        // The future holds no borrow of the limiter, so it is `Send` and can move to another task.
        let spawned = tokio::spawn(shared(Arc::new(RateLimiter::embedded())));
        spawned.await.expect("no panic").expect("another limiter");
    };
    scoped.scope(run).await;
}
