//! Nothing is left of a call, whenever it ends.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, OnError, RateLimiter};
use support::limits::SECOND;
use support::server::Server;
use tokio::time::sleep;

const FOUR: Limit = Limit::in_flight("four", 4).hold(Duration::from_secs(30));

async fn wait_until_free(limiter: &RateLimiter) {
    let started = Instant::now();
    loop {
        let peeked = limiter.peek(&FOUR, "key", 0).await.expect("admitted");
        if peeked.remaining == 4 {
            return;
        }
        assert!(started.elapsed() < 10 * SECOND, "{peeked:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// A call is dropped after each number of polls, also while it waits in a line.
#[tokio::test]
async fn a_call_that_is_dropped_at_any_poll_leaves_nothing() {
    let server = Server::start();
    let on_redis = server.builder().deadline(SECOND).build().expect("valid");
    for limiter in [RateLimiter::embedded(), on_redis] {
        for limit in [FOUR, FOUR.wait(SECOND)] {
            for (polls, held) in (0..12).flat_map(|polls| [(polls, 0), (polls, 4)]) {
                let mut running = Vec::new();
                for _ in 0..held {
                    running.push(limiter.acquire(&FOUR, "key", 1).await.expect("admitted"));
                }
                let mut left = polls;
                let mut call = pin!(limiter.acquire(&limit, "key", 1));
                let dropped = poll_fn(|context| {
                    if left == 0 {
                        return Poll::Ready(None);
                    }
                    left -= 1;
                    // The end of another call while this one waits.
                    running.pop();
                    let polled = call.as_mut().poll(context).map(Some);
                    if polled.is_pending() {
                        context.waker().wake_by_ref();
                    }
                    polled
                });
                drop(dropped.await);
                drop(running);
            }
        }
        wait_until_free(&limiter).await;
    }
    server.assert_all_keys_expire();
}

#[tokio::test]
async fn many_calls_leave_nothing_in_this_process() {
    let limiter = RateLimiter::builder().max_keys(1_000).build().expect("valid");
    for call in 0..300_000_u32 {
        let permit = limiter.acquire(&FOUR, call % 5_000, 4).await.expect("admitted");
        if call % 3 == 0 {
            permit.settle(2);
        }
    }
    for key in 0..5_000_u32 {
        let peeked = limiter.peek(&FOUR, key, 4).await.expect("admitted");
        assert!(peeked.allowed, "{key}");
    }
}

/// Runtimes that end while calls of them hold slots, and limiters that are dropped before their permits.
#[test]
fn many_runtimes_leave_nothing_on_redis() {
    let server = Server::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let build = || server.builder().on_error(OnError::Deny).build().expect("valid");
    for round in 0..200 {
        let runtime = runtime().expect("a runtime");
        let permit = runtime.block_on(async {
            let limiter = build();
            let task = limiter.clone();
            tokio::spawn(async move {
                let _permit = task.acquire(&FOUR, "key", 1).await.expect("admitted");
                std::future::pending::<()>().await;
            });
            limiter.acquire(&FOUR, "key", 1).await.expect("admitted")
        });
        if round % 2 == 0 {
            drop(runtime);
            drop(permit);
        } else {
            drop(permit);
            drop(runtime);
        }
        // The background thread of a limiter that was dropped states what was released.
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(wait_until_free(&build()));
    }
    server.assert_all_keys_expire();
}
