//! Calls that wait until another one ends, in this process or in another one.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use futures::FutureExt;
use ratelimit_runtime::{
    Acquire, Clock, Limit, OnError, Part, Permit, RateLimiter, Rejection, VirtualClock,
};
use support::cluster::Cluster;
use support::limits::{HOUR, MINUTE, SECOND};
use support::lines::{run_tasks, wait_until_decided, wait_until_idle};
use support::on_both_stores;
use support::server::Server;
use support::wait::wait_until;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::{HOLD, TWO, TestLimiter, assert_busy, process};

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

async fn soon<T>(call: impl Future<Output = T>) -> T {
    timeout(10 * SECOND, call).await.expect("in time")
}

on_both_stores! {
    async fn the_end_of_a_call_wakes_the_next_in_line_at_once(test: TestLimiter) {
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

    async fn a_wait_ends_as_busy_and_nothing_is_invented(test: TestLimiter) {
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

    /// The line asks again when the rate beside the calls in flight admits, and when a call ends.
    async fn a_line_waits_for_a_rate_and_for_calls_in_flight(test: TestLimiter) {
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

    /// The call behind one whose wait ends is not polled. Those behind it do not wait for it.
    async fn the_end_of_a_wait_admits_the_calls_behind_one_that_is_not_polled(test: TestLimiter) {
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

    /// Also those behind a call that has time to wait, and which costs more than they do.
    async fn a_block_rejects_all_calls_that_cannot_wait_for_its_end(test: TestLimiter) {
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

// Calls that wait for the units of another limiter: a busy one does not keep them for itself.

/// A call waits for a second, looks again, and has the next units with one of its next looks.
const BOUND: Duration = Duration::from_millis(3_500);

const ONE_FOR_AN_HOUR: Limit = Limit::in_flight("one", 1).hold(HOUR).wait(HOUR);
const THREE: Limit = Limit::in_flight("three", 3).hold(HOUR).wait(HOUR);
const RATE: Limit = Limit::fixed("rate", 1_000_000, HOUR).wait(HOUR);

async fn acquire(
    limiter: &RateLimiter,
    limit: &Limit,
    cost: u64,
    is_rated: bool,
) -> Result<Vec<Permit>, Rejection> {
    let slots = Part::new(limit, &"key", cost);
    let rate = is_rated.then(|| Part::new(&RATE, &"key", 1));
    limiter.acquire_all(&rate.into_iter().chain([slots]).collect::<Vec<_>>()).await
}

/// Ends a call, and waits until its slot is free for other processes.
async fn release(permits: Vec<Permit>) {
    permits.into_iter().last().expect("a slot").release().await.expect("a reply");
}

/// Tasks of a process that call one after another, so that some always wait.
fn endless(limiter: &RateLimiter, limit: Limit, is_rated: bool) -> (JoinSet<()>, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let task = |_| {
        let (limiter, calls) = (limiter.clone(), Arc::clone(&calls));
        async move {
            loop {
                let _permits = acquire(&limiter, &limit, 1, is_rated).await.expect("admitted");
                calls.fetch_add(1, Relaxed);
                sleep(Duration::from_millis(25)).await;
            }
        }
    };
    ((0..8).map(task).collect(), calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_call_is_served_beside_a_process_that_always_waits() {
    let server = Server::start();
    for (limit, cost, is_rated) in
        [(ONE_FOR_AN_HOUR, 1, false), (THREE, 3, false), (ONE_FOR_AN_HOUR, 1, true)]
    {
        let (busy, single) = (process(&server), process(&server));
        let (tasks, calls) = endless(&busy, limit, is_rated);
        for _ in 0..2 {
            let before = calls.load(Relaxed);
            wait_until(async || calls.load(Relaxed) >= before + 5).await;
            let started = Instant::now();
            let admitted = timeout(2 * BOUND, acquire(&single, &limit, cost, is_rated)).await;
            let permits = admitted.expect("served").expect("admitted");
            assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
            release(permits).await;
        }
        drop(tasks);
        busy.reset(&limit, "key").await.expect("reset");
    }
}

/// A process that waited and does not any more holds up no other: units are kept for a second and a half at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_are_not_kept_for_a_call_that_was_dropped() {
    let server = Server::start();
    let (one, other, third) = (process(&server), process(&server), process(&server));
    let held = acquire(&one, &ONE_FOR_AN_HOUR, 1, false).await.expect("admitted");
    let dropped = timeout(BOUND, acquire(&other, &ONE_FOR_AN_HOUR, 1, false)).await;
    assert!(dropped.is_err(), "the unit is held");
    release(held).await;
    let started = Instant::now();
    let at_once = Limit::in_flight("one", 1).hold(HOUR);
    while acquire(&third, &at_once, 1, false).await.is_err() {
        assert!(started.elapsed() < 2 * SECOND, "{:?}", started.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
}

/// Redis charges the rate in one hash slot, and rejects the call in another. Then the limiter gives the charge back.
#[tokio::test]
async fn a_line_does_not_ask_again_because_its_own_charge_was_given_back() {
    let cluster = Cluster::start(0);
    let clock = VirtualClock::new();
    let process = || {
        let builder = RateLimiter::builder().redis(cluster.url()).on_error(OnError::Deny);
        builder.clock(Clock::Virtual(clock.clone())).deadline(10 * SECOND).build().expect("valid")
    };
    let (one, other, third) = (process(), process(), process());
    let held = acquire(&one, &ONE_FOR_AN_HOUR, 1, false).await.expect("admitted");
    let next = tokio::spawn(other.acquire(&ONE_FOR_AN_HOUR, "key", 1));
    for waited in [SECOND, SECOND / 10] {
        wait_until_decided(&other).await;
        clock.advance(waited);
    }
    wait_until_decided(&other).await;
    // The unit is free, and kept for the other process, which does not look again before the clock moves.
    release(held).await;
    let parts = [Part::new(&RATE, &"apart", 1), Part::new(&ONE_FOR_AN_HOUR, &"key", 1)];
    let last = tokio::spawn(third.acquire_all(&parts));
    soon(wait_until_decided(&third)).await;
    assert!(!next.is_finished() && !last.is_finished());
    clock.advance(SECOND);
    release(vec![soon(next).await.expect("no panic").expect("admitted")]).await;
    clock.advance(2 * SECOND);
    assert_eq!(soon(last).await.expect("no panic").expect("admitted").len(), 2);
}
