//! Closed keys: nothing is admitted until the opening, in any way, in any process.

use std::time::Duration;

use futures::FutureExt;
use ratelimit_runtime::{
    Algorithm, Clock, Decision, Limit, OnError, Part, RateLimiter, Rejection, Source, StoreError,
    VirtualClock, rate_limit,
};
use support::ALGORITHMS;
use support::proxy::Proxy;
use support::server::Server;
use tokio::time::timeout;

use crate::{on_both_stores, settle_lines};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// A limit of each algorithm: 10 a minute.
fn limits() -> impl Iterator<Item = Limit> {
    ALGORITHMS.into_iter().map(|algorithm| limit(algorithm, 10))
}

fn limit(algorithm: Algorithm, threshold: u32) -> Limit {
    let limit = Limit::new("closed", algorithm, threshold, MINUTE).expect("valid");
    if is_bucket(&limit) { limit.burst(threshold) } else { limit }
}

fn is_bucket(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket)
}

/// Returns the wait of a call that is rejected because its key is closed.
#[track_caller]
fn closed(result: Result<Decision, Rejection>) -> Duration {
    match result {
        Err(Rejection::Closed { decision, .. }) => {
            assert_eq!((decision.allowed, decision.remaining), (false, 0));
            decision.retry_after
        }
        other => panic!("the key is not closed: {other:?}"),
    }
}

on_both_stores! {
    async fn a_closed_key_admits_nothing_until_its_opening(test: TestLimiter) {
        for limit in limits() {
            let check = async |cost| test.limiter.check(&limit, "key", cost).await;
            test.limiter.close(&limit, "key", 30 * SECOND).await.expect("closed");
            for cost in [0, 1, 10] {
                assert_eq!(closed(check(cost).await), 30 * SECOND, "{limit:?}");
            }
            let peek = test.limiter.peek(&limit, "key", 1).await.expect("a decision");
            assert_eq!((peek.allowed, peek.retry_after), (false, 30 * SECOND));
            assert!(test.limiter.check(&limit, "another key", 1).await.is_ok());
            test.advance(29_999_999);
            assert_eq!(closed(check(1).await), Duration::from_micros(1));
            test.advance(1);
            assert_eq!(check(10).await.expect("open").remaining, 0, "{limit:?}");
        }
    }

    async fn the_wait_is_the_later_of_the_opening_and_the_limit(test: TestLimiter) {
        for limit in limits() {
            let check = async |cost| test.limiter.check(&limit, "key", cost).await;
            check(10).await.expect("a new key");
            let Err(Rejection::Limited { decision, .. }) = check(10).await else { panic!() };
            let own = decision.retry_after;
            test.limiter.close(&limit, "key", SECOND).await.expect("closed");
            // A bucket stands still for a second.
            let still = if is_bucket(&limit) { own } else { Duration::ZERO };
            let expected = if is_bucket(&limit) { own + SECOND } else { own };
            assert_eq!(closed(check(10).await), expected, "{limit:?}");
            test.advance(1_000_000);
            let Err(Rejection::Limited { decision, .. }) = check(10).await else { panic!() };
            assert_eq!(decision.retry_after, expected - SECOND);
            test.limiter.close(&limit, "key", 10 * MINUTE).await.expect("closed");
            let wait = closed(check(10).await);
            assert_eq!(wait, 10 * MINUTE + still, "{limit:?}");
            test.clock.advance(wait - Duration::from_micros(1));
            check(10).await.expect_err("a microsecond early");
            test.clock.advance(Duration::from_micros(1));
            check(10).await.expect("open");
        }
    }

    async fn the_later_opening_holds_and_open_and_reset_open(test: TestLimiter) {
        for limit in limits() {
            let check = async || test.limiter.check(&limit, "key", 1).await;
            let close = async |time| test.limiter.close(&limit, "key", time).await.expect("closed");
            let open = async || test.limiter.open(&limit, "key").await.expect("opened");
            assert!(!open().await);
            close(20 * SECOND).await;
            close(10 * SECOND).await;
            assert_eq!(closed(check().await), 20 * SECOND);
            test.advance(10_000_000);
            close(20 * SECOND).await;
            assert_eq!(closed(check().await), 20 * SECOND);
            close(Duration::ZERO).await;
            assert!(open().await && !open().await);
            check().await.expect("open");
            close(20 * SECOND).await;
            assert!(test.limiter.reset(&limit, "key").await.expect("reset"));
            assert_eq!(check().await.expect("open").remaining, 9, "{limit:?}");
            close(Duration::MAX).await;
            assert!(closed(check().await) > 36_000 * 24 * 60 * MINUTE);
            assert!(test.limiter.reset(&limit, "key").await.expect("reset"));
        }
    }

    async fn a_closed_key_rejects_a_call_against_several_limits(test: TestLimiter) {
        for limit in limits() {
            let wide = Limit::sliding("wide", 100, MINUTE);
            let parts = [Part::new(&wide, &"key", 1), Part::new(&limit, &"key", 1)];
            test.limiter.check_all(&parts).await.expect("admitted");
            test.limiter.close(&limit, "key", SECOND).await.expect("closed");
            let Err(Rejection::Closed { name, .. }) = test.limiter.check_all(&parts).await else {
                panic!("the key is closed");
            };
            assert_eq!(name.as_str(), "closed");
            let acquired = test.limiter.acquire_all(&parts).await;
            assert!(matches!(acquired, Err(Rejection::Closed { .. })));
            assert_eq!(test.limiter.peek(&wide, "key", 1).await.expect("open").remaining, 99);
            test.advance(1_000_000);
            test.limiter.check_all(&parts).await.expect("open");
            test.limiter.reset(&wide, "key").await.expect("reset");
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    async fn a_shadow_reports_and_admits(test: TestLimiter) {
        let limit = Limit::sliding("closed", 10, MINUTE).shadow(true);
        test.limiter.close(&limit, "key", SECOND).await.expect("closed");
        let decision = test.limiter.check(&limit, "key", 1).await.expect("a shadow");
        assert_eq!((decision.allowed, decision.retry_after), (false, SECOND));
    }

    async fn a_long_log_can_be_closed_settled_and_reset(test: TestLimiter) {
        let limit = Limit::sliding("closed long log", 20_000, MINUTE);
        let mut permits = Vec::new();
        for _ in 0..9_000 {
            permits.push(test.limiter.acquire(&limit, "key", 1).await.expect("admitted"));
            test.advance(1_000);
        }
        test.limiter.close(&limit, "key", SECOND).await.expect("closed");
        for permit in permits.drain(..).step_by(3) {
            permit.refund();
        }
        test.limiter.flush().await.expect("settled");
        test.limiter.refund(&limit, "key", 10).await.expect("refunded");
        assert_eq!(closed(test.limiter.check(&limit, "key", 1).await), SECOND);
        assert!(test.limiter.open(&limit, "key").await.expect("opened"));
        let remaining = test.limiter.peek(&limit, "key", 1).await.expect("open").remaining;
        assert_eq!(remaining, 20_000 - 6_000 + 10);
        test.limiter.close(&limit, "key", SECOND).await.expect("closed");
        assert!(test.limiter.reset(&limit, "key").await.expect("reset"));
        assert_eq!(test.limiter.peek(&limit, "key", 1).await.expect("open").remaining, 20_000);
    }

    async fn waiting_calls_go_on_in_order_once_the_key_opens(test: TestLimiter) {
        for limit in limits() {
            let waiting = limit.clone().wait(10 * MINUTE);
            test.limiter.close(&limit, "key", 2 * MINUTE).await.expect("closed");
            let (sender, mut admitted) = tokio::sync::mpsc::unbounded_channel();
            let mut calls = tokio::task::JoinSet::new();
            for number in 0..15 {
                let (sender, check) = (sender.clone(), test.limiter.check(&waiting, "key", 1));
                calls.spawn(async move {
                    check.await.expect("admitted");
                    sender.send(number).expect("a receiver");
                });
                tokio::task::yield_now().await;
            }
            let takes_nothing = tokio::spawn(test.limiter.check(&waiting, "key", 0));
            settle_lines(&test.limiter).await;
            assert!(!takes_nothing.is_finished());
            // A call that cannot wait long enough is rejected at once.
            let impatient = limit.clone().wait(MINUTE);
            let rejection = test.limiter.check(&impatient, "key", 1).await;
            assert!(closed(rejection) >= 2 * MINUTE, "{limit:?}");
            assert_eq!(closed(test.limiter.check(&impatient, "key", 0).await), 2 * MINUTE);
            test.clock.advance(2 * MINUTE - Duration::from_micros(1));
            settle_lines(&test.limiter).await;
            assert!(admitted.try_recv().is_err(), "{limit:?}: a call started before the opening");
            let mut order = Vec::new();
            for _ in 0..40 {
                test.clock.advance(limit.period() / 10);
                settle_lines(&test.limiter).await;
                while let Ok(number) = admitted.try_recv() {
                    order.push(number);
                }
            }
            assert_eq!(order, (0..15).collect::<Vec<_>>(), "{limit:?}");
            while calls.join_next().await.is_some() {}
            takes_nothing.await.expect("no panic").expect("admitted");
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }

    async fn an_open_lets_waiting_calls_go_on(test: TestLimiter) {
        for limit in limits() {
            let waiting = limit.clone().wait(10 * MINUTE);
            test.limiter.close(&limit, "key", 5 * MINUTE).await.expect("closed");
            let call = tokio::spawn(test.limiter.check(&waiting, "key", 1));
            settle_lines(&test.limiter).await;
            assert!(!call.is_finished());
            test.limiter.open(&limit, "key").await.expect("opened");
            settle_lines(&test.limiter).await;
            timeout(5 * SECOND, call).await.expect("soon").expect("no panic").expect("admitted");
        }
    }

    /// A bucket reserves moments ahead. After the key is closed, no call starts at its reserved moment.
    async fn reserved_calls_start_after_the_opening(test: TestLimiter) {
        for burst in [1, 10] {
            let limit = Limit::token_bucket("reserved", 10, SECOND).burst(burst);
            let waiting = limit.clone().wait(MINUTE);
            test.limiter.check(&limit, "key", burst).await.expect("a new key");
            let mut calls: Vec<_> = (0..5)
                .map(|_| tokio::spawn(test.limiter.check(&waiting, "key", 1)))
                .collect();
            settle_lines(&test.limiter).await;
            test.limiter.close(&limit, "key", 10 * SECOND).await.expect("closed");
            settle_lines(&test.limiter).await;
            for _ in 0..19 {
                test.clock.advance(SECOND / 2);
                settle_lines(&test.limiter).await;
            }
            assert!(calls.iter().all(|call| !call.is_finished()), "a call started while closed");
            test.clock.advance(SECOND / 2);
            for started in 0..=5 {
                settle_lines(&test.limiter).await;
                let finished = calls.iter().filter(|call| call.is_finished()).count();
                assert_eq!(finished, started, "burst {burst}");
                test.clock.advance(SECOND / 10);
            }
            for call in calls.drain(..) {
                call.await.expect("no panic").expect("admitted");
            }
            test.limiter.reset(&limit, "key").await.expect("reset");
        }
    }
}

fn limiter(server: &Server, clock: &VirtualClock) -> RateLimiter {
    server.builder().clock(Clock::Virtual(clock.clone())).build().expect("valid settings")
}

/// Two processes hold reservations in one bucket, one between those of the other.
#[tokio::test]
async fn reservations_of_several_processes_are_cancelled_in_any_order() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let processes = [limiter(&server, &clock), limiter(&server, &clock)];
    let limit = Limit::leaky_bucket("reserved", 10, SECOND);
    let waiting = limit.clone().wait(MINUTE);
    processes[0].check(&limit, "key", 1).await.expect("a new key");
    let mut calls = Vec::new();
    for number in 0..6 {
        calls.push(tokio::spawn(processes[number % 2].check(&waiting, "key", 1)));
        settle_lines(&processes[number % 2]).await;
    }
    processes[0].close(&limit, "key", 10 * SECOND).await.expect("closed");
    // The other process looks within a second. A second's worth of calls may start until then.
    clock.advance(Duration::from_micros(1));
    settle_lines(&processes[0]).await;
    let other: Vec<_> = calls.iter().skip(1).step_by(2).collect();
    let (mut started, opening) = (0, clock.now() + 10 * SECOND - Duration::from_micros(1));
    while clock.now() + SECOND / 10 < opening {
        clock.advance(SECOND / 10);
        for process in &processes {
            settle_lines(process).await;
        }
        assert!(calls.iter().step_by(2).all(|call| !call.is_finished()), "the own calls obey");
        let finished = other.iter().filter(|call| call.is_finished()).count();
        assert!(finished == started || clock.now() + 9 * SECOND <= opening + SECOND / 10);
        started = finished;
    }
    assert!(started < 6);
    clock.advance(opening - clock.now());
    let mut finished = started;
    for _ in 0..40 {
        for process in &processes {
            settle_lines(process).await;
        }
        let now = calls.iter().filter(|call| call.is_finished()).count();
        assert!(now <= finished + 1, "{now} calls, {finished} before");
        finished = now;
        clock.advance(SECOND / 10);
    }
    assert_eq!(finished, 6);
    for call in calls {
        timeout(5 * SECOND, call).await.expect("soon").expect("no panic").expect("admitted");
    }
}

#[tokio::test]
async fn leased_units_are_not_spent_after_a_second() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let [here, there] = [limiter(&server, &clock), limiter(&server, &clock)];
    for limit in limits() {
        let threshold = 10_000;
        let limit = crate::closed_keys::limit(limit.algorithm(), threshold).lease(50);
        for limiter in [&here, &there] {
            for _ in 0..200 {
                limiter.check(&limit, "key", 1).await.expect("admitted");
            }
            let leased = limiter.check(&limit, "key", 1).await.expect("admitted");
            assert_eq!(leased.source, Source::Lease, "{limit:?}");
        }
        here.close(&limit, "key", MINUTE).await.expect("closed");
        closed(here.check(&limit, "key", 1).await);
        clock.advance(SECOND);
        closed(there.check(&limit, "key", 1).await);
        clock.advance(MINUTE - SECOND);
        there.check(&limit, "key", 1).await.expect("open");
        here.reset(&limit, "key").await.expect("reset");
        there.reset(&limit, "key").await.expect("reset");
    }
}

#[tokio::test]
async fn other_processes_obey_with_their_next_request() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let [here, there] = [limiter(&server, &clock), limiter(&server, &clock)];
    for limit in limits() {
        there.check(&limit, "key", 1).await.expect("admitted");
        here.close(&limit, "key", 10 * SECOND).await.expect("closed");
        assert_eq!(closed(there.check(&limit, "key", 1).await), 10 * SECOND);
        // From the rejection cache, until the process looks again after a second.
        let cached = there.check(&limit, "key", 1).await.expect_err("closed");
        let Rejection::Closed { decision, .. } = cached else { panic!("{cached:?}") };
        assert_eq!(decision.source, Source::Cache, "{limit:?}");
        assert!(here.open(&limit, "key").await.expect("opened"));
        here.check(&limit, "key", 1).await.expect("open");
        clock.advance(SECOND);
        there.check(&limit, "key", 1).await.expect("open");
        // A cached rejection of the limit hides the closing for a second at most.
        while there.check(&limit, "key", 1).await.is_ok() {}
        here.close(&limit, "key", HOUR).await.expect("closed");
        let cached = there.check(&limit, "key", 1).await.expect_err("limited");
        let Rejection::Limited { decision, .. } = cached else { panic!("{cached:?}") };
        assert_eq!(decision.source, Source::Cache, "{limit:?}");
        clock.advance(SECOND);
        closed(there.check(&limit, "key", 1).await);
    }
}

#[tokio::test]
async fn a_foreign_value_is_not_closed() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid settings");
    for limit in limits() {
        limiter.check(&limit, "key", 1).await.expect("admitted");
        let mut connection = server.connection();
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).expect("keys");
        for key in &keys {
            redis::cmd("SET").arg(key).arg("foreign").exec(&mut connection).expect("set");
        }
        limiter.close(&limit, "key", SECOND).await.expect_err("not the state of a limit");
        limiter.open(&limit, "key").await.expect_err("not the state of a limit");
        for key in &keys {
            let value: String = redis::cmd("GET").arg(key).query(&mut connection).expect("a value");
            assert_eq!(value, "foreign");
        }
        redis::cmd("FLUSHALL").exec(&mut connection).expect("flushed");
    }
}

/// Redis needs a runtime, the embedded store does not.
#[test]
fn a_key_is_closed_without_a_runtime_only_here() {
    let server = Server::start();
    let limit = Limit::sliding("closed", 10, MINUTE);
    let here = RateLimiter::embedded();
    assert_eq!(here.close(&limit, "key", SECOND).now_or_never(), Some(Ok(())));
    assert_eq!(here.open(&limit, "key").now_or_never(), Some(Ok(true)));
    let there = server.builder().build().expect("valid settings");
    assert_eq!(there.close(&limit, "key", SECOND).now_or_never(), Some(Err(StoreError::NoRuntime)));
}

/// A dead Redis cannot close a key. The process obeys for the calls that it decides alone.
#[tokio::test]
async fn a_fallback_obeys_the_process_that_closed() {
    let server = Server::start();
    let builder = server.builder().on_error(OnError::Local).deadline(SECOND / 5);
    let limiter = builder.build().expect("valid settings");
    let limit = Limit::sliding("closed", 10, MINUTE);
    limiter.check(&limit, "key", 1).await.expect("admitted");
    limiter.close(&limit, "key", MINUTE).await.expect("closed");
    drop(server);
    let Err(Rejection::Closed { decision, .. }) = limiter.check(&limit, "key", 1).await else {
        panic!("the process knows that the key is closed");
    };
    assert_eq!(decision.source, Source::Fallback);
    limiter.close(&limit, "another key", MINUTE).await.expect_err("Redis does not reply");
    closed(limiter.check(&limit, "another key", 1).await);
}

/// A service that takes no calls for a minute.
#[rate_limit(period = 60, threshold = 10, name = "upstream", close = |result| match result {
    Err(UpstreamError::TryAgain) => Some(MINUTE),
    _ => None,
})]
async fn call_upstream() -> Result<(), UpstreamError> {
    Err(UpstreamError::TryAgain)
}

#[derive(Debug)]
enum UpstreamError {
    TryAgain,
    Limited(Rejection),
}

impl From<Rejection> for UpstreamError {
    fn from(rejection: Rejection) -> Self {
        Self::Limited(rejection)
    }
}

/// Redis closes the key in the background. A call that follows at once is rejected all the same.
#[tokio::test]
async fn a_process_obeys_its_own_closing_at_once() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(30));
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let builder = RateLimiter::builder().redis(url).deadline(SECOND);
    let limiter = builder.build().expect("valid settings");
    let mut closed = 0;
    let run = async {
        for _ in 0..5 {
            match call_upstream().await.expect_err("never succeeds") {
                UpstreamError::TryAgain => {}
                UpstreamError::Limited(Rejection::Closed { .. }) => closed += 1,
                UpstreamError::Limited(other) => panic!("{other:?}"),
            }
        }
    };
    limiter.scope(run).await;
    assert_eq!(closed, 4);
    limiter.flush().await.expect("sent");
    let there = server.builder().build().expect("valid settings");
    let rejection = there.scope(call_upstream()).await.expect_err("closed by the other process");
    assert!(matches!(rejection, UpstreamError::Limited(Rejection::Closed { .. })), "{rejection:?}");
}

/// The server is gone when the call ends.
#[rate_limit(period = 60, threshold = 10, name = "upstream", close = |result| match result {
    Err(UpstreamError::TryAgain) => Some(MINUTE),
    _ => None,
})]
async fn call_and_stop(server: Server) -> Result<(), UpstreamError> {
    drop(server);
    Err(UpstreamError::TryAgain)
}

/// Redis has charged the call, and cannot close its key. The process closes it for the calls that it decides alone.
#[tokio::test]
async fn a_closing_that_is_lost_holds_in_its_process() {
    let server = Server::start();
    let builder = server.builder().on_error(OnError::Local).deadline(SECOND / 5);
    let limiter = builder.build().expect("valid settings");
    let run = async {
        call_and_stop(server).await.expect_err("never succeeds");
        let rejection = call_upstream().await.expect_err("closed");
        let UpstreamError::Limited(Rejection::Closed { decision, .. }) = rejection else {
            panic!("{rejection:?}");
        };
        assert_eq!(decision.source, Source::Fallback);
    };
    limiter.scope(run).await;
}
