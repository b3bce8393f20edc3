//! Calls that wait until another one ends.

use std::pin::Pin;
use std::time::Duration;

use futures::FutureExt;
use ratelimit_runtime::{Acquire, Limit, Part, Rejection};
use support::limits::{MINUTE, SECOND};
use support::lines::{run_tasks, wait_until_idle};
use support::server::Server;
use tokio::time::timeout;

use crate::{HOLD, TWO, TestLimiter, assert_busy};

const ONE: Limit = Limit::in_flight("one", 1).hold(HOLD).wait(MINUTE);

/// Starts a call, which has to wait.
fn wait(test: &TestLimiter, limit: &Limit, cost: u64) -> Pin<Box<Acquire>> {
    let mut call = Box::pin(test.limiter.acquire(limit, "key", cost));
    assert_waits(&mut call);
    call
}

fn assert_waits(call: &mut (impl Future + Unpin)) {
    assert!(call.now_or_never().is_none());
}

/// Returns the output of what ends soon.
async fn soon<T>(call: impl Future<Output = T>) -> T {
    timeout(10 * SECOND, call).await.expect("in time")
}

/// First come, first served. A call that does not wait is rejected at once.
#[tokio::test]
async fn the_end_of_a_call_wakes_the_next_in_line_at_once() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let [one, other] = [test.admit(&TWO, 1).await, test.admit(&TWO, 1).await];
        let waits = TWO.wait(MINUTE);
        let [mut heavy, dropped, mut last] = [2, 1, 2].map(|cost| wait(&test, &waits, cost));
        let mut light = wait(&test, &waits, 1);
        test.assert_busy(&TWO, 2).await;
        drop(one);
        // It would fit, and does not overtake.
        assert_waits(&mut light);
        drop(other);
        let permit = soon(&mut heavy).await.expect("admitted");
        assert_waits(&mut last);
        drop(permit);
        // What was granted to it goes to the next in line.
        drop(dropped);
        drop(soon(last).await.expect("admitted"));
        drop(soon(light).await.expect("admitted"));
        assert_eq!(test.in_flight(&TWO).await, 0);
    }
}

#[tokio::test]
async fn a_wait_ends_as_busy_and_nothing_is_invented() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let running = test.admit(&ONE, 1).await;
        // A call behind others is not rejected before its time either.
        let [mut call, behind] = [1, 1].map(|cost| wait(&test, &ONE, cost));
        test.clock.advance(Duration::from_millis(59_999));
        assert_waits(&mut call);
        test.clock.advance(Duration::from_millis(1));
        for call in [call, behind] {
            assert_busy(&soon(call).await.expect_err("busy"), 1);
        }
        drop(running);
        assert_eq!(test.in_flight(&ONE).await, 0);
    }
}

/// The call behind the first one is polled at its end, while a reply could still admit it.
#[tokio::test]
async fn a_wait_that_ends_during_a_request_ends_with_its_reply() {
    let server = Server::start();
    let [_, test] = TestLimiter::each(&server);
    let (one, other) = (test.admit(&TWO, 1).await, test.admit(&TWO, 1).await);
    let wait = |cost, wait| tokio::spawn(test.limiter.acquire(&TWO.wait(wait), "key", cost));
    let (first, second) = (wait(2, MINUTE), wait(1, SECOND / 2));
    wait_until_idle(&test.limiter).await;
    server.pause_writes();
    drop(one);
    test.clock.advance(SECOND / 2);
    run_tasks().await;
    assert!(!second.is_finished());
    server.resume();
    let rejection = soon(second).await.expect("no panic").expect_err("it does not overtake");
    assert!(matches!(rejection, Rejection::Busy { .. }), "{rejection:?}");
    first.abort();
    drop(other);
}

/// The line asks again when the rate beside the calls in flight admits, and when a call ends.
#[tokio::test]
async fn a_line_waits_for_a_rate_and_for_calls_in_flight() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let rate = Limit::fixed("beside", 2, 10 * SECOND).wait(MINUTE);
        let parts = [Part::new(&rate, &"key", 1), Part::new(&ONE, &"key", 1)];
        let first = test.limiter.acquire_all(&parts).await.expect("admitted");
        let mut second = Box::pin(test.limiter.acquire_all(&parts));
        assert_waits(&mut second);
        drop(first);
        let second = soon(second).await.expect("admitted");
        // Both reject now: a rate for ten seconds, and the call that runs.
        let mut third = Box::pin(test.limiter.acquire_all(&parts));
        assert_waits(&mut third);
        drop(second);
        tokio::task::yield_now().await;
        assert_waits(&mut third);
        test.clock.advance(10 * SECOND);
        drop(soon(third).await.expect("admitted"));
        assert_eq!(test.in_flight(&ONE).await, 0);
    }
}

/// The call behind one whose wait ends is not polled. Those behind it do not wait for it.
#[tokio::test]
async fn the_end_of_a_wait_admits_the_calls_behind_one_that_is_not_polled() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let three = Limit::in_flight("three", 3).hold(HOLD);
        let running = test.admit(&three, 1).await;
        let heavy = wait(&test, &three.wait(SECOND / 20), 3);
        let [not_polled, last] = [1, 1].map(|cost| wait(&test, &three.wait(MINUTE), cost));
        // A task, so that it is polled only when something wakes it.
        let last = tokio::spawn(last);
        wait_until_idle(&test.limiter).await;
        test.clock.advance(SECOND / 20);
        // The last call is polled because the clock has moved, and sees nothing to do.
        run_tasks().await;
        assert_busy(&soon(heavy).await.expect_err("busy"), 1);
        let last = soon(last).await.expect("no panic");
        drop((last.expect("admitted"), not_polled, running));
        wait_until_idle(&test.limiter).await;
        test.limiter.flush().await.expect("released");
        assert_eq!(test.in_flight(&three).await, 0);
    }
}

/// Also those behind a call that has time to wait, and which costs more than they do.
#[tokio::test]
async fn a_block_rejects_all_calls_that_cannot_wait_for_its_end() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let running = test.admit(&TWO, 1).await;
        let for_millis = |millis| TWO.wait(Duration::from_millis(millis));
        let patient = wait(&test, &for_millis(2_000), 2);
        let others = [300, 200, 100].map(|millis| wait(&test, &for_millis(millis), 1));
        test.limiter.block(&TWO, "key", SECOND).await.expect("blocked");
        let patient = tokio::spawn(patient);
        for call in others {
            let result = soon(call).await;
            assert!(matches!(result, Err(Rejection::Blocked { .. })), "{result:?}");
        }
        drop(running);
        test.limiter.flush().await.expect("released");
        assert!(!patient.is_finished());
        test.clock.advance(SECOND);
        drop(soon(patient).await.expect("no panic").expect("the key is open"));
    }
}
