//! Keys that are blocked: how their calls are decided, and what happens to their counts. The random traces of
//! `parity` compare blocks with the reference model.

use std::time::Duration;

use ratelimit_runtime::{Clock, Limit, Part, Rejection, VirtualClock};
use support::limits::{HOUR, MINUTE, SECOND, limits};
use support::server::Server;

use super::blocked;
use crate::{on_both_stores, wait_until};

on_both_stores! {
    async fn the_longest_block_rejects_all_calls_except_those_of_a_shadow(test: TestLimiter) {
        let limit = Limit::sliding("blocked", 10, MINUTE);
        test.limiter.block(&limit, "key", Duration::MAX).await.expect("blocked");
        assert!(blocked(test.limiter.check(&limit, "key", 1).await) > 36_000 * 24 * HOUR);
        let shadow = test.limiter.check(&limit.shadow(true), "key", 1).await.expect("a shadow");
        assert!(!shadow.allowed && shadow.retry_after > 36_000 * 24 * HOUR, "{shadow:?}");
        assert!(test.limiter.reset(&limit, "key").await.expect("reset"));
    }

    async fn a_reset_unblocks_a_key_with_calls_in_flight(test: TestLimiter) {
        let limit = Limit::in_flight("blocked", 2);
        let held = test.limiter.acquire(&limit, "key", 1).await.expect("free");
        test.limiter.block(&limit, "key", MINUTE).await.expect("blocked");
        blocked(test.limiter.acquire(&limit, "key", 1).await.map(|permit| permit.decision()));
        test.limiter.reset(&limit, "key").await.expect("reset");
        test.limiter.acquire(&limit, "key", 2).await.expect("free").refund();
        drop(held);
        test.limiter.reset(&limit, "key").await.expect("reset");
        test.limiter.block(&limit, "key", MINUTE).await.expect("blocked");
        assert!(test.limiter.reset(&limit, "key").await.expect("reset"), "it was blocked");
        assert!(!test.limiter.unblock(&limit, "key").await.expect("open"), "the reset has opened it");
    }

    async fn a_blocked_key_rejects_a_call_against_several_limits(test: TestLimiter) {
        for limit in limits("blocked", 10, MINUTE) {
            let wide = Limit::sliding("wide", 100, MINUTE);
            let parts = [Part::new(&wide, &"key", 1), Part::new(&limit, &"key", 1)];
            test.limiter.check_all(&parts).await.expect("admitted");
            test.limiter.block(&limit, "key", SECOND).await.expect("blocked");
            let Err(Rejection::Blocked { name, .. }) = test.limiter.check_all(&parts).await else {
                panic!("the key is blocked");
            };
            assert_eq!(name.as_str(), "blocked");
            let acquired = test.limiter.acquire_all(&parts).await;
            assert!(matches!(acquired, Err(Rejection::Blocked { .. })));
            assert_eq!(test.limiter.peek(&wide, "key", 1).await.expect("open").remaining, 99);
            test.advance(1_000_000);
            test.limiter.check_all(&parts).await.expect("open");
            test.limiter.reset(&wide, "key").await.expect("reset");
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    /// New keys make the embedded store reclaim what has expired.
    async fn a_count_outlives_its_block(test: TestLimiter) {
        for limit in limits("count", 10, HOUR) {
            test.limiter.check(&limit, "key", 10).await.expect("a new key");
            test.limiter.block(&limit, "key", SECOND).await.expect("blocked");
            test.clock.advance(2 * SECOND);
            for other in 0..2_000 {
                test.limiter.check(&limit, other, 1).await.expect("a new key");
            }
            test.limiter.check(&limit, "key", 10).await.expect_err("used up");
        }
    }

    async fn a_clock_that_steps_back_does_not_move_a_bucket_too_far(test: TestLimiter) {
        let limit = Limit::token_bucket("steps back", 1, SECOND).burst(10);
        test.clock.set(Duration::ZERO);
        test.limiter.check(&limit, "key", 10).await.expect("a new key");
        test.clock.set(5 * SECOND);
        test.limiter.block(&limit, "key", 10 * SECOND).await.expect("blocked");
        test.clock.set(2 * SECOND);
        test.limiter.unblock(&limit, "key").await.expect("unblocked");
        let peek = test.limiter.peek(&limit, "key", 10).await.expect("a decision");
        assert!(peek.retry_after <= 10 * SECOND, "{peek:?}");
    }
}

/// A state may not expire before it equals that of an unused key. By the clock of the server: the TTL is in the state.
#[tokio::test]
async fn an_early_unblock_leaves_a_ttl_that_suffices() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid settings");
    for limit in limits("count", 10, 10 * SECOND) {
        for used in [1, 30] {
            let permit = limiter.acquire(&limit, "key", 2).await.expect("a new key");
            if used > 1 {
                limiter.reset(&limit, "key").await.expect("reset");
            }
            limiter.block(&limit, "key", HOUR).await.expect("blocked");
            permit.settle(used);
            limiter.flush().await.expect("settled");
            limiter.unblock(&limit, "key").await.expect("unblocked");
            for cost in [0, 8] {
                let _ = limiter.check(&limit, "key", cost).await;
                let ttl = Duration::from_millis(server.ttls()[0].1.unsigned_abs());
                let peek = limiter.peek(&limit, "key", 1).await.expect("a decision");
                assert!(ttl >= peek.reset_after, "{limit:?}: {ttl:?}, {peek:?}");
                assert!(ttl < MINUTE, "{limit:?}: {ttl:?}");
            }
            limiter.reset(&limit, "key").await.expect("reset");
        }
    }
}

#[tokio::test]
async fn a_key_without_a_ttl_keeps_its_count() {
    let server = Server::start();
    let limiter = server.builder().cache_rejections(false).build().expect("valid");
    let mut connection = server.connection();
    for limit in limits("persists", 10, HOUR) {
        limiter.check(&limit, "key", 10).await.expect("a new key");
        let [(name, _)] = &server.ttls()[..] else { panic!("one key") };
        redis::cmd("PERSIST").arg(name).exec(&mut connection).expect("PERSIST");
        limiter.block(&limit, "key", MINUTE).await.expect("blocked");
        server.assert_all_keys_expire();
        limiter.unblock(&limit, "key").await.expect("unblocked");
        server.assert_all_keys_expire();
        limiter.check(&limit, "key", 10).await.expect_err("used up");
        redis::cmd("FLUSHALL").exec(&mut connection).expect("FLUSHALL");
    }
}

/// A blocked key lives until the end of its block, and as long after it as the state of the open key.
#[tokio::test]
async fn corrections_do_not_lengthen_the_life_of_a_blocked_key() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let virtual_clock = server.builder().clock(Clock::Virtual(clock.clone()));
    for builder in [server.builder(), virtual_clock] {
        let limiter = builder.build().expect("valid settings");
        for limit in limits("count", 1_000, 10 * SECOND) {
            let mut permits = Vec::new();
            for _ in 0..400 {
                permits.push(limiter.acquire(&limit, "key", 2).await.expect("admitted"));
            }
            limiter.block(&limit, "key", MINUTE).await.expect("blocked");
            for permit in permits.drain(..300) {
                permit.settle(1);
            }
            limiter.flush().await.expect("settled");
            for permit in permits {
                permit.settle(1);
                limiter.flush().await.expect("settled");
            }
            limiter.credit(&limit, "key", 1).await.expect("refunded");
            // The block, two periods, the slack of the TTL, and a minute if the clock is not the server's.
            let ttl = Duration::from_millis(server.ttls()[0].1.unsigned_abs());
            assert!(ttl <= 2 * MINUTE + 40 * SECOND, "{limit:?}: {ttl:?}");
            limiter.reset(&limit, "key").await.expect("reset");
        }
    }
}

#[tokio::test]
async fn leased_units_go_back_to_a_blocked_bucket() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = || server.limiter_on(&clock);
    let [here, there] = [limiter(), limiter()];
    let plain = Limit::token_bucket("lease", 10_000, MINUTE).burst(10_000);
    let leased = plain.lease(500);
    for _ in 0..600 {
        there.check(&leased, "key", 1).await.expect("admitted");
    }
    here.block(&leased, "key", MINUTE).await.expect("blocked");
    clock.advance(SECOND);
    // 600 units were spent. The lease keeps back 167, and some of them drain before they go back.
    wait_until(async || {
        let peek = here.peek(&plain, "key", 10_000).await.expect("a decision");
        peek.retry_after < MINUTE + Duration::from_secs(4)
    })
    .await;
}
