//! Calls that wait for the end of a block.

use std::time::Duration;

use futures::FutureExt;
use ratelimit_runtime::Limit;
use support::limits::{HOUR, MINUTE, SECOND};
use support::server::Server;
use tokio::time::timeout;

use super::{blocked, limits};
use crate::{on_both_stores, wait_until_idle};

on_both_stores! {
    async fn waiting_calls_go_on_in_order_once_the_key_opens(test: TestLimiter) {
        for limit in limits() {
            // As many calls as the limit admits at once can wait until the end of the block, and not much longer.
            let [waiting, few] = [10 * MINUTE, 2 * MINUTE + SECOND].map(|wait| limit.wait(wait));
            test.limiter.block(&limit, "key", 2 * MINUTE).await.expect("blocked");
            let (sender, mut admitted) = tokio::sync::mpsc::unbounded_channel();
            let mut calls = tokio::task::JoinSet::new();
            for number in 0..15 {
                let waiting = if number < 10 { &few } else { &waiting };
                let (sender, check) = (sender.clone(), test.limiter.check(waiting, "key", 1));
                calls.spawn(async move {
                    check.await.expect("admitted");
                    sender.send(number).expect("a receiver");
                });
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
            assert!(admitted.try_recv().is_err(), "{limit:?}: a call started before the end of the block");
            let mut order = Vec::new();
            for step in 0..40 {
                let end = Duration::from_micros(1);
                test.clock.advance(if step == 0 { end } else { limit.period() / 10 });
                wait_until_idle(&test.limiter).await;
                while let Ok(number) = admitted.try_recv() {
                    order.push(number);
                }
            }
            assert_eq!(order, (0..15).collect::<Vec<_>>(), "{limit:?}");
            while calls.join_next().await.is_some() {}
            takes_nothing.await.expect("no panic").expect("admitted");
            test.limiter.reset(&limit, "key").await.expect("reset");
            // An unblock ends the block as well.
            test.limiter.block(&limit, "key", 5 * MINUTE).await.expect("blocked");
            let call = tokio::spawn(test.limiter.check(&waiting, "key", 1));
            wait_until_idle(&test.limiter).await;
            assert!(!call.is_finished());
            test.limiter.unblock(&limit, "key").await.expect("unblocked");
            timeout(5 * SECOND, call).await.expect("soon").expect("no panic").expect("admitted");
        }
    }

    /// A bucket reserves moments ahead. After the key is blocked, no call starts at its reserved moment.
    async fn reserved_calls_start_after_the_end_of_a_block(test: TestLimiter) {
        for burst in [1, 10] {
            let limit = Limit::token_bucket("reserved", 10, SECOND).burst(burst);
            let waiting = limit.wait(MINUTE);
            test.limiter.check(&limit, "key", burst).await.expect("a new key");
            let mut calls: Vec<_> = (0..5)
                .map(|_| tokio::spawn(test.limiter.check(&waiting, "key", 1)))
                .collect();
            wait_until_idle(&test.limiter).await;
            test.limiter.block(&limit, "key", 10 * SECOND).await.expect("blocked");
            wait_until_idle(&test.limiter).await;
            for _ in 0..19 {
                test.clock.advance(SECOND / 2);
                wait_until_idle(&test.limiter).await;
            }
            assert!(calls.iter().all(|call| !call.is_finished()), "a call started while blocked");
            test.clock.advance(SECOND / 2);
            // The bucket has refilled meanwhile.
            for started in 0..=5 {
                wait_until_idle(&test.limiter).await;
                let finished = calls.iter().filter(|call| call.is_finished()).count();
                assert_eq!(finished, (burst as usize + started).min(5), "burst {burst}");
                test.clock.advance(SECOND / 10);
            }
            for call in calls.drain(..) {
                call.await.expect("no panic").expect("admitted");
            }
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }
}

/// The block ends between the reply that it is blocked and the request that cancels the reservation.
#[tokio::test]
async fn a_line_does_not_ask_without_a_pause() {
    let server = Server::start();
    let limiter = || server.builder().build().expect("valid settings");
    let [here, there] = [limiter(), limiter()];
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
