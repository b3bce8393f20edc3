//! Calls that wait for the units of another limiter: a busy one does not keep them for itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ratelimit_runtime::{
    Clock, Limit, OnError, Part, Permit, RateLimiter, Rejection, VirtualClock,
};
use support::cluster::Cluster;
use support::limits::{HOUR, SECOND};
use support::lines::wait_until_decided;
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// A call waits for a second, looks again, and has the next units with one of its next looks.
const BOUND: Duration = Duration::from_millis(3_500);

const ONE: Limit = Limit::in_flight("one", 1).hold(HOUR).wait(HOUR);
const THREE: Limit = Limit::in_flight("three", 3).hold(HOUR).wait(HOUR);
const RATE: Limit = Limit::fixed("rate", 1_000_000, HOUR).wait(HOUR);

fn process(server: &Server) -> RateLimiter {
    let builder = server.builder().on_error(OnError::Deny).deadline(SECOND);
    builder.build().expect("valid")
}

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
    let (mut tasks, calls) = (JoinSet::new(), Arc::new(AtomicU32::new(0)));
    for _ in 0..8 {
        let (limiter, calls) = (limiter.clone(), Arc::clone(&calls));
        tasks.spawn(async move {
            loop {
                let _permits = acquire(&limiter, &limit, 1, is_rated).await.expect("admitted");
                calls.fetch_add(1, Relaxed);
                sleep(Duration::from_millis(25)).await;
            }
        });
    }
    (tasks, calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_call_is_served_beside_a_process_that_always_waits() {
    let server = Server::start();
    for (limit, cost, is_rated) in [(ONE, 1, false), (THREE, 3, false), (ONE, 1, true)] {
        let (busy, single) = (process(&server), process(&server));
        let (tasks, calls) = endless(&busy, limit, is_rated);
        for _ in 0..2 {
            let before = calls.load(Relaxed);
            while calls.load(Relaxed) < before + 5 {
                sleep(Duration::from_millis(20)).await;
            }
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
    let held = acquire(&one, &ONE, 1, false).await.expect("admitted");
    let dropped = timeout(BOUND, acquire(&other, &ONE, 1, false)).await;
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
    let held = acquire(&one, &ONE, 1, false).await.expect("admitted");
    let next = tokio::spawn({
        let other = other.clone();
        async move { acquire(&other, &ONE, 1, false).await }
    });
    for waited in [SECOND, SECOND / 10] {
        wait_until_decided(&other).await;
        clock.advance(waited);
    }
    wait_until_decided(&other).await;
    // The unit is free, and kept for the other process, which does not look again before the clock moves.
    release(held).await;
    let last = tokio::spawn({
        let third = third.clone();
        async move {
            let parts = [Part::new(&RATE, &"apart", 1), Part::new(&ONE, &"key", 1)];
            third.acquire_all(&parts).await
        }
    });
    timeout(10 * SECOND, wait_until_decided(&third)).await.expect("the line rests");
    assert!(!next.is_finished() && !last.is_finished());
    clock.advance(SECOND);
    let permits = timeout(10 * SECOND, next).await.expect("served").expect("no panic");
    release(permits.expect("admitted")).await;
    clock.advance(2 * SECOND);
    let permits = timeout(10 * SECOND, last).await.expect("served").expect("no panic");
    assert_eq!(permits.expect("admitted").len(), 2);
}
