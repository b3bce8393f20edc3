//! The queue of settlements: what waits for Redis, what is lost, and what `flush` says about it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Wake};
use std::time::{Duration, Instant};

use futures::future::join_all;
use ratelimit_runtime::{
    Clock, Limit, Permit, RateLimiter, Rejection, Source, StoreError, VirtualClock, rate_limit,
};
use support::limits::{DAY, MINUTE, SECOND, is_bucket, limits};
use support::proxy::{Network, Proxy};
use support::server::Server;
use tokio::time::sleep;

use super::{acquire, remaining};

/// The most settlements in one request.
const BATCH: u64 = 64;

/// Long enough for a busy test machine.
const DEADLINE: Duration = SECOND;

const SLIDING: Limit = Limit::sliding("queued", 1_000_000, DAY);

/// A limiter behind a proxy, on a virtual clock.
struct Outage {
    server: Server,
    proxy: Proxy,
    limiter: RateLimiter,
    clock: VirtualClock,
}

impl Outage {
    fn new() -> Self {
        Self::far(Duration::ZERO)
    }

    /// A limiter that decides by itself if Redis fails. A round trip to Redis takes this long.
    fn far(round_trip: Duration) -> Self {
        let (server, clock) =
            (Server::start(), VirtualClock::at(Duration::from_secs(1_800_000_000)));
        let proxy = Proxy::with_latency(server.port(), round_trip);
        let builder = proxy.builder().deadline(DEADLINE).clock(Clock::Virtual(clock.clone()));
        let limiter = builder.build().expect("valid settings");
        Self { server, proxy, limiter, clock }
    }

    /// Another process on the same clock.
    fn other(&self) -> RateLimiter {
        self.server.limiter_on(&self.clock)
    }

    /// Acquires units, each call a microsecond after the last one.
    async fn acquire(&self, limit: &Limit, count: u64) -> Vec<Permit> {
        let mut permits = Vec::new();
        for _ in 0..count / 25 {
            let calls = [(); 25].map(|()| async {
                self.clock.advance(Duration::from_micros(1));
                acquire(&self.limiter, limit, 10).await
            });
            permits.extend(join_all(calls).await);
        }
        assert!(permits.iter().all(|permit| permit.decision().source == Source::Redis));
        permits
    }

    /// Cuts the network, and waits until the background thread has observed it: what it sends first can be lost.
    async fn cut(&self) {
        let permit = acquire(&self.limiter, &SLIDING, 1).await;
        self.proxy.set(Network::Cut);
        permit.settle(0);
        sleep(SECOND / 10).await;
    }
}

fn settle_all(permits: Vec<Permit>, used: u64) {
    for permit in permits {
        permit.settle(used);
    }
}

/// Flushes until nothing is pending, and returns the number of settlements that were lost.
async fn flush(limiter: &RateLimiter) -> u64 {
    for _ in 0..4 {
        match limiter.flush().await {
            Ok(()) => return 0,
            Err(StoreError::SettlementsLost { lost, .. }) => return lost,
            Err(StoreError::Timeout { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("Redis does not reply")
}

/// Redis settles for longer than the deadline.
#[tokio::test]
async fn a_burst_of_settlements_is_not_lost() {
    const CALLS: u64 = 10_000;
    let outage = Outage::new();
    for limit in limits("burst", 1_000_000, DAY) {
        settle_all(outage.acquire(&limit, CALLS).await, 1);
        assert_eq!(flush(&outage.limiter).await, 0, "{limit:?}");
        let used = 1_000_000 - remaining(&outage.limiter, &limit).await;
        // A bucket with many charges that are not settled keeps a part of some.
        let most = if is_bucket(limit.algorithm()) { 3 * CALLS } else { CALLS };
        assert!((CALLS..=most).contains(&used), "{limit:?}: {used}");
    }
}

/// Redis stands still for longer than the deadline, so the breaker opens. Redis may execute later what it has received:
/// one request, because a second one waits for the reply to the first.
#[tokio::test]
async fn a_standstill_loses_one_request_at_most() {
    let outage = Outage::new();
    let Outage { server, limiter, .. } = &outage;
    let permits = outage.acquire(&SLIDING, 3_000).await;
    server.pause_writes();
    settle_all(permits, 1);
    let start = Instant::now();
    let error = limiter.flush().await.expect_err("Redis stands still");
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    let flushed = start.elapsed();
    assert!((10 * DEADLINE..=20 * DEADLINE).contains(&flushed), "{flushed:?}");
    server.resume();
    let lost = flush(limiter).await;
    assert!((1..=BATCH).contains(&lost), "{lost}");
    assert_eq!(limiter.flush().await, Ok(()), "the loss was reported");
    let used = 1_000_000 - remaining(limiter, &SLIDING).await;
    assert!((3_000..=3_000 + 9 * lost).contains(&used), "{used}, {lost} lost");
}

#[tokio::test]
async fn settlements_wait_for_the_end_of_an_outage() {
    for fault in [Network::Cut, Network::Blackhole, Network::RepliesLost] {
        let outage = Outage::new();
        let permits = outage.acquire(&SLIDING, 1_000).await;
        outage.proxy.set(fault);
        settle_all(permits, 1);
        sleep(2 * DEADLINE).await;
        outage.proxy.set(Network::Up);
        let lost = flush(&outage.limiter).await;
        assert!(lost <= BATCH, "{fault:?}: {lost}");
        let left = remaining(&outage.limiter, &SLIDING).await;
        // If replies were lost, the lost settlements were executed.
        let kept = if fault == Network::RepliesLost { 0 } else { 9 * lost };
        assert_eq!(left, 1_000_000 - 1_000 - kept, "{fault:?}");
    }
}

/// A server that refuses writes has executed nothing, so nothing is lost.
#[tokio::test]
async fn settlements_and_blocks_wait_while_redis_refuses_writes() {
    let outage = Outage::new();
    let Outage { server, limiter, .. } = &outage;
    let there = outage.other();
    let refusals = [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        // A replica of nothing keeps its counts.
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ];
    for (key, (refuse, accept)) in (10..).zip(refusals) {
        let permits = outage.acquire(&SLIDING, 100).await;
        let before = remaining(&there, &SLIDING).await;
        server.command::<()>(refuse);
        settle_all(permits, 1);
        let pending = limiter.block(&BLOCKED, key, MINUTE).await.expect_err("refused");
        let is_refusal = matches!(pending, StoreError::Server { .. });
        assert!(is_refusal || refuse.starts_with("REPLICAOF"), "{pending:?}");
        let permit = limiter.acquire(&BLOCKED, key, 1).await.expect_err("blocked here");
        assert!(matches!(permit, Rejection::Blocked { .. }), "{permit:?}");
        sleep(SECOND / 4).await;
        server.command::<()>(accept);
        assert_eq!(flush(limiter).await, 0, "{refuse}");
        assert_eq!(remaining(&there, &SLIDING).await, before + 900, "{refuse}");
    }
}

/// A reset writes what a full server does not refuse, and a settlement before it does not.
#[tokio::test]
async fn a_reset_does_not_pass_a_settlement_that_redis_refuses() {
    let outage = Outage::new();
    let (Outage { server, limiter, .. }, there) = (&outage, outage.other());
    let permit = acquire(limiter, &SLIDING, 10).await;
    server.command::<()>("CONFIG SET maxmemory 1");
    permit.settle(500);
    limiter.reset(&SLIDING, "key").await.expect_err("the settlement comes first");
    server.command::<()>("CONFIG SET maxmemory 0");
    assert_eq!(flush(limiter).await, 0);
    assert_eq!(there.operator().usage(&SLIDING, "key").await.expect("a reply").used, 500);
    assert!(limiter.reset(&SLIDING, "key").await.expect("reset"));
    assert_eq!(there.operator().usage(&SLIDING, "key").await.expect("a reply").used, 0);
}

/// The script has written before the command that the user may not run: the settlement is lost, and told once.
#[tokio::test]
async fn a_script_that_ends_after_a_write_is_a_loss() {
    let (server, clock, there) = Server::with_clock();
    server.command::<()>("ACL SETUSER limiter on >secret ~* &* +@all -pexpire");
    let url = server.url.replace("redis://", "redis://limiter:secret@");
    let builder = RateLimiter::builder().redis(url).clock(Clock::Virtual(clock));
    let limiter = builder.deadline(DEADLINE).build().expect("valid settings");
    let limit = Limit::token_bucket("rights", 100, MINUTE);
    acquire(&there, &limit, 1).await.keep();
    let permit = acquire(&limiter, &limit, 1).await;
    // The debt needs a longer TTL.
    permit.settle(2_000);
    let error = limiter.flush().await.expect_err("a command is missing");
    let StoreError::SettlementsLost { lost: 1, cause: Some(cause), .. } = error else {
        panic!("{error:?}");
    };
    assert!(matches!(&*cause, StoreError::Server { code, .. } if &**code == "NOPERM"), "{cause:?}");
    assert_eq!(limiter.flush().await, Ok(()), "the loss was reported");
    let usage = there.operator().usage(&limit, "key").await.expect("a reply");
    assert_eq!(usage.used, 2_001, "charged once");
}

/// A charge that has left its window is not corrected any more, and a debt from then is no debt now.
#[tokio::test]
async fn settlements_of_windows_that_have_passed_are_dropped() {
    let outage = Outage::new();
    let limits: Vec<_> = limits("passed", 100, MINUTE).collect();
    let permits = join_all(limits.iter().map(|limit| acquire(&outage.limiter, limit, 10))).await;
    outage.cut().await;
    settle_all(permits, 150);
    outage.clock.advance(2 * MINUTE);
    outage.proxy.set(Network::Up);
    flush(&outage.limiter).await;
    for limit in limits {
        let left = if is_bucket(limit.algorithm()) { 0 } else { 100 };
        assert_eq!(remaining(&outage.other(), &limit).await, left, "{limit:?}");
    }
}

const BLOCKED: Limit = Limit::sliding("block", 1_000, DAY);

#[rate_limit(limit = BLOCKED, key = key, block = |_| Some(MINUTE))]
async fn block(key: u64) -> Result<(), Rejection> {
    let _ = key;
    Ok(())
}

/// While Redis is down, the process obeys without a pause. Afterwards, all processes do until the end of the block.
#[tokio::test]
async fn blocks_wait_for_the_end_of_an_outage() {
    let outage = Outage::new();
    let Outage { limiter, clock, .. } = &outage;
    acquire(limiter, &SLIDING, 10).await.settle(1);
    limiter.flush().await.expect("settled");
    limiter.block(&BLOCKED, "known", MINUTE).await.expect("blocked");
    outage.cut().await;
    let known = limiter.check(&BLOCKED, "known", 1).await.expect_err("blocked");
    let Rejection::Blocked { decision, .. } = known else { panic!("{known:?}") };
    assert_eq!(decision.source, Source::Fallback);
    limiter.scope(block(1)).await.expect("admitted by the fallback");
    let start = Instant::now();
    for _ in 0..100 {
        let rejection = limiter.check(&BLOCKED, 1, 1).await.expect_err("blocked");
        assert!(matches!(rejection, Rejection::Blocked { .. }), "{rejection:?}");
    }
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    clock.advance(MINUTE / 2);
    limiter.scope(block(2)).await.expect("admitted by the fallback");
    clock.advance(MINUTE / 4);
    outage.proxy.set(Network::Up);
    flush(limiter).await;
    let there = outage.other();
    for (key, left) in [(1, MINUTE / 4), (2, 3 * MINUTE / 4), (3, Duration::ZERO)] {
        let peek = there.peek(&BLOCKED, key, 1).await.expect("a decision");
        assert_eq!((peek.allowed, peek.retry_after), (left.is_zero(), left));
    }

    // A block that has ended is not sent.
    outage.cut().await;
    limiter.scope(block(4)).await.expect("admitted by the fallback");
    clock.advance(MINUTE);
    outage.proxy.set(Network::Up);
    flush(limiter).await;
    assert!(there.peek(&BLOCKED, 4, 1).await.expect("a decision").allowed);
}

/// A waker can be any code: one flushes, and one panics. That loses no correction of others.
#[tokio::test]
async fn a_waker_that_flushes_does_not_stop_the_settlements() {
    enum Foreign {
        Flushes(&'static RateLimiter, Sender<()>),
        Panics,
    }

    impl Wake for Foreign {
        fn wake(self: Arc<Self>) {
            let Self::Flushes(limiter, woken) = &*self else { panic!("on purpose") };
            drop(limiter.flush());
            woken.send(()).expect("the test waits");
        }
    }

    let Outage { server: _server, limiter, .. } = Outage::far(SECOND / 10);
    // Leaked, so that a failure drops no limiter that a thread has locked.
    let limiter = &*Box::leak(Box::new(limiter));
    let permits = join_all((0..10).map(|_| acquire(limiter, &SLIDING, 10))).await;
    let mut credited = pin!(limiter.credit(&SLIDING, "other", 1));
    let waker = Arc::new(Foreign::Panics).into();
    assert!(credited.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    settle_all(permits, 1);
    let (sender, woken) = channel();
    let waker = Arc::new(Foreign::Flushes(limiter, sender)).into();
    let mut flushed = pin!(limiter.flush());
    assert!(flushed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    woken.recv_timeout(10 * SECOND).expect("the waker has ended");
    flushed.await.expect("all is settled");
    credited.await.expect("credited");
    assert_eq!(remaining(limiter, &SLIDING).await, 1_000_000 - 10);
}

#[tokio::test]
async fn a_reset_comes_after_the_settlements_before_it() {
    let outage = Outage::far(SECOND / 20);
    // Debts, of which the last do not fit in one request.
    settle_all(outage.acquire(&SLIDING, 200).await, 20);
    assert!(outage.limiter.reset(&SLIDING, "key").await.expect("reset"));
    assert_eq!(remaining(&outage.limiter, &SLIDING).await, 1_000_000);
}

/// What is pending then is an error.
#[tokio::test]
async fn a_shutdown_in_an_outage_ends_within_two_deadlines() {
    let outage = Outage::new();
    let permits = outage.acquire(&SLIDING, 200).await;
    outage.proxy.set(Network::Blackhole);
    settle_all(permits, 1);
    let start = Instant::now();
    let error = outage.limiter.shutdown().await.expect_err("settlements are pending");
    assert!(matches!(error, StoreError::Timeout { .. }), "{error:?}");
    assert!(start.elapsed() < 3 * DEADLINE, "{:?}", start.elapsed());

    // Redis settles after the first deadline, and learns which calls have ended.
    let outage = Outage::new();
    let in_flight = Limit::in_flight("in flight", 2).hold(MINUTE);
    let ended = acquire(&outage.limiter, &in_flight, 1).await;
    let settled = acquire(&outage.limiter, &SLIDING, 1).await;
    outage.cut().await;
    settled.settle(0);
    drop(ended);
    let start = Instant::now();
    let up = async {
        // The last probe of the outage can be half a deadline before the next one.
        sleep(5 * DEADLINE / 4).await;
        outage.proxy.set(Network::Up);
    };
    let (result, ()) = tokio::join!(outage.limiter.shutdown(), up);
    result.expect("all is given back");
    assert!(start.elapsed() < 5 * DEADLINE / 2, "{:?}", start.elapsed());
}
