//! Blocked keys: no call is admitted until the end of the block, whatever it asks for.

use std::time::Duration;

use ratelimit_runtime::{Limit, Part, Rejection};
use support::limits::{MINUTE, SECOND};

use super::{blocked, limits};
use crate::on_both_stores;

on_both_stores! {
    async fn a_blocked_key_admits_nothing_until_its_end(test: TestLimiter) {
        for limit in limits() {
            let check = async |cost| test.limiter.check(&limit, "key", cost).await;
            test.limiter.block(&limit, "key", 30 * SECOND).await.expect("blocked");
            for cost in [0, 1, 10] {
                assert_eq!(blocked(check(cost).await), 30 * SECOND, "{limit:?}");
            }
            let peek = test.limiter.peek(&limit, "key", 1).await.expect("a decision");
            assert_eq!((peek.allowed, peek.retry_after), (false, 30 * SECOND));
            assert!(test.limiter.check(&limit, "another key", 1).await.is_ok());
            test.advance(29_999_999);
            assert_eq!(blocked(check(1).await), Duration::from_micros(1));
            test.advance(1);
            assert_eq!(check(10).await.expect("open").remaining, 0, "{limit:?}");
        }
    }

    async fn the_wait_is_the_later_of_the_block_and_the_limit(test: TestLimiter) {
        for limit in limits() {
            let check = async |cost| test.limiter.check(&limit, "key", cost).await;
            check(10).await.expect("a new key");
            let Err(Rejection::Limited { decision, .. }) = check(10).await else { panic!() };
            let own = decision.retry_after;
            test.limiter.block(&limit, "key", SECOND).await.expect("blocked");
            assert_eq!(blocked(check(10).await), own, "{limit:?}");
            test.advance(1_000_000);
            let Err(Rejection::Limited { decision, .. }) = check(10).await else { panic!() };
            assert_eq!(decision.retry_after, own - SECOND);
            test.limiter.block(&limit, "key", 10 * MINUTE).await.expect("blocked");
            let wait = blocked(check(10).await);
            assert_eq!(wait, 10 * MINUTE, "{limit:?}");
            test.clock.advance(wait - Duration::from_micros(1));
            check(10).await.expect_err("a microsecond early");
            test.clock.advance(Duration::from_micros(1));
            check(10).await.expect("open");
        }
    }

    async fn the_later_end_holds_and_unblock_and_reset_end_it(test: TestLimiter) {
        for limit in limits() {
            let check = async || test.limiter.check(&limit, "key", 1).await;
            let block = async |time| test.limiter.block(&limit, "key", time).await.expect("blocked");
            let open = async || test.limiter.unblock(&limit, "key").await.expect("unblocked");
            assert!(!open().await);
            block(20 * SECOND).await;
            block(10 * SECOND).await;
            assert_eq!(blocked(check().await), 20 * SECOND);
            test.advance(10_000_000);
            block(20 * SECOND).await;
            assert_eq!(blocked(check().await), 20 * SECOND);
            block(Duration::ZERO).await;
            assert!(open().await && !open().await);
            check().await.expect("open");
            block(20 * SECOND).await;
            assert!(test.limiter.reset(&limit, "key").await.expect("reset"));
            assert_eq!(check().await.expect("open").remaining, 9, "{limit:?}");
            block(Duration::MAX).await;
            assert!(blocked(check().await) > 36_000 * 24 * 60 * MINUTE);
            assert!(test.limiter.reset(&limit, "key").await.expect("reset"));
        }
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
        for limit in limits() {
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

    async fn a_shadow_reports_and_admits(test: TestLimiter) {
        let limit = Limit::sliding("blocked", 10, MINUTE).shadow(true);
        test.limiter.block(&limit, "key", SECOND).await.expect("blocked");
        let decision = test.limiter.check(&limit, "key", 1).await.expect("a shadow");
        assert_eq!((decision.allowed, decision.retry_after), (false, SECOND));
    }

    async fn a_long_log_can_be_blocked_settled_and_reset(test: TestLimiter) {
        let limit = Limit::sliding("blocked long log", 20_000, MINUTE);
        let mut permits = Vec::new();
        for _ in 0..9_000 {
            permits.push(test.limiter.acquire(&limit, "key", 1).await.expect("admitted"));
            test.advance(1_000);
        }
        test.limiter.block(&limit, "key", SECOND).await.expect("blocked");
        for permit in permits.drain(..).step_by(3) {
            permit.refund();
        }
        test.limiter.flush().await.expect("settled");
        test.limiter.credit(&limit, "key", 10).await.expect("refunded");
        assert_eq!(blocked(test.limiter.check(&limit, "key", 1).await), SECOND);
        assert!(test.limiter.unblock(&limit, "key").await.expect("unblocked"));
        let remaining = test.limiter.peek(&limit, "key", 1).await.expect("open").remaining;
        assert_eq!(remaining, 20_000 - 6_000 + 10);
        test.limiter.block(&limit, "key", SECOND).await.expect("blocked");
        assert!(test.limiter.reset(&limit, "key").await.expect("reset"));
        assert_eq!(test.limiter.peek(&limit, "key", 1).await.expect("open").remaining, 20_000);
    }
}
