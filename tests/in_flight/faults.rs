//! Several limiters on one Redis in real time, and what fails between them. `models/` has requests that arrive late.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::poll;
use ratelimit_runtime::{Limit, OnError, Permit, RateLimiter, Rejection, Rule, Source, rate_limit};
use redis::Commands;
use support::limits::{SECOND, ruled};
use support::proxy::{Network, Proxy};
use support::server::Server;
use support::wait::{wait_for, wait_until};
use tokio::time::{sleep, timeout};

use crate::{assert_busy, process};

const HOLD: Duration = Duration::from_secs(2);
const TWO: Limit = Limit::in_flight("two", 2).hold(HOLD);

async fn acquire(limiter: &RateLimiter, limit: &Limit) -> Result<Permit, Rejection> {
    limiter.acquire(limit, "key", 1).await
}

async fn acquire_soon(limiter: &RateLimiter, limit: &Limit) -> Permit {
    wait_for(async || acquire(limiter, limit).await.ok()).await
}

async fn wait_until_counted(limiter: &RateLimiter, limit: &Limit, units: u64, patience: Duration) {
    let started = Instant::now();
    loop {
        let peeked = limiter.peek(limit, "key", 0).await.expect("admitted");
        if peeked.limit - peeked.remaining == units {
            return;
        }
        assert!(started.elapsed() < patience, "{peeked:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn processes_share_a_count_and_hear_of_releases() {
    let server = Server::start();
    let (one, other) = (process(&server), process(&server));
    let first = acquire(&one, &TWO).await.expect("admitted");
    let second = acquire(&other, &TWO).await.expect("admitted");
    for limiter in [&one, &other] {
        assert_busy(&acquire(limiter, &TWO).await.expect_err("busy"), 2);
    }
    // Known to the other process as soon as the future completes.
    first.release().await.expect("a reply");
    let third = acquire(&other, &TWO).await.expect("admitted");
    drop(second);
    let fourth = acquire_soon(&one, &TWO).await;
    // Heartbeats keep them beyond the hold, also that of a limiter that was dropped.
    drop(one);
    sleep(2 * HOLD).await;
    assert!(!third.is_lost() && !fourth.is_lost());
    assert_busy(&acquire(&other, &TWO).await.expect_err("busy"), 2);
    drop((third, fourth));
    wait_until_counted(&other, &TWO, 0, SECOND).await;
    server.assert_all_keys_expire();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_cut_off_loses_its_units_before_another_has_them() {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let cut_off =
        proxy.builder().on_error(OnError::Deny).deadline(SECOND / 2).build().expect("valid");
    let other = process(&server);
    let first = acquire(&cut_off, &TWO).await.expect("admitted");
    let second = acquire(&cut_off, &TWO).await.expect("admitted");
    proxy.set(Network::Cut);
    let started = Instant::now();
    let waits = async { (acquire_soon(&other, &TWO).await, Instant::now()) };
    let loses = async {
        timeout(10 * SECOND, first.lost()).await.expect("lost");
        (first.is_lost() && second.is_lost(), Instant::now())
    };
    let ((permit, admitted_at), (both_are_lost, lost_at)) = tokio::join!(waits, loses);
    assert!(both_are_lost && lost_at - started > HOLD / 3, "not before its time");
    assert!(admitted_at > lost_at, "both ran at the same time");
    // Units that were lost free nothing once the network is back.
    let third = acquire(&other, &TWO).await.expect("admitted");
    proxy.set(Network::Up);
    drop((first, second));
    sleep(SECOND).await;
    assert_busy(&acquire(&other, &TWO).await.expect_err("busy"), 2);
    drop((permit, third));
    drop(acquire_soon(&cut_off, &TWO).await);
}

#[tokio::test]
async fn a_reset_loses_the_units_of_every_process() {
    let server = Server::start();
    let (one, other) = (process(&server), process(&server));
    let permit = acquire(&one, &TWO).await.expect("admitted");
    let foreign = acquire(&other, &TWO).await.expect("admitted");
    assert!(one.reset(&TWO, "key").await.expect("reset"));
    assert!(permit.is_lost());
    timeout(HOLD, foreign.lost()).await.expect("with the next heartbeat");
    let both = [acquire(&one, &TWO).await, acquire(&other, &TWO).await];
    assert!(both.iter().all(Result::is_ok), "{both:?}");
    drop((permit, foreign));
    sleep(HOLD).await;
    assert_busy(&acquire(&one, &TWO).await.expect_err("busy"), 2);
    assert!(both.iter().flatten().all(|permit| !permit.is_lost()));
}

/// In less time than a heartbeat of a long hold takes. A process knows at once of its own reset, so it keeps what its
/// fallback admits afterwards.
#[tokio::test]
async fn calls_of_an_outage_that_another_limit_has_found_are_counted_at_once() {
    for resets in [false, true] {
        let server = Server::start();
        let proxy = Proxy::start(server.port(), Duration::ZERO);
        let limiter =
            proxy.builder().on_error(OnError::Local).deadline(SECOND / 2).build().expect("valid");
        let long = TWO.hold(300 * SECOND);
        let before = acquire(&limiter, &long).await.expect("admitted");
        if resets {
            limiter.reset(&long, "key").await.expect("reset");
        }
        proxy.set(Network::Cut);
        let rate = Limit::fixed("rate", 1_000, SECOND);
        for _ in 0..10 {
            drop(acquire(&limiter, &rate).await.expect("admitted by the fallback"));
        }
        let local = acquire(&limiter, &long).await.expect("admitted");
        assert_eq!(local.decision().source, Source::Fallback);
        proxy.set(Network::Up);
        let counted = if resets { 1 } else { 2 };
        wait_until_counted(&process(&server), &long, counted, 10 * SECOND).await;
        assert_eq!((before.is_lost(), local.is_lost()), (resets, false));
    }
}

#[rate_limit(in_flight = 2, name = "held by an attribute")]
async fn held() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn a_hold_is_thirty_seconds_unless_set() {
    let server = Server::start();
    let limiter = process(&server);
    let written = r#"{"name": "held by a file", "in_flight": 1}"#;
    let limits = [Limit::in_flight("held", 1), serde_json::from_str(written).expect("a limit")];
    limiter.set_rules(ruled("held", Rule::new().in_flight(2))).expect("valid");
    for limit in limits {
        assert_eq!(limit.policy().hold, Some(30 * SECOND));
        let permit = acquire(&limiter, &limit).await.expect("admitted");
        assert_eq!(permit.decision().source, Source::Redis);
        let (mut connection, pattern) = (server.connection(), format!("*:{}{{*", limit.name()));
        let keys: Vec<String> = connection.keys(pattern).expect("KEYS");
        let ttl: i64 = connection.pttl(&keys[0]).expect("PTTL");
        assert!((29_000..=61_000).contains(&ttl), "{keys:?}: {ttl}");
        drop(permit);
    }
    limiter.scope(held()).await.expect("admitted");
    assert_eq!(Limit::fixed("rate", 1, SECOND).policy().hold, None);
    let own = Limit::in_flight("own", 2).scope(ratelimit_runtime::Scope::Process);
    let permit = acquire(&limiter, &own).await.expect("admitted");
    assert_eq!(permit.decision().source, Source::Embedded);
}

#[tokio::test]
async fn a_shutdown_reports_what_is_in_flight() {
    let server = Server::start();
    let limiter = process(&server);
    let permit = acquire(&limiter, &TWO).await.expect("admitted");
    let error = limiter.shutdown().await.expect_err("in flight");
    assert!(error.to_string().contains("1 units in flight"), "{error}");
    drop(permit);
    limiter.shutdown().await.expect("all has ended");
    wait_until_counted(&process(&server), &TWO, 0, Duration::ZERO).await;
}

/// Redis forgets a reset a hold later. The process that has reset the count still has a call from before.
#[tokio::test]
async fn a_forgotten_reset_loses_no_later_units() {
    let server = Server::start();
    let [one, other] = [(); 2].map(|()| process(&server));
    let three = Limit::in_flight("three", 3).hold(SECOND);
    let earlier = acquire(&one, &three).await.expect("admitted");
    assert!(one.reset(&three, "key").await.expect("reset") && earlier.is_lost());
    wait_until(async || server.ttls().is_empty()).await;
    let later = acquire(&other, &three).await.expect("admitted");
    let _beside = acquire(&one, &three).await.expect("admitted");
    let _last = acquire(&other, &three).await.expect("admitted");
    assert!(!later.is_lost());
    assert_busy(&acquire(&one, &three).await.expect_err("busy"), 3);
}

/// Statements need neither the future of a call that is polled once and kept, nor that of one that is dropped.
#[tokio::test]
async fn calls_that_are_not_polled_stop_no_statement() {
    let server = Server::start();
    let limiter = process(&server);
    let five = Limit::in_flight("five", 5).hold(SECOND);
    let mut running = join_all([(); 3].map(|()| acquire(&limiter, &five))).await;
    let mut kept = pin!(limiter.acquire(&five, "key", 1));
    let mut dropped = Box::pin(limiter.acquire(&five, "key", 1));
    assert!(poll!(kept.as_mut()).is_pending() && poll!(dropped.as_mut()).is_pending());
    drop(dropped);
    sleep(3 * SECOND).await;
    assert!(running.iter().all(|permit| permit.as_ref().is_ok_and(|permit| !permit.is_lost())));
    let other = process(&server);
    running.extend([acquire(&other, &five).await, acquire(&other, &five).await]);
    acquire(&other, &five).await.expect_err("five run");
}

#[tokio::test]
async fn two_holds_of_one_count_keep_the_slots_of_both() {
    let server = Server::start();
    let (limiter, other) = (process(&server), process(&server));
    let two = Limit::in_flight("holds", 2);
    let holds = [60 * SECOND, SECOND];
    let mut permits = Vec::new();
    for hold in holds {
        permits.push(acquire(&limiter, &two.hold(hold)).await.expect("admitted"));
    }
    for _ in 0..30 {
        acquire(&other, &two.hold(SECOND)).await.expect_err("two run");
        assert!(permits.iter().all(|permit| !permit.is_lost()));
        sleep(SECOND / 10).await;
    }
}
