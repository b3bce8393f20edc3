//! Calls of cost 0 take nothing. They are admitted while the count is at most its limit.

use std::time::Duration;

use ratelimit_runtime::{Limit, Part, Rejection, Source};
use support::limits::{HOUR, MINUTE, limits};
use support::server::Server;

use crate::on_both_stores;

on_both_stores! {
    /// A budget of 10 units. Each call uses 8, which is known after the call only.
    async fn a_budget_is_spent_by_calls_of_cost_0(test: TestLimiter) {
        for limit in limits("budget", 10, HOUR) {
            for admitted in 0..100 {
                let result = test.limiter.acquire(&limit, "key", 0).await;
                assert_eq!(result.is_ok(), admitted < 2, "{limit:?}: {result:?}");
                if let Ok(permit) = result {
                    permit.settle(8);
                    test.limiter.flush().await.expect("settled");
                }
            }
            let rejection = test.limiter.check(&limit, "key", 0).await.expect_err("a debt");
            let wait = rejection.retry_after().expect("limited");
            let peek = test.limiter.peek(&limit, "key", 0).await.expect("a decision");
            assert_eq!((peek.allowed, peek.retry_after), (false, wait), "{limit:?}");
            test.clock.advance(wait - Duration::from_micros(1));
            assert!(test.limiter.acquire(&limit, "key", 0).await.is_err(), "{limit:?}");
            test.clock.advance(Duration::from_micros(1));
            assert!(test.limiter.acquire(&limit, "key", 0).await.is_ok(), "{limit:?}");
        }
    }

    async fn slots_above_a_lowered_limit_reject_calls_of_cost_0(test: TestLimiter) {
        let slots = Limit::in_flight("lowered", 2);
        let held = test.limiter.acquire(&slots, "key", 2).await.expect("free");
        test.limiter.acquire(&slots, "key", 0).await.expect("not above").refund();
        let lowered = slots.try_amounts(1, None).expect("valid");
        let rejected = test.limiter.acquire(&lowered, "key", 0).await;
        assert!(matches!(rejected, Err(Rejection::Busy { .. })), "{rejected:?}");
        drop(held);
    }

    async fn the_limit_above_which_a_count_is_rejects_a_call_of_several(test: TestLimiter) {
        for limit in limits("several", 10, HOUR) {
            let other = Limit::sliding("other", 5, HOUR);
            test.limiter.acquire(&limit, "key", 0).await.expect("a new key").settle(11);
            test.limiter.flush().await.expect("settled");
            let parts = [Part::new(&other, &"key", 5), Part::new(&limit, &"key", 0)];
            let rejection = test.limiter.check_all(&parts).await.expect_err("above its limit");
            assert_eq!(rejection.name(), "several", "{limit:?}");
            test.limiter.check(&other, "key", 5).await.expect("nothing was charged");
            test.limiter.reset(&other, "key").await.expect("reset");
        }
    }
}

/// Calls of cost 0 that are rejected, and need a receipt, share batches with calls that are admitted.
#[tokio::test]
async fn a_rejected_call_of_cost_0_does_not_disturb_its_batch() {
    let server = Server::start();
    let limiter = server.builder().deadline(MINUTE).build().expect("valid");
    let limit = Limit::sliding("batch", 5, MINUTE);
    for key in 0..20 {
        limiter.block(&limit, ("blocked", key), MINUTE).await.expect("a reply");
    }
    let calls = (0..40).map(|call| {
        let (word, cost) = if call % 2 == 0 { ("blocked", 0) } else { ("open", 1) };
        limiter.acquire(&limit, (word, call / 2), cost)
    });
    for (call, result) in futures::future::join_all(calls).await.into_iter().enumerate() {
        match result {
            Ok(permit) if call % 2 == 1 => {
                let decision = permit.decision();
                assert_eq!((decision.remaining, decision.source), (4, Source::Redis));
                permit.settle(0);
            }
            Err(Rejection::Blocked { .. }) if call % 2 == 0 => {}
            other => panic!("{call}: {other:?}"),
        }
    }
    // Each receipt is the one of its own call.
    limiter.flush().await.expect("settled");
    for key in 0..20 {
        let left = limiter.peek(&limit, ("open", key), 1).await.expect("admitted").remaining;
        assert_eq!(left, 5, "{key}");
    }
}
