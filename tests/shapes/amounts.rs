//! Amounts that each call computes: `threshold` and `burst` as expressions.

use std::cell::Cell;
use std::time::Duration;

use ratelimit_runtime::{Limit, RateLimiter, Rejection, VirtualClock, current, rate_limit};
use support::clocks::embedded_on;
use support::limits::{HOUR, MINUTE, SECOND};

/// The rate of a minute, and the burst.
type Plan = (u64, Option<u64>);

#[rate_limit(name = "amounts", period = "1m", algo = "token_bucket", key = tenant,
    threshold = plan.0, burst = plan.1, cost = cost)]
async fn query(tenant: &str, plan: Plan, cost: u64) -> Result<(), Rejection> {
    tokio::task::yield_now().await;
    Ok(())
}

/// Returns the units that are left of a bucket with these amounts.
async fn left(tenant: &str, per_minute: u64, burst: u64) -> u64 {
    let limit = Limit::token_bucket("amounts", per_minute, MINUTE).burst(burst);
    current().expect("a limiter").peek(&limit, tenant, 1).await.expect("a decision").remaining
}

#[tokio::test]
async fn each_call_has_the_amounts_of_its_caller() {
    let clock = VirtualClock::new();
    let run = async {
        query("free", (6, Some(2)), 2).await.expect("admitted");
        let rejection = query("free", (6, Some(2)), 1).await.expect_err("used up");
        assert_eq!(rejection.retry_after(), Some(10 * SECOND));
        // Another plan on the same count, from the next call on.
        query("free", (600, Some(50)), 48).await.expect("admitted");
        assert_eq!(left("free", 600, 50).await, 0);
        clock.advance(SECOND);
        assert_eq!(left("free", 600, 50).await, 10);
        let rejection = query("free", (6, Some(2)), 1).await.expect_err("the old plan");
        assert!(matches!(rejection, Rejection::Limited { .. }), "{rejection:?}");
        // More distinct amounts than a function keeps.
        for round in 1..=2 {
            for per_minute in 10..60 {
                let tenant = per_minute.to_string();
                query(&tenant, (per_minute, None), 5).await.expect("admitted");
                assert_eq!(left(&tenant, per_minute, per_minute).await, per_minute - 5 * round);
            }
        }
    };
    embedded_on(&clock).scope(run).await;
}

limited! {
    (name = "amounts.optional", period = "1m", threshold = threshold)
        async fn optional(threshold: Option<u64>);
}

#[tokio::test]
async fn zero_rejects_and_none_is_no_limit() {
    for plan in [(0, None), (5, Some(0))] {
        for cost in [0, 1] {
            let rejection = query("blocked", plan, cost).await.expect_err("blocked");
            let Rejection::Blocked { name, quota, .. } = &rejection else {
                panic!("{rejection:?}")
            };
            assert_eq!((*name, quota.threshold(), quota.capacity()), ("amounts", 0, 0));
            assert_eq!(rejection.retry_after(), None);
            assert_eq!(rejection.to_string(), "requests are blocked until further notice");
        }
    }
    for _ in 0..100 {
        optional(None).await.expect("no limit");
    }
    optional(Some(1)).await.expect("the calls before were not counted");
    optional(Some(1)).await.expect_err("used up");
    let exceeding = query("plan", (5, None), 6).await;
    assert!(
        matches!(exceeding, Err(Rejection::CostExceedsCapacity { capacity: 5, varies: true, .. })),
        "{exceeding:?}"
    );
}

/// A burst that would take longer than 100 years to fill.
#[tokio::test]
async fn a_burst_that_is_too_large_is_clamped() {
    #[rate_limit(period = "365d", algo = "token_bucket", threshold = one(), burst = burst)]
    async fn slow(burst: u64) -> Result<(), Rejection> {
        Ok(())
    }
    fn one() -> u64 {
        1
    }
    for _ in 0..100 {
        slow(u64::MAX).await.expect("admitted");
    }
    slow(u64::MAX).await.expect_err("the largest burst is 100");
}

limited! {
    (
        limit(name = "amounts.all", period = "1m", threshold = 5),
        limit(name = "amounts.some", period = "1m", threshold = threshold, cost = 2),
        key = key
    ) async fn several(key: u64, threshold: Option<u64>);
}

const BURST: u64 = 4;

limited! {
    (
        limit(name = "amounts.all", period = "1m", threshold = 5),
        limit(name = "amounts.some", period = "1m", threshold = threshold, burst = BURST,
            algo = "leaky_bucket", cost = 2, settle = |_| 1),
        key = key, scope = "process"
    ) fn several_now(key: u64, threshold: Option<u64>);
}

#[tokio::test]
async fn one_of_several_limits_varies() {
    let name = |result: Result<(), Rejection>| result.expect_err("used up").name().to_owned();
    let run = async {
        several(1, Some(4)).await.expect("admitted");
        several(1, Some(4)).await.expect("admitted");
        assert_eq!(name(several(1, Some(4)).await), "amounts.some");
        several(1, None).await.expect("no limit");
        let blocked = several(1, Some(0)).await.expect_err("blocked");
        assert!(matches!(blocked, Rejection::Blocked { .. }), "{blocked:?}");
        several(1, Some(9)).await.expect("four are charged");
        several(1, Some(9)).await.expect("six are charged");
        assert_eq!(name(several(1, None).await), "amounts.all");

        several_now(3, None).expect("no limit");
        for _ in 0..3 {
            several_now(3, Some(4)).expect("a call takes one unit");
        }
        assert_eq!(name(several_now(3, Some(4))), "amounts.some");
        several_now(3, Some(0)).expect_err("blocked");
    };
    embedded_on(&VirtualClock::new()).scope(run).await;
}

trait Timed {
    const PERIOD: Duration;
}

impl Timed for u8 {
    const PERIOD: Duration = MINUTE;
}

impl Timed for u16 {
    const PERIOD: Duration = HOUR;
}

#[rate_limit(name = "generic", period = T::PERIOD, threshold = threshold)]
async fn timed<T: Timed>(threshold: u64) -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn a_generic_function_keeps_the_limits_of_its_types_apart() {
    let run = async {
        for _ in 0..2 {
            timed::<u8>(2).await.expect("a count of its own");
            timed::<u16>(2).await.expect("a count of its own");
        }
        let waits = [timed::<u8>(2).await, timed::<u16>(2).await];
        assert_eq!(
            waits.map(|it| it.expect_err("used up").retry_after()),
            [Some(MINUTE), Some(HOUR)]
        );
    };
    embedded_on(&VirtualClock::new()).scope(run).await;
}

/// Returns `value` if it is the next one to be evaluated.
fn next<T>(order: &Cell<u64>, expected: u64, value: T) -> T {
    order.set(order.get() + 1);
    assert_eq!(order.get(), expected);
    value
}

limited! {
    (name = "order", period = 60, cost = next(order, 4, 2), key = next(order, 3, 1),
     threshold = next(order, 2, 5), limiter = next(order, 1, limiter))
        async fn one(order: &Cell<u64>, limiter: &RateLimiter);
    (
        limit(name = "order.a", period = 60, threshold = next(order, 2, 5)),
        limit(name = "order.b", period = 60, threshold = next(order, 3, 9)),
        cost = next(order, 5, 2), key = next(order, 4, 1), limiter = next(order, 1, limiter)
    ) async fn two(order: &Cell<u64>, limiter: &RateLimiter);
}

/// First the limiter, then the amounts, the key and the cost.
#[tokio::test]
async fn each_argument_is_evaluated_once_and_in_order() {
    let (limiter, order) = (RateLimiter::embedded(), Cell::new(0));
    one(&order, &limiter).await.expect("admitted");
    assert_eq!(order.replace(0), 4);
    two(&order, &limiter).await.expect("admitted");
    assert_eq!(order.get(), 5);
}
