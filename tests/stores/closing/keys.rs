//! Closed keys: no call is admitted until the opening, whatever it asks for.

use std::time::Duration;

use ratelimit_runtime::{Limit, Part, Rejection};
use support::limits::{MINUTE, SECOND};

use super::{closed, limits};
use crate::on_both_stores;

on_both_stores! {
    async fn a_closed_key_admits_nothing_until_its_opening(test: TestLimiter) {
        for limit in limits() {
            let check = async |cost| test.limiter.check(&limit, "key", cost).await;
            test.limiter.close(&limit, "key", 30 * SECOND).await.expect("closed");
            for cost in [0, 1, 10] {
                assert_eq!(closed(check(cost).await), 30 * SECOND, "{limit:?}");
            }
            let peek = test.limiter.peek(&limit, "key", 1).await.expect("a decision");
            assert_eq!((peek.allowed, peek.retry_after), (false, 30 * SECOND));
            assert!(test.limiter.check(&limit, "another key", 1).await.is_ok());
            test.advance(29_999_999);
            assert_eq!(closed(check(1).await), Duration::from_micros(1));
            test.advance(1);
            assert_eq!(check(10).await.expect("open").remaining, 0, "{limit:?}");
        }
    }

    async fn the_wait_is_the_later_of_the_opening_and_the_limit(test: TestLimiter) {
        for limit in limits() {
            let check = async |cost| test.limiter.check(&limit, "key", cost).await;
            check(10).await.expect("a new key");
            let Err(Rejection::Limited { decision, .. }) = check(10).await else { panic!() };
            let own = decision.retry_after;
            test.limiter.close(&limit, "key", SECOND).await.expect("closed");
            assert_eq!(closed(check(10).await), own, "{limit:?}");
            test.advance(1_000_000);
            let Err(Rejection::Limited { decision, .. }) = check(10).await else { panic!() };
            assert_eq!(decision.retry_after, own - SECOND);
            test.limiter.close(&limit, "key", 10 * MINUTE).await.expect("closed");
            let wait = closed(check(10).await);
            assert_eq!(wait, 10 * MINUTE, "{limit:?}");
            test.clock.advance(wait - Duration::from_micros(1));
            check(10).await.expect_err("a microsecond early");
            test.clock.advance(Duration::from_micros(1));
            check(10).await.expect("open");
        }
    }

    async fn the_later_opening_holds_and_open_and_reset_open(test: TestLimiter) {
        for limit in limits() {
            let check = async || test.limiter.check(&limit, "key", 1).await;
            let close = async |time| test.limiter.close(&limit, "key", time).await.expect("closed");
            let open = async || test.limiter.open(&limit, "key").await.expect("opened");
            assert!(!open().await);
            close(20 * SECOND).await;
            close(10 * SECOND).await;
            assert_eq!(closed(check().await), 20 * SECOND);
            test.advance(10_000_000);
            close(20 * SECOND).await;
            assert_eq!(closed(check().await), 20 * SECOND);
            close(Duration::ZERO).await;
            assert!(open().await && !open().await);
            check().await.expect("open");
            close(20 * SECOND).await;
            assert!(test.limiter.reset(&limit, "key").await.expect("reset"));
            assert_eq!(check().await.expect("open").remaining, 9, "{limit:?}");
            close(Duration::MAX).await;
            assert!(closed(check().await) > 36_000 * 24 * 60 * MINUTE);
            assert!(test.limiter.reset(&limit, "key").await.expect("reset"));
        }
    }

    async fn a_reset_opens_a_key_with_calls_in_flight(test: TestLimiter) {
        let limit = Limit::in_flight("closed", 2);
        let held = test.limiter.acquire(&limit, "key", 1).await.expect("free");
        test.limiter.close(&limit, "key", MINUTE).await.expect("closed");
        closed(test.limiter.acquire(&limit, "key", 1).await.map(|permit| permit.decision()));
        test.limiter.reset(&limit, "key").await.expect("reset");
        test.limiter.acquire(&limit, "key", 2).await.expect("free").refund();
        drop(held);
        test.limiter.reset(&limit, "key").await.expect("reset");
        test.limiter.close(&limit, "key", MINUTE).await.expect("closed");
        assert!(test.limiter.reset(&limit, "key").await.expect("reset"), "it was closed");
        assert!(!test.limiter.open(&limit, "key").await.expect("open"), "the reset has opened it");
    }

    async fn a_closed_key_rejects_a_call_against_several_limits(test: TestLimiter) {
        for limit in limits() {
            let wide = Limit::sliding("wide", 100, MINUTE);
            let parts = [Part::new(&wide, &"key", 1), Part::new(&limit, &"key", 1)];
            test.limiter.check_all(&parts).await.expect("admitted");
            test.limiter.close(&limit, "key", SECOND).await.expect("closed");
            let Err(Rejection::Closed { name, .. }) = test.limiter.check_all(&parts).await else {
                panic!("the key is closed");
            };
            assert_eq!(name.as_str(), "closed");
            let acquired = test.limiter.acquire_all(&parts).await;
            assert!(matches!(acquired, Err(Rejection::Closed { .. })));
            assert_eq!(test.limiter.peek(&wide, "key", 1).await.expect("open").remaining, 99);
            test.advance(1_000_000);
            test.limiter.check_all(&parts).await.expect("open");
            test.limiter.reset(&wide, "key").await.expect("reset");
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    async fn a_shadow_reports_and_admits(test: TestLimiter) {
        let limit = Limit::sliding("closed", 10, MINUTE).shadow(true);
        test.limiter.close(&limit, "key", SECOND).await.expect("closed");
        let decision = test.limiter.check(&limit, "key", 1).await.expect("a shadow");
        assert_eq!((decision.allowed, decision.retry_after), (false, SECOND));
    }

    async fn a_long_log_can_be_closed_settled_and_reset(test: TestLimiter) {
        let limit = Limit::sliding("closed long log", 20_000, MINUTE);
        let mut permits = Vec::new();
        for _ in 0..9_000 {
            permits.push(test.limiter.acquire(&limit, "key", 1).await.expect("admitted"));
            test.advance(1_000);
        }
        test.limiter.close(&limit, "key", SECOND).await.expect("closed");
        for permit in permits.drain(..).step_by(3) {
            permit.refund();
        }
        test.limiter.flush().await.expect("settled");
        test.limiter.credit(&limit, "key", 10).await.expect("refunded");
        assert_eq!(closed(test.limiter.check(&limit, "key", 1).await), SECOND);
        assert!(test.limiter.open(&limit, "key").await.expect("opened"));
        let remaining = test.limiter.peek(&limit, "key", 1).await.expect("open").remaining;
        assert_eq!(remaining, 20_000 - 6_000 + 10);
        test.limiter.close(&limit, "key", SECOND).await.expect("closed");
        assert!(test.limiter.reset(&limit, "key").await.expect("reset"));
        assert_eq!(test.limiter.peek(&limit, "key", 1).await.expect("open").remaining, 20_000);
    }
}
