//! `wait` on a bucket whose store forgets moments: each call still ends within its wait and one deadline, and a call
//! that is rejected takes no unit.

use std::time::{Duration, Instant};

use ratelimit_runtime::{
    Clock, Decision, Limit, OnError, RateLimiter, Rejection, Source, VirtualClock,
};
use support::limits::SECOND;
use support::server::Server;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{DEADLINE, rest};
use crate::{decision, wait_until_idle};

const TICK: Duration = Duration::from_millis(10);

/// A bucket that refills a token each 100 ms.
fn limit(wait: Duration) -> Limit {
    Limit::leaky_bucket("ends", 10, SECOND).wait(wait)
}

/// A call that has ended: its number, its wait, how long it took, and its result.
type EndedCall = (usize, Duration, Duration, Result<Decision, Rejection>);

/// The calls of a process on a virtual clock.
struct Calls {
    limiter: RateLimiter,
    clock: VirtualClock,
    running: JoinSet<EndedCall>,
    ended: Vec<EndedCall>,
    started: usize,
}

impl Calls {
    fn new(limiter: RateLimiter, clock: &VirtualClock) -> Self {
        let (running, ended) = (JoinSet::new(), Vec::new());
        Self { limiter, clock: clock.clone(), running, ended, started: 0 }
    }

    /// Starts a call, and lets it reserve its moment.
    async fn start(&mut self, limit: &Limit, wait: Duration) {
        let check = self.limiter.check(&limit.wait(wait), "key", 1);
        let (clock, start, number) = (self.clock.clone(), self.clock.now(), self.started);
        self.started += 1;
        self.running.spawn(async move {
            let result = check.await;
            (number, wait, clock.now() - start, result)
        });
        self.run_until_idle().await;
    }

    async fn run_until_idle(&mut self) {
        wait_until_idle(&self.limiter).await;
        while let Some(ended) = self.running.try_join_next() {
            self.ended.push(ended.expect("no panic"));
        }
    }

    /// Moves the clock until all calls have ended. Asserts that each has ended within its wait.
    async fn finish(mut self) -> Vec<EndedCall> {
        while !self.running.is_empty() {
            self.clock.advance(TICK);
            self.run_until_idle().await;
        }
        self.ended.sort_by_key(|(number, ..)| *number);
        for (number, wait, took, result) in &self.ended {
            assert!(took <= wait, "call {number} took {took:?} of {wait:?}: {result:?}");
            if let Err(Rejection::Limited { decision, .. }) = result {
                let retry = decision.retry_after;
                assert!(*took + retry > *wait, "call {number}, after {took:?}: {decision:?}");
            }
        }
        self.ended
    }
}

/// Asserts that the bucket has no unit of a call that has ended: it is full within the refill of one unit.
async fn assert_nothing_is_reserved(limiter: &RateLimiter) {
    let left = decision(limiter.peek(&limit(SECOND), "key", 1).await);
    assert!(left.reset_after <= SECOND / 10, "{left:?}");
}

/// Eight calls hold moments when another process resets the count. They start at these moments, and the calls behind
/// them do not end late.
#[tokio::test]
async fn calls_end_in_time_after_another_process_resets_the_count() {
    let server = Server::start();
    let clock = VirtualClock::new();
    let process = || server.limiter_on(&clock);
    let (here, there) = (process(), process());
    here.check(&limit(SECOND), "key", 1).await.expect("a new key");
    let mut calls = Calls::new(here, &clock);
    for _ in 0..8 {
        calls.start(&limit(SECOND), 2 * SECOND).await;
    }
    there.reset(&limit(SECOND), "key").await.expect("a reply");
    for wait in [50, 350, 500, 850] {
        calls.start(&limit(SECOND), Duration::from_millis(wait)).await;
    }
    let ended = calls.finish().await;
    let admitted: Vec<_> =
        ended.iter().map(|(_, _, took, result)| (took.as_millis(), result.is_ok())).collect();
    let expected = (1..9).map(|number| (number * 100, true));
    let expected = expected.chain([(0, false), (0, false), (0, false), (800, true)]);
    assert!(admitted.iter().copied().eq(expected), "{admitted:?}");
    assert_nothing_is_reserved(&there).await;
}

/// Another process refunds some of the units of the moments. A call behind these moments would have an earlier one.
#[tokio::test]
async fn calls_end_in_time_after_another_process_refunds_units() {
    let server = Server::start();
    for refunded in 1..=8 {
        let clock = VirtualClock::new();
        let process = || server.limiter_on(&clock);
        let (here, there) = (process(), process());
        here.reset(&limit(SECOND), "key").await.expect("a reply");
        here.check(&limit(SECOND), "key", 1).await.expect("a new key");
        let mut calls = Calls::new(here, &clock);
        for _ in 0..8 {
            calls.start(&limit(SECOND), 2 * SECOND).await;
        }
        there.credit(&limit(SECOND), "key", refunded).await.expect("a reply");
        for wait in [50, 150, 250, 450, 500, 750, 2_000] {
            calls.start(&limit(SECOND), Duration::from_millis(wait)).await;
        }
        let ended = calls.finish().await;
        assert!(ended[..8].iter().all(|(.., result)| result.is_ok()), "{refunded}: {ended:?}");
        assert_nothing_is_reserved(&there).await;
    }
}

/// Redis dies while calls hold moments of Redis. The moments of this process are behind them, so calls with short waits
/// are rejected.
#[tokio::test]
async fn calls_end_in_time_behind_moments_of_a_dead_server() {
    let server = Server::start();
    let clock = VirtualClock::new();
    let builder = server.builder().clock(Clock::Virtual(clock.clone()));
    let here = builder.on_error(OnError::Local).deadline(SECOND).build().expect("valid");
    here.check(&limit(SECOND), "key", 1).await.expect("a new key");
    let mut calls = Calls::new(here.clone(), &clock);
    for _ in 0..8 {
        calls.start(&limit(SECOND), 20 * SECOND).await;
    }
    drop(server);
    for wait in [50, 500, 5_000, 50, 5_000] {
        calls.start(&limit(SECOND), Duration::from_millis(wait)).await;
    }
    let ended = calls.finish().await;
    let admitted: Vec<_> = ended.iter().map(|(.., result)| result.is_ok()).collect();
    assert!(admitted[..8].iter().all(|admitted| *admitted), "{ended:?}");
    assert_eq!(admitted[8..], [false, false, true, false, true], "{ended:?}");
    for (_, _, took, result) in &ended[8..] {
        match result {
            Ok(decision) => assert_eq!(decision.source, Source::Fallback),
            Err(Rejection::Limited { decision, .. }) => {
                assert!(took.is_zero() && decision.remaining == 0, "{decision:?}");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    // Three units were charged for rejected calls, and are given back.
    assert_nothing_is_reserved(&here).await;
}

/// A server that is killed and started again, and one that is flushed, by the real clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_in_time_while_the_server_loses_its_memory() {
    /// How late a busy machine may poll a call.
    const ROOM: Duration = Duration::from_millis(150);
    let mut server = Some(Server::start());
    let port = server.as_ref().map_or(0, Server::port);
    for on_error in [OnError::Deny, OnError::Local] {
        for kills in [false, true] {
            let builder = RateLimiter::builder().redis(format!("redis://127.0.0.1:{port}"));
            let limiter = builder.deadline(DEADLINE).on_error(on_error).build().expect("valid");
            while limiter.ping().await.is_err() {
                sleep(TICK).await;
            }
            let mut calls = JoinSet::new();
            let mut start_call = |wait: Duration| {
                let check = limiter.check(&limit(wait), "key", 1);
                calls.spawn(async move {
                    let start = Instant::now();
                    let result = check.await;
                    (wait, start.elapsed(), result)
                });
            };
            for _ in 0..8 {
                start_call(2 * SECOND);
            }
            sleep(Duration::from_millis(100)).await;
            if kills {
                drop(server.take());
                server = Some(Server::start_on(port));
            } else if let Some(server) = &server {
                redis::cmd("FLUSHALL").exec(&mut server.connection()).expect("FLUSHALL");
            }
            for number in 0..24 {
                start_call(Duration::from_millis(50 + 150 * (number % 4)));
                sleep(Duration::from_millis(15)).await;
            }
            for (wait, took, result) in calls.join_all().await {
                let what = format!("{on_error:?}, kills {kills}: {took:?} of {wait:?}: {result:?}");
                assert!(took <= wait + DEADLINE + ROOM, "{what}");
            }
            rest(&limiter).await;
        }
    }
    drop(server);
}
