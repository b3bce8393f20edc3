//! `wait` and units that are given back: by refunds, resets and dropped calls, and when a limiter is shut down.

use std::time::{Duration, Instant};

use ratelimit_runtime::__private::lines;
use ratelimit_runtime::{Algorithm, Limit, Rejection, StoreError};
use support::limits::{MINUTE, SECOND};
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{DEADLINE, bucket, limiters, rest};
use crate::{TestLimiter, decision, wait_until_idle};

/// A call for half of the capacity waits in one process. It observes within a second what another process gives back.
#[tokio::test]
async fn refunds_and_resets_reach_the_calls_that_wait() {
    let server = Server::start();
    let ([embedded, redis], [_, other]) = (limiters(&server), limiters(&server));
    let limits = [
        Limit::sliding("given back", 200, MINUTE),
        Limit::fixed("given back", 200, MINUTE),
        Limit::sliding_counter("given back", 200, MINUTE),
        Limit::token_bucket("given back", 200, MINUTE),
    ];
    for (here, there, longest) in [
        (&embedded, &embedded, SECOND / 2),
        (&redis, &redis, SECOND / 2),
        (&redis, &other, 3 * SECOND / 2),
    ] {
        for (limit, refunded) in limits.iter().flat_map(|limit| [(limit, 150), (limit, 0)]) {
            here.reset(limit, "key").await.expect("a reply");
            here.check(limit, "key", 200).await.expect("a new key");
            let mut call = Box::pin(here.check(&limit.wait(2 * MINUTE), "key", 100));
            assert!(timeout(SECOND / 5, call.as_mut()).await.is_err(), "the call waits");
            if refunded == 0 {
                there.reset(limit, "key").await.expect("a reply");
            } else {
                there.credit(limit, "key", refunded).await.expect("a reply");
            }
            let start = Instant::now();
            timeout(3 * SECOND, call).await.expect("soon").expect("admitted");
            assert!(start.elapsed() < longest, "{limit:?}: {:?}", start.elapsed());
            let remaining = decision(here.peek(limit, "key", 1).await).remaining;
            let left = if refunded == 0 { 100 } else { 50 };
            // A bucket refills 3.3 tokens a second.
            assert!((left..=left + 10).contains(&remaining), "{limit:?}: {remaining} left");
        }
        rest(here).await;
    }
}

/// The burst is raised and lowered while reservations exist. They are cancelled all the same.
#[tokio::test]
async fn reservations_are_cancelled_after_the_burst_has_changed() {
    let server = Server::start();
    for TestLimiter { limiter, .. } in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let limit = Limit::token_bucket("burst", 10, SECOND);
        for burst in [1, 5] {
            limiter.reset(&limit, "key").await.expect("a reply");
            let waiting = limit.burst(2).wait(MINUTE);
            limiter.check(&waiting, "key", 2).await.expect("a new key");
            let calls: JoinSet<_> = (0..4).map(|_| limiter.check(&waiting, "key", 1)).collect();
            wait_until_idle(&limiter).await;
            let other = limit.burst(burst);
            let before = decision(limiter.peek(&other, "key", burst).await).retry_after;
            assert_eq!(before, Duration::from_millis(600), "burst {burst}");
            drop(calls);
            wait_until_idle(&limiter).await;
            let after = decision(limiter.peek(&other, "key", burst).await).retry_after;
            assert_eq!(after, Duration::from_millis(200), "burst {burst}");
        }
    }
}

#[tokio::test]
async fn calls_that_are_dropped_together_give_back_in_few_requests() {
    let server = Server::start();
    for limit in [bucket(2_000), Limit::sliding("together", 1_000, SECOND)] {
        let [_, limiter] = limiters(&server);
        let limit = limit.wait(MINUTE);
        let calls: Vec<_> = (0..3_000).map(|_| limiter.check(&limit, "dropped", 1)).collect();
        let mut calls: JoinSet<_> = calls.into_iter().collect();
        sleep(Duration::from_millis(100)).await;
        calls.abort_all();
        while calls.join_next().await.is_some() {}
        let before = server.script_calls();
        rest(&limiter).await;
        let requests = server.script_calls() - before;
        // On a busy machine, the calls are dropped over several batches.
        assert!(requests < 100, "{limit:?}: {requests} requests");
        sleep(SECOND).await;
        assert!(limiter.peek(&limit, "dropped", 1).await.expect("a reply").allowed, "{limit:?}");
    }
}

/// Forty calls wait for five a second when the process shuts down. The next process waits for none of them.
#[tokio::test]
async fn a_shutdown_leaves_nothing_reserved() {
    let server = Server::start();
    for limit in [bucket(5), Limit::sliding("shutdown", 5, SECOND)] {
        let limit = limit.wait(MINUTE);
        let ([embedded, redis], [_, next]) = (limiters(&server), limiters(&server));
        for (limiter, next) in [(&embedded, &embedded), (&redis, &next)] {
            let calls: JoinSet<_> = (0..40).map(|_| limiter.check(&limit, "key", 1)).collect();
            sleep(Duration::from_millis(50)).await;
            let start = Instant::now();
            limiter.shutdown().await.expect("all is given back");
            limiter.shutdown().await.expect("nothing is left");
            assert!(start.elapsed() < 2 * DEADLINE, "{:?}", start.elapsed());
            let (mut admitted, mut ended) = (0, 0);
            for result in calls.join_all().await {
                match result {
                    Ok(_) => admitted += 1,
                    Err(Rejection::Unavailable { error, .. }) => {
                        assert_eq!(error, StoreError::ShuttingDown);
                        ended += 1;
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
            assert!(admitted <= 5 && ended >= 35, "{limit:?}: {admitted} admitted, {ended} ended");
            let left = decision(next.peek(&limit, "key", 1).await);
            let longest = if limit.algorithm() == Algorithm::Sliding { SECOND } else { SECOND / 5 };
            assert!(left.retry_after <= longest, "{limit:?}: {left:?}");
            // Calls are decided, and do not wait.
            let start = Instant::now();
            while limiter.check(&limit, "key", 1).await.is_ok() {}
            assert!(start.elapsed() < SECOND / 5, "{:?}", start.elapsed());
            assert_eq!(lines(limiter), 0);
        }
    }
}
