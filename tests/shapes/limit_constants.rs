//! `limit = PATH`: a limit that is declared elsewhere, whose counts other code can reach, with `key!`.

use std::time::Duration;

use ratelimit_runtime::{Limit, RateLimiter, Rejection, Source, key, rate_limit};

const HOUR: Duration = Duration::from_secs(3_600);
const LOGIN: Limit = Limit::fixed("login", 2, HOUR);

#[rate_limit(limit = LOGIN, key = "{tenant}:{user.name:?}")]
async fn log_in(tenant: u8, user: User) -> Result<String, Rejection> {
    Ok(user.name)
}

struct User {
    name: String,
}

/// Two keys whose texts differ only in where a value ends, and the text of the attribute's key by hand.
async fn reaches_the_counts_of_a_function() {
    let limiter = ratelimit_runtime::current().expect("the limiter of the scope");
    let user = || User { name: "a:b".into() };
    assert!(log_in(1, user()).await.is_ok());
    let key = {
        let (tenant, user) = (1, user());
        key!("{tenant}:{user.name:?}")
    };
    let left = async || limiter.peek(&LOGIN, key.clone(), 1).await.expect("embedded").remaining;
    assert_eq!(left().await, 1);
    assert!(log_in(1, user()).await.is_ok());
    assert!(log_in(1, user()).await.is_err());
    limiter.credit(&LOGIN, &key, 1).await.expect("embedded");
    assert_eq!(left().await, 1);
    assert!(limiter.reset(&LOGIN, &key).await.expect("embedded"));
    assert_eq!(left().await, 2);
    assert!(!limiter.reset(&LOGIN, "1:\"a:b\"").await.expect("embedded"));
}

#[rate_limit(limit = LOGIN, key = "{type}")]
async fn by_keyword(r#type: u8) -> Option<u8> {
    Some(r#type)
}

struct Mailer;

impl Mailer {
    const MAILS: Limit = Limit::token_bucket("mails", 1, HOUR);

    #[rate_limit(limit = Self::MAILS, key = key)]
    async fn send(&self, key: u8) -> Option<u8> {
        Some(key)
    }
}

trait Limited {
    const LIMIT: Limit;
}

impl Limited for Mailer {
    const LIMIT: Limit = Limit::sliding("generic", 1, HOUR);
}

#[rate_limit(limit = T::LIMIT)]
async fn generic<T: Limited>() -> Option<()> {
    Some(())
}

/// The functions below set another policy than this constant.
const SHADOWED: Limit = Limit::fixed("shadowed", 1, HOUR).shadow(true);

#[rate_limit(limit = SHADOWED)]
async fn shadowed() -> Option<()> {
    Some(())
}

#[rate_limit(limit = SHADOWED, shadow = false, on_error = "deny", cost = cost)]
async fn enforced(cost: u64) -> Option<()> {
    Some(())
}

const BY_USER: Limit = Limit::fixed("by_user", 1, HOUR);

#[rate_limit(limit(limit = BY_USER, key = user), limit(period = "1h", threshold = 3))]
async fn several(user: u8) -> Result<(), Rejection> {
    Ok(())
}

async fn run() {
    reaches_the_counts_of_a_function().await;
    assert_eq!(by_keyword(3).await, Some(3));
    let r#type = 3;
    let of_keyword = ratelimit_runtime::current().expect("the limiter of the scope");
    assert!(of_keyword.reset(&LOGIN, key!("{type}")).await.expect("embedded"));
    assert_eq!((Mailer.send(1).await, Mailer.send(1).await), (Some(1), None));
    assert_eq!(Mailer.send(2).await, Some(2));
    assert_eq!((generic::<Mailer>().await, generic::<Mailer>().await), (Some(()), None));
    assert_eq!((shadowed().await, shadowed().await), (Some(()), Some(())));
    assert_eq!((enforced(1).await, enforced(0).await), (None, Some(())));
    assert!(several(1).await.is_ok());
    assert_eq!(several(1).await.expect_err("limited").name(), "by_user");
    let limiter = ratelimit_runtime::current().expect("the limiter of the scope");
    let peek = limiter.peek(&BY_USER, 1, 1).await.expect("embedded");
    assert_eq!((peek.remaining, peek.source), (0, Source::Embedded));
}

#[tokio::test]
async fn limits_of_constants_are_counted_under_their_names() {
    RateLimiter::embedded().scope(run()).await;
}

const PLANS: Limit = Limit::token_bucket("plans", 100, HOUR).lease(10);

#[rate_limit(limit = PLANS, key = tenant, threshold = quota, burst = burst)]
async fn by_plan(tenant: &str, quota: u64, burst: Option<u64>) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(
    limit(limit = PLANS, key = tenant, burst = 2),
    limit(limit = LOGIN, key = tenant, threshold = const { 3 }, count_if = |_| false),
)]
async fn by_plan_together(tenant: &str) -> Result<(), Rejection> {
    Ok(())
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
        // A burst of 2, which is used up.
        by_plan_together("acme").await.expect_err("used up");
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
