//! Keys that are blocked until a moment: how their calls are decided, what happens to their counts, and when other
//! processes obey. The random traces of `parity` compare blocks with the reference model.

use std::time::Duration;

use futures::future::join_all;
use futures::{FutureExt, TryFutureExt};
use ratelimit_runtime::{Decision, Limit, Rejection, Source, VirtualClock, rate_limit};
use support::limits::{HOUR, MINUTE, SECOND, limits};
use support::proxy::Proxy;
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::leases::spend;
use crate::{decision, on_both_stores, wait_until, wait_until_idle};

/// Returns the wait of a call that is rejected because its key is blocked.
#[track_caller]
fn blocked(result: Result<Decision, Rejection>) -> Duration {
    match result {
        Err(Rejection::Blocked { decision, .. }) => {
            assert_eq!((decision.allowed, decision.remaining), (false, 0));
            decision.retry_after
        }
        other => panic!("the key is not blocked: {other:?}"),
    }
}

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
        assert!(!test.limiter.unblock(&limit, "key").await.expect("open"), "it is open");
    }

    /// New keys make the embedded store reclaim what has expired.
    async fn a_count_outlives_its_block(test: TestLimiter) {
        for limit in limits("count", 10, HOUR) {
            assert!(test.allows(&limit, 10).await);
            test.limiter.block(&limit, "key", SECOND).await.expect("blocked");
            test.clock.advance(2 * SECOND);
            for other in 0..2_000 {
                test.limiter.check(&limit, other, 1).await.expect("a new key");
            }
            assert!(!test.allows(&limit, 10).await, "used up");
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
        let peek = test.peek(&limit, 10).await;
        assert!(peek.retry_after <= 10 * SECOND, "{peek:?}");
    }
}

fn ttl(server: &Server) -> Duration {
    Duration::from_millis(server.ttls()[0].1.unsigned_abs())
}

/// A state may not expire before it equals that of an unused key. By the clock of the server: the TTL is in the state.
#[tokio::test]
async fn an_early_unblock_leaves_a_ttl_that_suffices() {
    let (server, limiter) = Server::with_limiter();
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
                let ttl = ttl(&server);
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
    for limit in limits("persists", 10, HOUR) {
        limiter.check(&limit, "key", 10).await.expect("a new key");
        let [(name, _)] = &server.ttls()[..] else { panic!("one key") };
        server.command::<()>(&format!("PERSIST {name}"));
        limiter.block(&limit, "key", MINUTE).await.expect("blocked");
        server.assert_all_keys_expire();
        limiter.unblock(&limit, "key").await.expect("unblocked");
        server.assert_all_keys_expire();
        limiter.check(&limit, "key", 10).await.expect_err("used up");
        server.command::<()>("FLUSHALL");
    }
}

/// A blocked key lives until the end of its block, and as long after it as the state of the open key.
#[tokio::test]
async fn corrections_do_not_lengthen_the_life_of_a_blocked_key() {
    let (server, on_server) = Server::with_limiter();
    for limiter in [&on_server, &server.limiter_on(&VirtualClock::new())] {
        for limit in limits("count", 1_000, 10 * SECOND) {
            let permits = join_all((0..400).map(|_| limiter.acquire(&limit, "key", 2))).await;
            limiter.block(&limit, "key", MINUTE).await.expect("blocked");
            for (number, permit) in permits.into_iter().enumerate() {
                permit.expect("admitted").settle(1);
                // The first 300 are settled together.
                if number >= 299 {
                    limiter.flush().await.expect("settled");
                }
            }
            limiter.credit(&limit, "key", 1).await.expect("refunded");
            // The block, two periods, the slack of the TTL, and a minute if the clock is not the server's.
            let ttl = ttl(&server);
            assert!(ttl <= 2 * MINUTE + 40 * SECOND, "{limit:?}: {ttl:?}");
            limiter.reset(&limit, "key").await.expect("reset");
        }
    }
}

#[tokio::test]
async fn leased_units_go_back_to_a_blocked_bucket() {
    let (server, clock, here) = Server::with_clock();
    let there = server.limiter_on(&clock);
    let plain = Limit::token_bucket("lease", 10_000, MINUTE);
    assert_eq!(spend(&there, &plain.lease(500), 600).await, 600);
    here.block(&plain, "key", MINUTE).await.expect("blocked");
    clock.advance(SECOND);
    // 600 units were spent. The lease keeps back 167, and some of them drain before they go back.
    let used = async || here.operator().usage(&plain, "key").await.expect("counted").used;
    wait_until(async || used().await < 600 + 167).await;
}

// Blocks of a key among several processes.

#[tokio::test]
async fn other_processes_obey_with_their_next_request() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let [here, there] = [server.limiter_on(&clock), server.limiter_on(&clock)];
    for limit in limits("blocked", 10, MINUTE) {
        let check = || there.check(&limit, "key", 1);
        check().await.expect("admitted");
        here.block(&limit, "key", 10 * SECOND).await.expect("blocked");
        assert_eq!(blocked(check().await), 10 * SECOND);
        // From the rejection cache, until the process looks again after a second.
        let cached = check().await;
        assert_eq!(decision(cached.clone()).source, Source::Cache, "{limit:?}");
        blocked(cached);
        assert!(here.unblock(&limit, "key").await.expect("unblocked"));
        here.check(&limit, "key", 1).await.expect("open");
        clock.advance(SECOND);
        check().await.expect("open");
        // A cached rejection of the limit hides the block for a second at most.
        while check().await.is_ok() {}
        here.block(&limit, "key", HOUR).await.expect("blocked");
        let cached = check().await;
        assert_eq!(decision(cached.clone()).source, Source::Cache, "{limit:?}");
        assert!(matches!(cached, Err(Rejection::Limited { .. })), "{cached:?}");
        clock.advance(SECOND);
        blocked(check().await);
    }
}

/// A service that takes no calls for a minute.
#[rate_limit(period = 60, threshold = 10, name = "upstream", block = |_| Some(MINUTE))]
async fn call_upstream() -> Result<(), Rejection> {
    Ok(())
}

/// Redis blocks the key in the background. A call that follows at once is rejected all the same, and an unblock comes
/// after the blocks before it.
#[tokio::test]
async fn a_process_obeys_its_own_block_at_once() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(30));
    let limiter = proxy.builder().deadline(10 * SECOND).build().expect("valid settings");
    let upstream = Limit::sliding("upstream", 10, MINUTE);
    let there = server.builder().build().expect("valid settings");
    let is_blocked = |result| matches!(result, Err(Rejection::Blocked { .. }));
    let run = async {
        for _ in 0..2 {
            call_upstream().await.expect("open");
            for _ in 0..4 {
                assert!(is_blocked(call_upstream().await));
            }
            assert!(limiter.unblock(&upstream, ()).await.expect("unblocked"));
        }
        call_upstream().await.expect("open");
        limiter.flush().await.expect("sent");
    };
    limiter.scope(run).await;
    assert!(is_blocked(there.scope(call_upstream()).await), "blocked by the other process");
}

// Calls that wait for the end of a block.

on_both_stores! {
    async fn waiting_calls_go_on_in_order_once_the_key_opens(test: TestLimiter) {
        for limit in limits("blocked", 10, MINUTE) {
            // As many calls as the limit admits at once can wait until the end of the block, and not much longer.
            let [waiting, few] = [10 * MINUTE, 2 * MINUTE + SECOND].map(|wait| limit.wait(wait));
            test.limiter.block(&limit, "key", 2 * MINUTE).await.expect("blocked");
            let mut calls = JoinSet::new();
            for number in 0..15 {
                let waiting = if number < 10 { &few } else { &waiting };
                calls.spawn(test.limiter.check(waiting, "key", 1).map_ok(move |_| number));
                tokio::task::yield_now().await;
            }
            let takes_nothing = tokio::spawn(test.limiter.check(&waiting, "key", 0));
            wait_until_idle(&test.limiter).await;
            assert!(!takes_nothing.is_finished());
            // A call that cannot wait long enough is rejected at once.
            let impatient = limit.wait(MINUTE);
            let rejection = test.limiter.check(&impatient, "key", 1).await;
            assert!(blocked(rejection) >= 2 * MINUTE, "{limit:?}");
            assert_eq!(blocked(test.limiter.check(&impatient, "key", 0).await), 2 * MINUTE);
            test.clock.advance(2 * MINUTE - Duration::from_micros(1));
            wait_until_idle(&test.limiter).await;
            assert!(calls.try_join_next().is_none(), "{limit:?}: a call started before the end");
            let mut order = Vec::new();
            test.advance(1);
            for _ in 0..40 {
                wait_until_idle(&test.limiter).await;
                while let Some(call) = calls.try_join_next() {
                    order.push(call.expect("no panic").expect("admitted"));
                }
                test.clock.advance(limit.period() / 10);
            }
            assert_eq!(order, (0..15).collect::<Vec<_>>(), "{limit:?}");
            takes_nothing.await.expect("no panic").expect("admitted");
            test.reset(&limit).await;
            // An unblock ends the block as well.
            test.limiter.block(&limit, "key", 5 * MINUTE).await.expect("blocked");
            let call = tokio::spawn(test.limiter.check(&waiting, "key", 1));
            wait_until_idle(&test.limiter).await;
            assert!(!call.is_finished());
            test.limiter.unblock(&limit, "key").await.expect("unblocked");
            timeout(5 * SECOND, call).await.expect("soon").expect("no panic").expect("admitted");
        }
    }
}

/// The block ends between the reply that it is blocked and the request that cancels the reservation.
#[tokio::test]
async fn a_line_does_not_ask_without_a_pause() {
    let (server, here) = Server::with_limiter();
    let there = server.builder().build().expect("valid settings");
    let limit = Limit::leaky_bucket("pause", 1, MINUTE);
    let waiting = limit.wait(HOUR);
    here.check(&limit, "key", 1).await.expect("a new key");
    let mut first = Box::pin(here.check(&waiting, "key", 1));
    assert!(first.as_mut().now_or_never().is_none());
    wait_until_idle(&here).await;
    there.block(&limit, "key", Duration::from_millis(5)).await.expect("blocked");
    let mut second = Box::pin(here.check(&waiting, "key", 1));
    assert!(second.as_mut().now_or_never().is_none());
    tokio::time::sleep(SECOND / 10).await;
    let before = server.script_calls();
    tokio::time::sleep(SECOND / 2).await;
    let scripts = server.script_calls() - before;
    assert!(scripts < 30, "{scripts} scripts");
}
