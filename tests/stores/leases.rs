//! Units that are charged in advance: never more than the limit, nothing idle for long, nothing lost
//! with a caller, whatever Redis does.

use std::time::Duration;

use ratelimit_runtime::{
    Clock, Decision, Limit, OnError, Part, RateLimiter, Rejection, Source, StoreError, VirtualClock,
};
use support::proxy::{Network, Proxy};
use support::server::Server;

use crate::{Timed, decision};

const MINUTE: Duration = Duration::from_secs(60);
const TERM: Duration = Duration::from_millis(600);
const SLIDING: Limit = Limit::sliding("leases", 1_000, MINUTE);
const LEASED: Limit = SLIDING.lease(50);

fn limiter(server: &Server, clock: &VirtualClock) -> RateLimiter {
    server.builder().clock(Clock::Virtual(clock.clone())).build().expect("valid settings")
}

/// Calls one after the other, as many as are admitted of so many.
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

/// What the store itself has left, seen by a limiter that holds nothing.
async fn left(server: &Server, clock: &VirtualClock, limit: &Limit) -> u32 {
    decision(limiter(server, clock).peek(limit, "key", 1).await).remaining
}

/// Waits for what goes on in the background, as long as it changes nothing that is waited for.
async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let started = std::time::Instant::now();
    while !holds().await {
        assert!(started.elapsed() < Duration::from_secs(20), "it never came about");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn most_calls_ask_nobody() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    let mut by_redis = 0;
    for spent in 1..=300 {
        let Decision { allowed, remaining, source, limit, retry_after, .. } =
            limiter.check(&LEASED, "key", 1).await.expect("admitted");
        assert_eq!((allowed, limit, retry_after), (true, 1_000, Duration::ZERO));
        assert_eq!(remaining, 1_000 - spent, "as if each had been asked for");
        by_redis += u32::from(source == Source::Redis);
        assert!(source == Source::Redis || source == Source::Lease);
    }
    // 1, 2, 4, 8, 16, 32, and then 50 at a time.
    assert_eq!((by_redis, server.script_calls()), (11, 11));
}

#[tokio::test]
async fn embedded_there_is_nothing_to_save() {
    let timed = Timed::embedded();
    for spent in 1..=1_000 {
        let decision = timed.decide(&LEASED, 1).await;
        assert_eq!((decision.source, decision.remaining), (Source::Embedded, 1_000 - spent));
    }
    let refused = timed.decide(&LEASED, 1).await;
    assert_eq!((refused.allowed, refused.retry_after), (false, MINUTE), "not a minute and a term");
}

#[tokio::test]
async fn a_term_ends_and_what_is_idle_goes_back() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    assert_eq!(spend(&limiter, &LEASED, 70).await, 70);
    let charged = 1_000 - left(&server, &clock, &LEASED).await;
    assert_eq!(charged, 63 + 50, "1, 2, 4, 8, 16, 32, 50");
    // In its term it is spent, to the end but for what clocks may differ.
    clock.advance(TERM.mul_f64(0.99));
    let spent = limiter.check(&LEASED, "key", 1).await.expect("admitted");
    assert_eq!(spent.source, Source::Lease);
    clock.advance(TERM.mul_f64(0.01));
    until(async || left(&server, &clock, &LEASED).await == 1_000 - 71).await;
    // And it is not spent after.
    let asked = limiter.check(&LEASED, "key", 1).await.expect("admitted");
    assert_eq!((asked.source, asked.remaining), (Source::Redis, 1_000 - 72));
}

#[tokio::test]
async fn several_limiters_use_all_of_it_and_no_more() {
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
        assert!(admitted + 4 * 50 >= capacity, "{admitted} of {capacity}: too much is idle");
        for limiter in &limiters {
            limiter.return_leases().await.expect("given back");
        }
        // Its refusals are not remembered by another.
        let late = self::limiter(&server, &clock);
        let rest = spend(&late, &limit, 300).await;
        assert_eq!(admitted + rest, capacity);
        let refused = decision(late.check(&limit, "key", 1).await);
        assert_eq!((refused.allowed, refused.limit), (false, limit_of(&limit, capacity)));
    }
}

fn limit_of(limit: &Limit, capacity: u32) -> u32 {
    if limit.algorithm() == ratelimit_runtime::Algorithm::TokenBucket { capacity } else { 1_000 }
}

/// What is refused is refused as by the limit that is counted: retrying then succeeds.
#[tokio::test]
async fn a_refusal_is_honest() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    assert_eq!(spend(&limiter, &LEASED, 1_001).await, 1_000);
    let refused = decision(limiter.check(&LEASED, "key", 1).await);
    assert_eq!((refused.allowed, refused.retry_after), (false, MINUTE + TERM));
    clock.advance(refused.retry_after - Duration::from_micros(1));
    assert_eq!(spend(&limiter, &LEASED, 1).await, 0);
    clock.advance(Duration::from_micros(1));
    assert_eq!(spend(&limiter, &LEASED, 1_001).await, 1_000);
    // What a bucket keeps for a term is not there for a call either.
    let bucket = Limit::token_bucket("leases", 1_000, MINUTE).burst(500).lease(50);
    match limiter.check(&bucket, "key", 491).await {
        Err(Rejection::CostExceedsCapacity { capacity: 490, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn costs_differ() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    let (mut spent, mut costs) = (0, [3, 1, 7, 2, 40, 1, 5].into_iter().cycle());
    while spent < 900 {
        let cost = costs.next().expect("endless");
        let decision = limiter.check(&LEASED, "key", cost).await.expect("admitted");
        spent += cost;
        limiter.check(&LEASED, "key", 0).await.expect("nothing is always admitted");
        assert!(decision.remaining <= 1_000 - spent);
    }
    limiter.return_leases().await.expect("given back");
    assert_eq!(left(&server, &clock, &LEASED).await, 1_000 - spent);
    let refused = decision(limiter.check(&LEASED, "key", 101).await);
    assert_eq!((refused.allowed, refused.remaining), (false, 1_000 - spent));
}

/// The last handle gives back what is held.
#[tokio::test]
async fn a_limiter_that_is_dropped_gives_back() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    assert_eq!(spend(&limiter, &LEASED, 65).await, 65);
    drop(limiter);
    until(async || left(&server, &clock, &LEASED).await == 1_000 - 65).await;
}

#[tokio::test]
async fn peek_reset_refund_and_several_limits_ask_the_store() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    assert_eq!(spend(&limiter, &LEASED, 65).await, 65);
    let peek = limiter.peek(&LEASED, "key", 1).await.expect("a look");
    assert_eq!((peek.remaining, peek.source), (1_000 - 65, Source::Redis));
    // 48 are held here.
    let both = [Part::new(&LEASED, &"key", 1)];
    let together = limiter.check_all(&both).await.expect("admitted");
    assert_eq!((together.remaining, together.source), (1_000 - 113 - 1, Source::Redis));
    let refund = limiter.refund(&LEASED, "key", 1).await.expect("given back");
    assert_eq!(refund.remaining, 1_000 - 113);
    limiter.reset(&LEASED, "key").await.expect("forgotten");
    let first = limiter.check(&LEASED, "key", 1).await.expect("admitted");
    assert_eq!((first.remaining, first.source), (999, Source::Redis));
}

/// Who gives up takes nothing along, and holds nobody up.
#[tokio::test]
async fn cancelled_callers_lose_nothing() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    for round in 0..50_u32 {
        let mut calls: Vec<_> = (0..20)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.check(&LEASED, "key", 1).await.is_ok() })
            })
            .collect();
        // Some were polled, some were not; one after the other they are dropped.
        for _ in 0..round % 4 {
            tokio::task::yield_now().await;
        }
        calls.iter().step_by(2).for_each(tokio::task::JoinHandle::abort);
        for call in calls.drain(..) {
            // An aborted one may have been admitted before.
            let _ = call.await;
        }
        assert_eq!(spend(&limiter, &LEASED, 1).await, 1);
        limiter.return_leases().await.expect("given back");
        limiter.reset(&LEASED, "key").await.expect("forgotten");
    }
    let only = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.check(&LEASED, "key", 7).await }
    });
    // It has asked, and is gone before the answer.
    tokio::task::yield_now().await;
    only.abort();
    assert!(only.await.is_err(), "cancelled");
    until(async || limiter.peek(&LEASED, "key", 1).await.expect("a look").remaining == 1_000).await;
    limiter.return_leases().await.expect("given back");
    until(async || left(&server, &clock, &LEASED).await == 1_000).await;
}

#[tokio::test]
async fn scripts_that_were_flushed_are_charged_once() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    for spent in 1..=100 {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connection()).expect("SCRIPT FLUSH");
        let decision = limiter.check(&LEASED, "key", 1).await.expect("admitted");
        assert_eq!(decision.remaining, 1_000 - spent);
    }
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connection()).expect("SCRIPT FLUSH");
    limiter.return_leases().await.expect("given back");
    assert_eq!(left(&server, &clock, &LEASED).await, 900);
}

/// While Redis is away, what was paid for is spent, and then `on_error` speaks.
#[tokio::test]
async fn a_lease_outlives_its_redis() {
    for network in [Network::Cut, Network::Silent, Network::Deaf] {
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
        // 48 are held.
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
        until(async || limiter.check(&LEASED, "key", 1).await.is_ok()).await;
        // What was lost on the way stands idle; nothing is admitted twice.
        assert!(left(&server, &clock, &LEASED).await < 1_000 - 113);
    }
}

/// A caller without a runtime is told so.
#[test]
fn without_a_runtime_nothing_is_leased() {
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

/// A shadow counts, and never refuses.
#[tokio::test]
async fn a_shadow_is_leased_as_well() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    let shadow = LEASED.shadow(true);
    for call in 0..1_100 {
        let decision = limiter.check(&shadow, "key", 1).await.expect("never refused");
        assert_eq!(decision.allowed, call < 1_000);
    }
}

/// Where nothing is left, nobody waits for the questions of others.
#[tokio::test]
async fn refusals_of_many_costs_are_not_told_one_after_the_other() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = limiter(&server, &clock);
    limiter.check(&LEASED, "key", 1_000).await.expect("all of it");
    let before = server.script_calls();
    let tasks: Vec<_> = (0..2_000)
        .map(|call| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check(&LEASED, "key", 2 + call % 900).await })
        })
        .collect();
    for task in tasks {
        let told = decision(task.await.expect("no panic"));
        assert_eq!((told.allowed, told.source), (false, Source::Redis));
    }
    let calls = server.script_calls() - before;
    assert!(calls < 450, "{calls} scripts for 900 costs");
}

/// A runtime that stands still in the middle of a question holds up no other.
#[test]
fn another_runtime_may_stand_still() {
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

/// What is held counts nowhere once the key was reset, also if it came while that was under way.
#[tokio::test]
async fn nothing_that_is_held_outlives_a_reset() {
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

/// A call waits for the question of others no longer than it can.
#[tokio::test]
async fn calls_keep_their_deadline_when_the_server_is_far_away() {
    let server = Server::start();
    let proxy = Proxy::far(server.port(), Duration::from_millis(800));
    let deadline = Duration::from_millis(1_500);
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let limiter = RateLimiter::builder().redis(url).deadline(deadline).on_error(OnError::Deny);
    let limiter = limiter.build().expect("valid");
    let limit = Limit::sliding("far", 1_000_000, MINUTE).lease(50);
    let times = async |calls: usize, pause| {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..calls {
            let (limiter, limit) = (limiter.clone(), limit.clone());
            tasks.spawn(async move {
                let start = std::time::Instant::now();
                let answer = limiter.check(&limit, "key", 1).await;
                answer.map(|_| start.elapsed())
            });
            tokio::time::sleep(pause).await;
        }
        tasks.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()
    };
    // The server learns the scripts, which takes a second round trip.
    while times(20, Duration::ZERO).await.is_err() {}
    let times = times(300, Duration::from_millis(2)).await.expect("all are decided");
    let longest = times.iter().max().expect("some calls");
    assert!(*longest <= deadline, "{longest:?}");
}

/// Nothing that is given back hangs on the runtime of a caller.
#[test]
fn idle_units_go_back_though_no_runtime_is_driven() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    };
    let (caller, other) = (runtime(), runtime());
    let is_left = |units| {
        other.block_on(until(async || left(&server, &clock, &LEASED).await == units));
    };
    let limiter = limiter(&server, &clock);
    assert_eq!(caller.block_on(spend(&limiter, &LEASED, 65)), 65);
    clock.advance(TERM);
    is_left(1_000 - 65);
    assert_eq!(caller.block_on(spend(&limiter, &LEASED, 20)), 20);
    drop(limiter);
    is_left(1_000 - 85);
}

/// What is given back makes room, and is not refused for want of it.
#[tokio::test]
async fn units_go_back_while_too_many_calls_are_awaited() {
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
    let refused = limiter.check(&other, (), 1).await;
    assert!(matches!(
        refused,
        Err(Rejection::Unavailable { error: StoreError::Overloaded { .. }, .. })
    ));
    clock.advance(TERM);
    until(async || left(&server, &clock, &LEASED).await == 1_000 - 65).await;
    drop(calls);
}
