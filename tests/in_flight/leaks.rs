//! Nothing is left of a call, whenever it ends.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use metrics::{Gauge, Key};
use ratelimit_runtime::{Limit, Permit, RateLimiter};
use support::limits::SECOND;
use support::poll_once;
use support::recorder::GaugeRecorder;
use support::server::Server;
use support::wait::wait_until;
use tokio::time::sleep;

const FOUR: Limit = Limit::in_flight("four", 4).hold(Duration::from_secs(30));

async fn wait_until_free(limiter: &RateLimiter) {
    let left = async || limiter.peek(&FOUR, "key", 0).await.expect("admitted").remaining;
    wait_until(async || left().await == 4).await;
}

fn limiters(server: &Server) -> [RateLimiter; 2] {
    [RateLimiter::embedded(), server.builder().deadline(SECOND).build().expect("valid")]
}

/// Waits for the slots of a call that ended before its reply: until the reply comes, they are taken.
async fn hold_slots(limiter: &RateLimiter, slots: u64) -> Vec<Permit> {
    let calls = (0..slots).map(|_| limiter.acquire(&FOUR.wait(10 * SECOND), "key", 1));
    join_all(calls).await.into_iter().map(|permit| permit.expect("admitted")).collect()
}

#[tokio::test]
async fn a_call_that_is_dropped_at_any_poll_leaves_nothing() {
    let server = Server::start();
    for limiter in limiters(&server) {
        for limit in [FOUR, FOUR.wait(SECOND)] {
            for (polls, held) in (0..12).flat_map(|polls| [(polls, 0), (polls, 4)]) {
                let mut running = hold_slots(&limiter, held).await;
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

#[test]
fn many_calls_leave_nothing_in_this_process() {
    const KEYS: u64 = 5_000;
    let limiter = RateLimiter::builder().max_keys(1_000).build().expect("valid");
    let call = |call: u64| {
        let permit = poll_once(limiter.acquire(&FOUR, call % KEYS, 4)).expect("admitted");
        if call.is_multiple_of(3) {
            permit.settle(2);
        }
    };
    (0..4 * KEYS).for_each(call);
    let allocated = allocation_counter::measure(|| (0..300_000).for_each(call));
    // A table may grow once; a byte for each call would be more.
    assert!(allocated.bytes_current < 100_000, "{allocated:?}");
    for key in 0..KEYS {
        let peeked = poll_once(limiter.peek(&FOUR, key, 4)).expect("admitted");
        assert!(peeked.allowed && peeked.remaining == 4, "{key}: {peeked:?}");
    }
}

/// Runtimes that end while calls of them hold slots, and limiters that are dropped before their permits.
#[test]
fn many_runtimes_leave_nothing_on_redis() {
    let server = Server::start();
    let build = || server.builder().build().expect("valid");
    for round in 0..1_000 {
        let runtime = support::runtime();
        let permit = runtime.block_on(async {
            let limiter = build();
            let task = limiter.clone();
            tokio::spawn(async move {
                let _permit = task.acquire(&FOUR, "key", 1).await.expect("admitted");
                std::future::pending::<()>().await;
            });
            limiter.acquire(&FOUR, "key", 1).await.expect("admitted")
        });
        // A tuple drops its first value first.
        if round % 2 == 0 {
            drop((runtime, permit));
        } else {
            drop((permit, runtime));
        }
        // The background thread of a limiter that was dropped states what was released.
        support::runtime().block_on(wait_until_free(&build()));
    }
    server.assert_all_keys_expire();
}

#[tokio::test]
async fn a_recorder_that_panics_leaves_nothing() {
    let recorder = GaugeRecorder {
        described: || (),
        other: |key| panic!("{key}"),
        gauge: |key: &Key| -> Gauge { panic!("{key}") },
    };
    let server = Server::start();
    for limiter in limiters(&server) {
        for (limit, waits) in [(FOUR, false), (FOUR.wait(10 * SECOND), true)] {
            let held = hold_slots(&limiter, if waits { 4 } else { 0 }).await;
            // The wait begins without the recorder.
            let mut call = Box::pin(limiter.acquire(&limit, "key", 1));
            if waits {
                assert!(futures::poll!(call.as_mut()).is_pending());
                sleep(SECOND / 10).await;
            }
            drop(held);
            let call = AssertUnwindSafe(async {
                let _recorder = metrics::set_default_local_recorder(&recorder);
                call.await
            });
            drop(call.catch_unwind().await);
            wait_until_free(&limiter).await;
        }
    }
}
