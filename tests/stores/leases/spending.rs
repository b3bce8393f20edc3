//! Leases: units that a process charges in advance and spends locally. The limit holds, also beside calls with other
//! amounts, idle units return to the store within their term, and dropped callers lose no units.

use ratelimit_runtime::{Align, Mistake, Part, rate_limit};
use support::ALGORITHMS;
use support::limits::is_bucket;

use super::*;
use crate::on_both_stores;

#[tokio::test]
async fn most_calls_spend_leased_units_without_a_request() {
    let (server, _clock, limiter) = Server::with_clock();
    let mut by_redis = 0;
    for spent in 1..=300 {
        // A shadow spends them, too.
        let limit = LEASED.shadow(spent % 2 == 0);
        let admitted = limiter.check(&limit, "key", 1).await.expect("admitted");
        assert!(admitted.allowed && admitted.limit == 1_000 && admitted.retry_after.is_zero());
        assert_eq!(admitted.remaining, 1_000 - spent, "as if Redis had decided each call");
        by_redis += u64::from(admitted.source == Source::Redis);
        assert!([Source::Redis, Source::Lease].contains(&admitted.source));
    }
    // Leases of 1, 2, 4, 8, 16, 32 and then 50 units.
    assert_eq!((by_redis, server.script_calls()), (11, 11));
}

#[tokio::test]
async fn the_embedded_store_does_not_lease() {
    let test = TestLimiter::embedded();
    for limit in [LEASED, Limit::fixed("leases", 1_000, MINUTE).auto_lease()] {
        for spent in 1..=1_000 {
            let decision = test.decide(&limit, 1).await;
            assert_eq!((decision.source, decision.remaining), (Source::Embedded, 1_000 - spent));
        }
        let rejected = test.decide(&limit, 1).await;
        // No term is added to the wait.
        assert_eq!((rejected.allowed, rejected.retry_after), (false, MINUTE));
    }
}

/// The second window begins before the term of the leases ends.
#[tokio::test]
async fn units_of_a_window_are_not_spent_in_the_next_one() {
    let server = Server::start();
    let windows = [Limit::fixed("opened", 1_000, MINUTE), Limit::fixed("aligned", 1_000, MINUTE)];
    for limit in [windows[0].lease(50), windows[1].align(Align::UTC).lease(50)] {
        let clock = VirtualClock::at(MINUTE * 30_000_000);
        let limiter = server.limiter_on(&clock);
        assert_eq!(spend(&limiter, &limit, 1).await, 1);
        clock.advance(MINUTE - TERM / 2);
        assert_eq!(spend(&limiter, &limit, 70).await, 70);
        clock.advance(TERM / 2);
        assert_eq!(spend(&limiter, &limit, 2_000).await, 1_000, "{limit:?}");
    }
}

/// The `retry_after` of a rejection includes the term of the leases, and is tight.
#[tokio::test]
async fn a_retry_at_retry_after_is_admitted() {
    let (_server, clock, limiter) = Server::with_clock();
    assert_eq!(spend(&limiter, &LEASED, 1_001).await, 1_000);
    let rejected = decision(limiter.check(&LEASED, "key", 1).await);
    assert_eq!((rejected.allowed, rejected.retry_after), (false, MINUTE + TERM));
    let shadow = limiter.check(&LEASED.shadow(true), "key", 1).await.expect("a shadow admits");
    assert!(!shadow.allowed);
    clock.advance(rejected.retry_after - Duration::from_micros(1));
    assert_eq!(spend(&limiter, &LEASED, 1).await, 0);
    clock.advance(Duration::from_micros(1));
    assert_eq!(spend(&limiter, &LEASED, 1_001).await, 1_000);
    // The units that a bucket keeps for a term are not available to a single call.
    let bucket = Limit::token_bucket("leases", 1_000, MINUTE).burst(500).lease(50);
    let costly = limiter.check(&bucket, "key", 491).await;
    assert!(matches!(costly, Err(Rejection::CostExceedsCapacity { capacity: 490, .. })));
}

#[tokio::test]
async fn calls_with_different_costs_spend_leased_units() {
    let (server, clock, limiter) = Server::with_clock();
    let mut spent = 0;
    for cost in [3, 1, 7, 2, 40, 1, 5].into_iter().cycle() {
        if spent + cost > 1_000 {
            break;
        }
        // Units that are held and do not suffice go back before the next request arrives.
        let decision = limiter.check(&LEASED, "key", cost).await.expect("admitted");
        spent += cost;
        limiter.check(&LEASED, "key", 0).await.expect("a cost of zero is admitted");
        assert!(decision.remaining <= 1_000 - spent);
    }
    limiter.shutdown().await.expect("the leases are returned");
    assert_eq!(remaining(&server, &clock, &LEASED).await, 1_000 - spent);
    let rejected = decision(limiter.check(&LEASED, "key", 101).await);
    assert_eq!((rejected.allowed, rejected.remaining), (false, 1_000 - spent));
}

#[tokio::test]
async fn peek_reset_refund_and_several_limits_go_to_the_store() {
    let (_server, _clock, limiter) = Server::with_clock();
    assert_eq!(spend(&limiter, &LEASED, 65).await, 65);
    let peek = limiter.peek(&LEASED, "key", 1).await.expect("a peek");
    assert_eq!((peek.remaining, peek.source), (1_000 - 65, Source::Redis));
    // The limiter holds 48 units.
    let other = Limit::fixed("other", 10_000, MINUTE);
    let both = [Part::new(&LEASED, &"key", 1), Part::new(&other, &"key", 1)];
    let together = limiter.check_all(&both).await.expect("admitted");
    assert_eq!((together.remaining, together.source), (1_000 - 113 - 1, Source::Redis));
    // One limit is checked as by `check`.
    let alone = limiter.check_all(&both[..1]).await.expect("admitted");
    assert_eq!(alone.source, Source::Lease);
    let refund = limiter.credit(&LEASED, "key", 1).await.expect("the leases are returned");
    assert_eq!(refund.remaining, 1_000 - 113);
    limiter.reset(&LEASED, "key").await.expect("a reset");
    let first = limiter.check(&LEASED, "key", 1).await.expect("admitted");
    assert_eq!((first.remaining, first.source), (999, Source::Redis));
}

#[tokio::test]
async fn dropped_calls_lose_no_units() {
    let (server, clock, limiter) = Server::with_clock();
    for round in 0..50_u64 {
        let calls = (0..20).map(|_| tokio::spawn(limiter.check(&LEASED, "key", 1)));
        let calls: Vec<_> = calls.collect();
        // Every second call is dropped. Some of them have been polled before.
        for _ in 0..round % 4 {
            tokio::task::yield_now().await;
        }
        calls.iter().step_by(2).for_each(tokio::task::JoinHandle::abort);
        // A call may have been admitted before it was dropped.
        join_all(calls).await;
        assert_eq!(spend(&limiter, &LEASED, 1).await, 1);
        limiter.reset(&LEASED, "key").await.expect("a reset");
    }
    // The call is dropped while its request is pending.
    server.pause_writes();
    let mut only = Box::pin(limiter.check(&LEASED, "key", 7));
    assert!(only.as_mut().now_or_never().is_none());
    drop(only);
    server.resume();
    wait_until(async || limiter.peek(&LEASED, "key", 1).await.expect("a peek").remaining == 1_000)
        .await;
    limiter.shutdown().await.expect("the leases are returned");
    wait_until_left(&server, &clock, 1_000).await;
}

/// If no units are left, calls of different costs do not queue for the requests of each other.
#[tokio::test]
async fn concurrent_rejections_of_many_costs_share_requests() {
    let (server, _clock, limiter) = Server::with_clock();
    limiter.check(&LEASED, "key", 1_000).await.expect("the whole capacity");
    let before = server.script_calls();
    let checks = (0..2_000).map(|call| limiter.check(&LEASED, "key", 2 + call % 900));
    for result in join_all(checks).await {
        let rejected = decision(result);
        assert_eq!((rejected.allowed, rejected.source), (false, Source::Redis));
    }
    let calls = server.script_calls() - before;
    assert!(calls < 450, "{calls} scripts for 900 costs");
}

/// A reset drops the leased units, also those of a lease that was pending.
#[tokio::test]
async fn a_reset_drops_leased_units() {
    let (_server, _clock, limiter) = Server::with_clock();
    assert_eq!(spend(&limiter, &LEASED, 70).await, 70);
    let reset = limiter.reset(&LEASED, "key");
    assert_eq!(spend(&limiter, &LEASED, 60).await, 60);
    reset.await.expect("reset");
    let free = limiter.check(&LEASED, "key", 0).await.expect("admitted");
    assert_eq!((free.remaining, free.source), (1_000, Source::Redis));
    assert_eq!(spend(&limiter, &LEASED, 2_000).await, 1_000);
}

/// A process that holds units of a large plan decides calls of a small plan by the small plan.
#[tokio::test]
async fn calls_do_not_spend_units_of_another_plan() {
    let server = Server::start();
    for algorithm in ALGORITHMS {
        let clock = VirtualClock::new();
        let limiter = server.limiter_on(&clock);
        let plan = |threshold| support::limits::limit("plans", algorithm, threshold, MINUTE);
        let (large, small) = (plan(1_000).lease(50), plan(10).lease(5));
        // Leases of 1, 2, 4, 8, 16 and 32 units: the process holds 8.
        assert_eq!(spend(&limiter, &large, 55).await, 55);
        assert_eq!(spend(&limiter, &small, 5).await, 0, "{algorithm}: 63 units are charged");
        let large_call = limiter.check(&small, "key", 20).await;
        let is_refused = matches!(large_call, Err(Rejection::CostExceedsCapacity { .. }));
        assert!(is_refused, "{algorithm}: {large_call:?}");
        let peek = decision(limiter.peek(&small, "key", 1).await);
        assert_eq!((peek.allowed, peek.remaining), (false, 0), "{algorithm}");
        // The units of the large plan are still leased, whatever a call leases at most.
        for same in [large, plan(1_000).lease(5)] {
            assert_eq!(source(&limiter, &same).await, Source::Lease, "{algorithm}");
        }
    }
}

/// Units that are not spent go back under the plan that charged them, and then calls of the other plan lease.
#[tokio::test]
async fn units_of_another_plan_go_back() {
    let (server, clock, limiter) = Server::with_clock();
    let other = Limit::sliding("leases", 2_000, MINUTE).lease(50);
    assert_eq!(spend(&limiter, &LEASED, 55).await, 55);
    assert_eq!(spend(&limiter, &other, 10).await, 10);
    assert_eq!(remaining(&server, &clock, &LEASED).await, 1_000 - 63 - 10);
    clock.advance(TERM);
    wait_until_left(&server, &clock, 1_000 - 65).await;
    assert_eq!(spend(&limiter, &other, 20).await, 20);
    assert_eq!(source(&limiter, &other).await, Source::Lease);
    clock.advance(TERM);
    wait_until(async || remaining(&server, &clock, &other).await == 2_000 - 86).await;
}

// Automatic leases: only busy keys are leased, and never more than one percent of the threshold stands idle.

/// So many calls of a key within a term make it busy.
const BUSY: u64 = 8;

const WINDOW: Limit = Limit::sliding("auto", 10_000, MINUTE).auto_lease();
const BUCKET: Limit = Limit::token_bucket("auto", 10_000, MINUTE).burst(5_000).auto_lease();

/// Makes calls, and returns whether Redis has decided each of them.
async fn are_decided_by_redis(limiter: &RateLimiter, limit: &Limit, key: &str, calls: u64) -> bool {
    let mut all = true;
    for _ in 0..calls {
        all &= limiter.check(limit, key, 1).await.expect("admitted").source == Source::Redis;
    }
    all
}

#[tokio::test]
async fn a_busy_key_is_leased_until_a_shutdown_and_little_stands_idle() {
    for limit in [WINDOW, BUCKET, Limit::fixed("auto", 10_000, MINUTE).auto_lease()] {
        let (server, clock, limiter) = Server::with_clock();
        let most_idle = limit.capacity() / 100;
        // A bucket withholds what refills in a term.
        let kept = if is_bucket(limit.algorithm()) { 100 } else { 0 };
        let full = remaining(&server, &clock, &limit).await;
        for round in 1..=40 {
            assert_eq!(spend(&limiter, &limit, 100).await, 100);
            let charged = full - remaining(&server, &clock, &limit).await;
            let spent = round * 100;
            assert!((spent..=spent + most_idle + kept).contains(&charged), "{charged} for {spent}");
        }
        let scripts = server.script_calls() - 41;
        assert!(scripts < 4_000 / most_idle + 2 * BUSY, "{limit:?}: {scripts} scripts");
        assert!(are_decided_by_redis(&limiter, &limit, "few calls", BUSY - 1).await, "{limit:?}");
        clock.advance(TERM);
        if !is_bucket(limit.algorithm()) {
            wait_until(async || remaining(&server, &clock, &limit).await == full - 4_000).await;
        }
        limiter.shutdown().await.expect("the units are returned");
        assert!(are_decided_by_redis(&limiter, &limit, "key", 2 * BUSY).await, "{limit:?}");
    }
}

/// While a key is leased, the burst of a bucket is smaller by what refills in a term: 100 tokens in 600 ms.
#[tokio::test]
async fn a_bucket_has_its_whole_burst_while_it_is_not_leased() {
    let (server, clock, limiter) = Server::with_clock();
    assert_eq!(limiter.check(&BUCKET, "whole", 5_000).await.expect("admitted").remaining, 0);
    assert!(limiter.check(&BUCKET, "whole", 1).await.is_err());

    assert!(!are_decided_by_redis(&limiter, &BUCKET, "key", BUSY + 2).await, "the key is busy");
    assert_eq!(limiter.check(&BUCKET, "key", 1).await.expect("admitted").limit, 4_900);
    // A call of more units than a lease has goes to Redis.
    let large = limiter.check(&BUCKET, "key", 51).await.expect("admitted");
    assert_eq!((large.source, large.limit), (Source::Redis, 5_000));
    let rejected = decision(limiter.check(&BUCKET, "key", 4_900).await);
    assert!(!rejected.allowed, "the lease keeps back what refills");
    clock.advance(MINUTE);
    wait_until(async || remaining(&server, &clock, &BUCKET).await == 5_000).await;
    assert_eq!(limiter.check(&BUCKET, "key", 5_000).await.expect("admitted").remaining, 0);
}

#[rate_limit(name = "by plan", period = 60, threshold = amount, key = amount, lease = 50)]
async fn by_plan(amount: u64) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(
    name = "auto by plan", period = 60, algo = "token_bucket", threshold = amount,
    burst = amount, key = amount, lease = "auto"
)]
async fn auto_by_plan(amount: u64) -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn limits_with_computed_amounts_lease_no_more_than_they_admit() {
    let (server, limiter) = Server::with_limiter();
    for (is_auto, amount, calls, expected) in [
        (false, 10, 10, 1..=9),
        (false, 1_000, 1_000, 1..=100),
        (true, 90, 90, 90..=90),
        (true, 50_000, 90, 0..=60),
    ] {
        let before = server.script_calls();
        for _ in 0..calls {
            let called = if is_auto {
                limiter.scope(auto_by_plan(amount)).await
            } else {
                limiter.scope(by_plan(amount)).await
            };
            called.expect("admitted");
        }
        let scripts = server.script_calls() - before;
        assert!(
            expected.contains(&scripts),
            "{amount}, automatically {is_auto}: {scripts} scripts"
        );
        assert!(is_auto || limiter.scope(by_plan(amount)).await.is_err(), "{amount}: used up");
    }
}

on_both_stores! {
    /// A charge of a limit that leases cannot be settled, and another limit of its count must lease as well.
    async fn an_automatic_lease_is_a_lease(test: TestLimiter) {
        let leased = [Part::new(&LEASED, &"key", 1)];
        let alone = test.limiter.acquire(&WINDOW, "key", 1).await.map(drop);
        for result in [alone, test.limiter.acquire_all(&leased).await.map(drop)] {
            let Err(Rejection::Mistake { mistake, .. }) = result else { panic!("{result:?}") };
            assert_eq!(mistake, Mistake::Leased);
        }
        let plain = Limit::sliding("auto", 9, MINUTE);
        let parts = [&WINDOW, &plain].map(|limit| Part::new(limit, &"key", 1));
        let error = test.limiter.check_all(&parts).await.expect_err("one count");
        let Rejection::Mistake { mistake, .. } = error else { panic!("{error}") };
        assert!(matches!(mistake, Mistake::SharedCount { .. }), "{mistake:?}");
    }
}
