//! Calls that wait until another one ends.

use std::time::Duration;

use futures::FutureExt;
use ratelimit_runtime::{Limit, Part, Rejection, Rule, RuleSet};
use support::limits::{MINUTE, SECOND};
use support::lines::{run_tasks, wait_until_idle};
use support::server::Server;
use tokio::time::timeout;

use crate::{HOLD, TWO, TestLimiter, assert_busy};

const ONE: Limit = Limit::in_flight("one", 1).hold(HOLD).wait(MINUTE);

#[tokio::test]
async fn the_end_of_a_call_wakes_the_next_in_line_at_once() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let running = test.admit(&ONE, 1).await;
        let limiter = &test.limiter;
        let mut line: Vec<_> = (0..3).map(|_| Box::pin(limiter.acquire(&ONE, "key", 1))).collect();
        for call in &mut line {
            assert!(call.now_or_never().is_none());
        }
        drop(running);
        for mut call in line {
            // First come, first served: the next in line is admitted, while the others wait.
            let permit = timeout(10 * SECOND, &mut call).await.expect("woken").expect("admitted");
            drop(permit);
        }
        assert_eq!(test.in_flight(&ONE).await, 0);
    }
}

#[tokio::test]
async fn calls_are_served_in_the_order_of_their_arrival() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let heavy = Limit::in_flight("heavy", 2).hold(HOLD).wait(MINUTE);
        let running = test.admit(&heavy, 1).await;
        let limiter = &test.limiter;
        let mut first = Box::pin(limiter.acquire(&heavy, "key", 2));
        let mut second = Box::pin(limiter.acquire(&heavy, "key", 1));
        assert!((&mut first).now_or_never().is_none());
        // It would fit, and does not overtake.
        assert!((&mut second).now_or_never().is_none());
        drop(running);
        let permit = timeout(10 * SECOND, &mut first).await.expect("woken").expect("admitted");
        assert!((&mut second).now_or_never().is_none());
        drop(permit);
        drop(timeout(10 * SECOND, &mut second).await.expect("woken").expect("admitted"));
        assert_eq!(test.in_flight(&heavy).await, 0);
    }
}

#[tokio::test]
async fn a_wait_ends_as_busy_and_nothing_is_invented() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let running = test.admit(&ONE, 1).await;
        let mut call = Box::pin(test.limiter.acquire(&ONE, "key", 1));
        assert!((&mut call).now_or_never().is_none());
        // A call behind others is not rejected before its time either.
        let mut behind = Box::pin(test.limiter.acquire(&ONE, "key", 1));
        assert!((&mut behind).now_or_never().is_none());
        test.clock.advance(Duration::from_millis(59_999));
        assert!((&mut call).now_or_never().is_none());
        test.clock.advance(Duration::from_millis(1));
        for call in [call, behind] {
            let rejection = timeout(10 * SECOND, call).await.expect("in time").expect_err("busy");
            assert_busy(&rejection, 1);
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
    let ended = timeout(10 * SECOND, second).await.expect("it has ended").expect("no panic");
    let rejection = ended.expect_err("it does not overtake");
    assert!(matches!(rejection, Rejection::Busy { .. }), "{rejection:?}");
    first.abort();
    drop(other);
}

/// A rate beside the calls in flight: the line asks again when the rate admits, and when a call ends.
#[tokio::test]
async fn a_line_waits_for_a_rate_and_for_calls_in_flight() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let rate = Limit::fixed("beside", 2, 10 * SECOND).wait(MINUTE);
        let parts = [Part::new(&rate, &"key", 1), Part::new(&ONE, &"key", 1)];
        let limiter = &test.limiter;
        let first = limiter.acquire_all(&parts).await.expect("admitted");
        let mut second = Box::pin(limiter.acquire_all(&parts));
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        let second = timeout(10 * SECOND, second).await.expect("woken").expect("admitted");
        // Both reject now: a rate for ten seconds, and the call that runs.
        let mut third = Box::pin(limiter.acquire_all(&parts));
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        tokio::task::yield_now().await;
        assert!((&mut third).now_or_never().is_none());
        test.clock.advance(10 * SECOND);
        drop(timeout(10 * SECOND, third).await.expect("in time").expect("admitted"));
        assert_eq!(test.in_flight(&ONE).await, 0);
    }
}

/// What was granted to a call that does not take it goes to the next in line.
#[tokio::test]
async fn a_call_that_is_dropped_or_not_polled_loses_nothing() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let limiter = &test.limiter;
        let running = test.admit(&ONE, 1).await;
        let mut dropped = Box::pin(limiter.acquire(&ONE, "key", 1));
        let mut last = Box::pin(limiter.acquire(&ONE, "key", 1));
        assert!((&mut dropped).now_or_never().is_none());
        assert!((&mut last).now_or_never().is_none());
        drop(running);
        // Dropped with its grant.
        drop(dropped);
        drop(timeout(10 * SECOND, last).await.expect("woken").expect("admitted"));
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
        let wait = |time, cost| {
            let mut call = Box::pin(test.limiter.acquire(&three.wait(time), "key", cost));
            assert!((&mut call).now_or_never().is_none());
            call
        };
        let heavy = wait(SECOND / 20, 3);
        let (not_polled, last) = (wait(MINUTE, 1), wait(MINUTE, 1));
        // A task, so that it is polled only when something wakes it.
        let last = tokio::spawn(last);
        wait_until_idle(&test.limiter).await;
        test.clock.advance(SECOND / 20);
        // The last call is polled because the clock has moved, and sees nothing to do.
        run_tasks().await;
        let rejection = timeout(10 * SECOND, heavy).await.expect("in time").expect_err("busy");
        assert_busy(&rejection, 1);
        let last = timeout(10 * SECOND, last).await.expect("woken").expect("no panic");
        drop((last.expect("admitted"), not_polled, running));
        wait_until_idle(&test.limiter).await;
        test.limiter.flush().await.expect("released");
        assert_eq!(test.in_flight(&three).await, 0);
    }
}

#[tokio::test]
async fn rules_that_raise_the_limit_admit_the_calls_that_wait() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let limiter = &test.limiter;
        let running = test.admit(&ONE, 1).await;
        let mut call = Box::pin(limiter.acquire(&ONE, "key", 1));
        assert!((&mut call).now_or_never().is_none());
        let set = |rule| {
            let mut rules = RuleSet::new();
            rules.set("one", rule).expect("valid");
            limiter.set_rules(rules).expect("valid");
        };
        set(Rule::new().in_flight(2));
        let second = timeout(10 * SECOND, call).await.expect("woken").expect("admitted");
        let mut call = Box::pin(limiter.acquire(&ONE, "key", 1));
        assert!((&mut call).now_or_never().is_none());
        set(Rule::new().blocked(true));
        let blocked = timeout(10 * SECOND, call).await.expect("woken").expect_err("blocked");
        assert!(matches!(blocked, Rejection::Blocked { .. }), "{blocked:?}");
        set(Rule::new());
        drop((running, second));
        // A request for the call that rules have rejected can still be under way.
        wait_until_idle(&test.limiter).await;
        assert_eq!(test.in_flight(&ONE).await, 0);
    }
}

/// Also those behind a call that has time to wait, and which costs more than they do.
#[tokio::test]
async fn a_block_rejects_all_calls_that_cannot_wait_for_its_end() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let limiter = &test.limiter;
        let running = test.admit(&TWO, 1).await;
        let wait = |millis, cost| {
            let limit = TWO.wait(Duration::from_millis(millis));
            let mut call = Box::pin(limiter.acquire(&limit, "key", cost));
            assert!((&mut call).now_or_never().is_none());
            call
        };
        let patient = wait(2_000, 2);
        let others = [wait(300, 1), wait(200, 1), wait(100, 1)];
        limiter.block(&TWO, "key", SECOND).await.expect("blocked");
        let mut patient = tokio::spawn(patient);
        for call in others {
            let result = timeout(10 * SECOND, call).await.expect("at once, not after its wait");
            assert!(matches!(result, Err(Rejection::Blocked { .. })), "{result:?}");
        }
        drop(running);
        limiter.flush().await.expect("released");
        assert!(!patient.is_finished());
        test.clock.advance(SECOND);
        let admitted = timeout(10 * SECOND, &mut patient).await.expect("the key is open");
        drop(admitted.expect("no panic").expect("admitted"));
    }
}

/// Neither is a rejection whose end is unknown.
#[tokio::test]
async fn a_call_that_does_not_wait_is_rejected_at_once_beside_a_line() {
    let server = Server::start();
    for test in TestLimiter::each(&server) {
        let running = [test.admit(&TWO, 1).await, test.admit(&TWO, 1).await];
        let waits = TWO.wait(MINUTE);
        let mut call = Box::pin(test.limiter.acquire(&waits, "key", 1));
        assert!((&mut call).now_or_never().is_none());
        test.assert_busy(&TWO, 2).await;
        drop(running);
        drop(timeout(10 * SECOND, call).await.expect("woken").expect("admitted"));
    }
}
