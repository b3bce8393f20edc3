//! Leases: units that a process charges in advance and spends locally. The limit holds, idle units return to
//! the store within their term, and dropped callers and faults of Redis lose no units.

use std::time::Duration;

use ratelimit_runtime::{
    Clock, Decision, Limit, OnError, Part, RateLimiter, Rejection, Source, StoreError, VirtualClock,
};
use support::proxy::{Network, Proxy};
use support::server::Server;

use crate::{TestLimiter, decision};

const MINUTE: Duration = Duration::from_secs(60);
const TERM: Duration = Duration::from_millis(600);
const SLIDING: Limit = Limit::sliding("leases", 1_000, MINUTE);
const LEASED: Limit = SLIDING.lease(50);

fn limiter(server: &Server, clock: &VirtualClock) -> RateLimiter {
    server.builder().clock(Clock::Virtual(clock.clone())).build().expect("valid settings")
}

/// Makes calls one after the other, and returns how many are admitted.
async fn spend(limiter: &RateLimiter, limit: &Limit, calls: u32) -> u32 {
    let mut admitted = 0;
    for _ in 0..calls {
        match limiter.check(limit, "key", 1).await {
            Ok(_) => admitted += 1,
            Err(Rejection::Limited { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    admitted
}

/// Returns the units that are left in the store, as a limiter without leases sees them.
async fn remaining(server: &Server, clock: &VirtualClock, limit: &Limit) -> u32 {
    decision(limiter(server, clock).peek(limit, "key", 1).await).remaining
}

/// Waits until a condition holds that background work brings about.
async fn wait_until(mut holds: impl AsyncFnMut() -> bool) {
    let started = std::time::Instant::now();
    while !holds().await {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "the condition does not hold after 20 seconds"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn most_calls_spend_leased_units_without_a_request() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    let mut by_redis = 0;
    for spent in 1..=300 {
        let Decision { allowed, remaining, source, limit, retry_after, .. } =
            limiter.check(&LEASED, "key", 1).await.expect("admitted");
        assert_eq!((allowed, limit, retry_after), (true, 1_000, Duration::ZERO));
        assert_eq!(remaining, 1_000 - spent, "as if Redis had decided each call");
        by_redis += u32::from(source == Source::Redis);
        assert!(source == Source::Redis || source == Source::Lease);
    }
    // Leases of 1, 2, 4, 8, 16, 32 and then 50 units.
    assert_eq!((by_redis, server.script_calls()), (11, 11));
}

#[tokio::test]
async fn the_embedded_store_does_not_lease() {
    let test = TestLimiter::embedded();
    for spent in 1..=1_000 {
        let decision = test.decide(&LEASED, 1).await;
        assert_eq!((decision.source, decision.remaining), (Source::Embedded, 1_000 - spent));
    }
    let rejected = test.decide(&LEASED, 1).await;
    assert_eq!(
        (rejected.allowed, rejected.retry_after),
        (false, MINUTE),
        "no term is added to the wait"
    );
}

#[tokio::test]
async fn idle_units_return_to_the_store_when_their_term_ends() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    assert_eq!(spend(&limiter, &LEASED, 70).await, 70);
    let charged = 1_000 - remaining(&server, &clock, &LEASED).await;
    assert_eq!(charged, 63 + 50, "leases of 1, 2, 4, 8, 16, 32 and 50 units");
    // The units can be spent until almost the end of the term. The rest is a margin for clock drift.
    clock.advance(TERM.mul_f64(0.99));
    let spent = limiter.check(&LEASED, "key", 1).await.expect("admitted");
    assert_eq!(spent.source, Source::Lease);
    clock.advance(TERM.mul_f64(0.01));
    wait_until(async || remaining(&server, &clock, &LEASED).await == 1_000 - 71).await;
    // After the term, Redis decides.
    let next = limiter.check(&LEASED, "key", 1).await.expect("admitted");
    assert_eq!((next.source, next.remaining), (Source::Redis, 1_000 - 72));
}

#[tokio::test]
async fn several_limiters_admit_exactly_the_capacity() {
    let bucket = Limit::token_bucket("leases", 1_000, MINUTE).burst(500).lease(50);
    for (limit, capacity) in
        [(LEASED, 1_000), (Limit::fixed("leases", 1_000, MINUTE).lease(50), 1_000), (bucket, 490)]
    {
        let (server, clock) = (Server::start(), VirtualClock::new());
        let limiters: Vec<_> = (0..4).map(|_| limiter(&server, &clock)).collect();
        let tasks: Vec<_> = (0..64)
            .map(|task| {
                let (limiter, limit) = (limiters[task % 4].clone(), limit.clone());
                tokio::spawn(async move { spend(&limiter, &limit, 50).await })
            })
            .collect();
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.expect("no panic");
        }
        assert!(admitted <= capacity, "{admitted} of {capacity}");
        assert!(admitted + 4 * 50 >= capacity, "{admitted} of {capacity}: too many units are idle");
        for limiter in &limiters {
            limiter.shutdown().await.expect("the leases are returned");
        }
        // A new limiter has no cached rejections.
        let late = self::limiter(&server, &clock);
        let rest = spend(&late, &limit, 300).await;
        assert_eq!(admitted + rest, capacity);
        let rejected = decision(late.check(&limit, "key", 1).await);
        assert_eq!((rejected.allowed, rejected.limit), (false, limit_of(&limit, capacity)));
    }
}

fn limit_of(limit: &Limit, capacity: u32) -> u32 {
    if limit.algorithm() == ratelimit_runtime::Algorithm::TokenBucket { capacity } else { 1_000 }
}

/// The `retry_after` of a rejection includes the term of the leases, and is tight.
#[tokio::test]
async fn a_retry_at_retry_after_is_admitted() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    assert_eq!(spend(&limiter, &LEASED, 1_001).await, 1_000);
    let rejected = decision(limiter.check(&LEASED, "key", 1).await);
    assert_eq!((rejected.allowed, rejected.retry_after), (false, MINUTE + TERM));
    clock.advance(rejected.retry_after - Duration::from_micros(1));
    assert_eq!(spend(&limiter, &LEASED, 1).await, 0);
    clock.advance(Duration::from_micros(1));
    assert_eq!(spend(&limiter, &LEASED, 1_001).await, 1_000);
    // The units that a bucket keeps for a term are not available to a single call.
    let bucket = Limit::token_bucket("leases", 1_000, MINUTE).burst(500).lease(50);
    match limiter.check(&bucket, "key", 491).await {
        Err(Rejection::CostExceedsCapacity { capacity: 490, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn calls_with_different_costs_spend_leased_units() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    let (mut spent, mut costs) = (0, [3, 1, 7, 2, 40, 1, 5].into_iter().cycle());
    while spent < 900 {
        let cost = costs.next().expect("a cycle does not end");
        let decision = limiter.check(&LEASED, "key", cost).await.expect("admitted");
        spent += cost;
        limiter.check(&LEASED, "key", 0).await.expect("a cost of zero is admitted");
        assert!(decision.remaining <= 1_000 - spent);
    }
    limiter.shutdown().await.expect("the leases are returned");
    assert_eq!(remaining(&server, &clock, &LEASED).await, 1_000 - spent);
    let rejected = decision(limiter.check(&LEASED, "key", 101).await);
    assert_eq!((rejected.allowed, rejected.remaining), (false, 1_000 - spent));
}

#[tokio::test]
async fn a_dropped_limiter_returns_its_leases() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    assert_eq!(spend(&limiter, &LEASED, 65).await, 65);
    drop(limiter);
    wait_until(async || remaining(&server, &clock, &LEASED).await == 1_000 - 65).await;
}

#[tokio::test]
async fn peek_reset_refund_and_several_limits_go_to_the_store() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    assert_eq!(spend(&limiter, &LEASED, 65).await, 65);
    let peek = limiter.peek(&LEASED, "key", 1).await.expect("a peek");
    assert_eq!((peek.remaining, peek.source), (1_000 - 65, Source::Redis));
    // The limiter holds 48 units.
    let both = [Part::new(&LEASED, &"key", 1)];
    let together = limiter.check_all(&both).await.expect("admitted");
    assert_eq!((together.remaining, together.source), (1_000 - 113 - 1, Source::Redis));
    let refund = limiter.refund(&LEASED, "key", 1).await.expect("the leases are returned");
    assert_eq!(refund.remaining, 1_000 - 113);
    limiter.reset(&LEASED, "key").await.expect("a reset");
    let first = limiter.check(&LEASED, "key", 1).await.expect("admitted");
    assert_eq!((first.remaining, first.source), (999, Source::Redis));
}

/// A dropped call loses no units, and delays no other call.
#[tokio::test]
async fn dropped_calls_lose_no_units() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    for round in 0..50_u32 {
        let mut calls: Vec<_> = (0..20)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.check(&LEASED, "key", 1).await.is_ok() })
            })
            .collect();
        // Every second call is dropped. Some of them have been polled before.
        for _ in 0..round % 4 {
            tokio::task::yield_now().await;
        }
        calls.iter().step_by(2).for_each(tokio::task::JoinHandle::abort);
        for call in calls.drain(..) {
            // A call may have been admitted before it was dropped.
            let _ = call.await;
        }
        assert_eq!(spend(&limiter, &LEASED, 1).await, 1);
        limiter.reset(&LEASED, "key").await.expect("a reset");
    }
    let only = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.check(&LEASED, "key", 7).await }
    });
    // The call is dropped while its request is in flight.
    tokio::task::yield_now().await;
    only.abort();
    assert!(only.await.is_err(), "the call was dropped");
    wait_until(async || limiter.peek(&LEASED, "key", 1).await.expect("a peek").remaining == 1_000)
        .await;
    limiter.shutdown().await.expect("the leases are returned");
    wait_until(async || remaining(&server, &clock, &LEASED).await == 1_000).await;
}

#[tokio::test]
async fn calls_are_charged_once_when_the_scripts_were_flushed() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    for spent in 1..=100 {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connection()).expect("SCRIPT FLUSH");
        let decision = limiter.check(&LEASED, "key", 1).await.expect("admitted");
        assert_eq!(decision.remaining, 1_000 - spent);
    }
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connection()).expect("SCRIPT FLUSH");
    limiter.shutdown().await.expect("the leases are returned");
    assert_eq!(remaining(&server, &clock, &LEASED).await, 900);
}

/// While Redis is down, leased units can be spent. After that, `on_error` applies.
#[tokio::test]
async fn leased_units_can_be_spent_while_redis_is_down() {
    for network in [Network::Cut, Network::Blackhole, Network::RepliesLost] {
        let (server, clock) = (Server::start(), VirtualClock::new());
        let proxy = Proxy::start(server.port(), Duration::ZERO);
        let limiter = RateLimiter::builder()
            .redis(format!("redis://127.0.0.1:{}", proxy.port))
            .clock(Clock::Virtual(clock.clone()))
            .deadline(Duration::from_millis(100))
            .on_error(OnError::Deny)
            .build()
            .expect("valid");
        assert_eq!(spend(&limiter, &LEASED, 65).await, 65);
        proxy.set(network);
        // The limiter holds 48 units.
        assert_eq!(spend(&limiter, &LEASED, 48).await, 48);
        let calls: Vec<_> = (0..10)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.check(&LEASED, "key", 1).await })
            })
            .collect();
        for call in calls {
            match call.await.expect("no panic") {
                Err(Rejection::Unavailable { error, .. }) => {
                    assert!(!matches!(error, StoreError::NoRuntime), "{network:?}: {error:?}");
                }
                other => panic!("{network:?}: {other:?}"),
            }
        }
        let local = LEASED.on_error(OnError::Local);
        let here = limiter.check(&local, "key", 1).await.expect("admitted");
        assert_eq!(here.source, Source::Fallback);
        proxy.set(Network::Up);
        wait_until(async || limiter.check(&LEASED, "key", 1).await.is_ok()).await;
        // Units whose reply was lost stay charged.
        assert!(remaining(&server, &clock, &LEASED).await < 1_000 - 113);
    }
}

#[test]
fn a_call_without_a_runtime_is_an_error() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let check = std::pin::pin!(limiter.check(&LEASED, "key", 1));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match check.poll(&mut context) {
        std::task::Poll::Ready(Err(Rejection::Unavailable { error, .. })) => {
            assert_eq!(error, StoreError::NoRuntime);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_shadow_leases_and_never_rejects() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    let shadow = LEASED.shadow(true);
    for call in 0..1_100 {
        let decision = limiter.check(&shadow, "key", 1).await.expect("a shadow admits");
        assert_eq!(decision.allowed, call < 1_000);
    }
}

/// If no units are left, calls of different costs do not queue for the requests of each other.
#[tokio::test]
async fn concurrent_rejections_of_many_costs_share_requests() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    limiter.check(&LEASED, "key", 1_000).await.expect("the whole capacity");
    let before = server.script_calls();
    let tasks: Vec<_> = (0..2_000)
        .map(|call| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check(&LEASED, "key", 2 + call % 900).await })
        })
        .collect();
    for task in tasks {
        let rejected = decision(task.await.expect("no panic"));
        assert_eq!((rejected.allowed, rejected.source), (false, Source::Redis));
    }
    let calls = server.script_calls() - before;
    assert!(calls < 450, "{calls} scripts for 900 costs");
}

/// A runtime that is no longer polled while its request is in flight.
#[test]
fn an_idle_runtime_does_not_delay_the_calls_of_another() {
    let server = Server::start();
    let limiter = server.builder().on_error(OnError::Deny).build().expect("valid");
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    };
    let (idle, busy) = (runtime(), runtime());
    busy.block_on(limiter.check(&LEASED, "warm", 1)).expect("admitted");
    idle.block_on(async {
        let mut check = std::pin::pin!(limiter.check(&LEASED, "key", 1));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(check.as_mut().poll(&mut context).is_pending());
    });
    for _ in 0..5 {
        busy.block_on(limiter.check(&LEASED, "key", 1)).expect("admitted");
    }
}

/// A reset drops the leased units, also those of a lease that was in flight.
#[tokio::test]
async fn a_reset_drops_leased_units() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    assert_eq!(spend(&limiter, &LEASED, 70).await, 70);
    let reset = limiter.reset(&LEASED, "key");
    assert_eq!(spend(&limiter, &LEASED, 60).await, 60);
    reset.await.expect("reset");
    let free = limiter.check(&LEASED, "key", 0).await.expect("admitted");
    assert_eq!((free.remaining, free.source), (1_000, Source::Redis));
    assert_eq!(spend(&limiter, &LEASED, 2_000).await, 1_000);
}

/// A call that waits for the request of another call still ends within its own deadline.
#[tokio::test]
async fn calls_with_a_distant_server_end_within_their_deadline() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(800));
    let deadline = Duration::from_millis(1_500);
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let limiter = RateLimiter::builder().redis(url).deadline(deadline).on_error(OnError::Deny);
    let limiter = limiter.build().expect("valid");
    let limit = Limit::sliding("distant", 1_000_000, MINUTE).lease(50);
    let times = async |calls: usize, pause| {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..calls {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            tasks.spawn(async move {
                let start = std::time::Instant::now();
                let result = limiter.check(&limit, "key", 1).await;
                result.map(|_| start.elapsed())
            });
            tokio::time::sleep(pause).await;
        }
        tasks.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()
    };
    // The first calls load the scripts, which takes a second round trip.
    while times(20, Duration::ZERO).await.is_err() {}
    let times = times(300, Duration::from_millis(2)).await.expect("all are decided");
    let longest = times.iter().max().expect("some calls");
    assert!(*longest <= deadline, "{longest:?}");
}

/// The return of units does not depend on the runtime of a caller.
#[test]
fn idle_units_return_while_no_runtime_is_polled() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    };
    let (caller, other) = (runtime(), runtime());
    let wait_until_left = |units| {
        other.block_on(wait_until(async || remaining(&server, &clock, &LEASED).await == units));
    };
    let limiter = limiter(&server, &clock);
    assert_eq!(caller.block_on(spend(&limiter, &LEASED, 65)), 65);
    clock.advance(TERM);
    wait_until_left(1_000 - 65);
    assert_eq!(caller.block_on(spend(&limiter, &LEASED, 20)), 20);
    drop(limiter);
    wait_until_left(1_000 - 85);
}

/// `max_in_flight` does not reject the return of units.
#[tokio::test]
async fn units_return_while_max_in_flight_rejects_calls() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let builder = server.builder().clock(Clock::Virtual(clock.clone())).max_in_flight(3);
    let limiter = builder.build().expect("valid");
    assert_eq!(spend(&limiter, &LEASED, 65).await, 65);
    let other = Limit::sliding("other", 1_000, MINUTE);
    let mut calls: Vec<_> = (0..3).map(|_| Box::pin(limiter.check(&other, (), 1))).collect();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for call in &mut calls {
        assert!(call.as_mut().poll(&mut context).is_pending());
    }
    let rejected = limiter.check(&other, (), 1).await;
    assert!(matches!(
        rejected,
        Err(Rejection::Unavailable { error: StoreError::Overloaded { .. }, .. })
    ));
    clock.advance(TERM);
    wait_until(async || remaining(&server, &clock, &LEASED).await == 1_000 - 65).await;
    drop(calls);
}
