//! Chaos for calls that wait: calls that are dropped, not polled, or polled after a pause, a runtime that stands
//! still, refunds, resets, changed limits, a slow network and a network that fails.
//!
//! Each seed is a run of real time. After it:
//!
//! - no call took longer than its wait and a deadline;
//! - no more was admitted than the limit admits, of calls that start up to a deadline after their charge;
//! - calls that were always polled were admitted in order;
//! - no line holds a call or a unit, and the store has nothing reserved.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use futures::FutureExt;
use ratelimit_runtime::__private::lines;
use ratelimit_runtime::{Algorithm, Decision, Limit, OnError, RateLimiter, Rejection};
use support::ALGORITHMS;
use support::judge::Judge;
use support::proxy::{Network, Proxy};
use support::random::Random;
use support::server::Server;
use support::wait::wait_until;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const DEADLINE: Duration = Duration::from_millis(100);

/// What timers and threads may add to a time, without the pauses of the machine.
const SLACK: Duration = Duration::from_millis(50);

const PERIOD: Duration = Duration::from_millis(300);
const THRESHOLD: u64 = 12;

/// How often a task looks whether it is polled in time.
const STEP: Duration = Duration::from_millis(1);

/// How long calls start in a run.
const RUN: Duration = Duration::from_millis(1_500);

/// The seeds of the runs. Seeds that found a fault stay.
const SEEDS: std::ops::Range<u64> = 1..7;

/// The number of the next call that is always polled.
static NUMBER: AtomicU64 = AtomicU64::new(0);

struct Ended {
    /// The number of the call, in the order in which the calls entered the line.
    number: u64,
    cost: u64,
    wait: Duration,
    took: Duration,
    at: Instant,
    is_admitted: bool,
}

#[derive(Default)]
struct Record {
    /// The time in microseconds and the cost of each admitted call, in any state of polling.
    admitted: Vec<(u64, u64)>,
    ended: Vec<Ended>,
    has_gifts: bool,
    has_failed: bool,
}

impl Record {
    fn add(&mut self, result: &Result<Decision, Rejection>, cost: u64) {
        match result {
            Ok(_) => {
                let now = UNIX_EPOCH.elapsed().expect("after 1970");
                self.admitted.push((now.as_micros() as u64, cost));
            }
            Err(Rejection::Limited { decision, .. }) => assert!(!decision.retry_after.is_zero()),
            Err(Rejection::Unavailable { .. }) => self.has_failed = true,
            Err(other) => panic!("{other:?}"),
        }
    }
}

type SharedRecord = Arc<Mutex<Record>>;

fn limit(algorithm: Algorithm) -> Limit {
    let limit = Limit::new("chaos", algorithm, THRESHOLD, PERIOD).expect("valid");
    // Costs are up to three.
    if algorithm == Algorithm::LeakyBucket { limit.burst(3) } else { limit }
}

struct Chaos {
    limiter: RateLimiter,
    limit: Limit,
    record: SharedRecord,
    random: Random,
}

impl Chaos {
    /// Starts a call in one of the ways in which applications treat futures.
    fn start(&mut self, tasks: &mut JoinSet<()>, still: &Handle) {
        let (cost, wait) = (1 + self.random.below(3), self.random.millis(600));
        let check = self.limiter.check(&self.limit.wait(wait), "key", cost);
        let (record, pause) = (Arc::clone(&self.record), self.random.millis(400));
        let add = move |result| record.lock().expect("no panic").add(&result, cost);
        let record = Arc::clone(&self.record);
        match self.random.below(10) {
            // Dropped after a while.
            0 | 1 => drop(tasks.spawn(async move {
                let _ = timeout(pause / 2, check).await.map(add);
            })),
            // Polled once, and again after a pause.
            2 => drop(tasks.spawn(async move {
                let mut check = Box::pin(check);
                if check.as_mut().now_or_never().is_some() {
                    return;
                }
                sleep(pause).await;
                add(timeout(wait + 4 * DEADLINE, check).await.expect("in time"));
            })),
            // In the other runtime.
            3 => drop(still.spawn(async move { add(check.await) })),
            _ => drop(tasks.spawn(async move {
                let start = Instant::now();
                let number = NUMBER.fetch_add(1, Relaxed);
                // The call enters the line in the first poll, at once.
                let result = check.await;
                let (at, is_admitted) = (Instant::now(), result.is_ok());
                add(result);
                let ended = Ended { number, cost, wait, took: at - start, at, is_admitted };
                record.lock().expect("no panic").ended.push(ended);
            })),
        }
    }

    async fn run(mut self, still: Handle, gives: bool) {
        let mut tasks = JoinSet::new();
        let end = Instant::now() + RUN;
        while Instant::now() < end {
            for _ in 0..self.random.below(4) {
                self.start(&mut tasks, &still);
            }
            if gives && self.random.below(20) == 0 {
                self.record.lock().expect("no panic").has_gifts = true;
                if self.random.below(2) == 0 {
                    let _ = self.limiter.credit(&self.limit, "key", 5).await;
                } else {
                    let _ = self.limiter.reset(&self.limit, "key").await;
                }
            }
            if self.random.below(15) == 0 {
                // A call under a changed limit.
                let burst = (self.limit.algorithm() == Algorithm::TokenBucket).then_some(3);
                let changed = self.limit.try_amounts(THRESHOLD / 2, burst).expect("valid");
                let changed = changed.wait(self.random.millis(200));
                let (check, record) =
                    (self.limiter.check(&changed, "key", 1), Arc::clone(&self.record));
                tasks.spawn(async move {
                    let result = check.await;
                    record.lock().expect("no panic").add(&result, 1);
                });
            }
            sleep(self.random.millis(15)).await;
        }
        tasks.join_all().await;
    }
}

fn check_record(seed: u64, algorithm: Algorithm, record: &mut Record, pause: Duration) {
    let what = format!("seed {seed}, {algorithm}, the machine paused for {pause:?}");
    let slack = SLACK + pause;
    for Ended { wait, took, number, .. } in &record.ended {
        assert!(*took <= *wait + DEADLINE + slack, "{what}: {number} took {took:?} of {wait:?}");
    }
    if !record.has_gifts {
        let limit = limit(algorithm);
        let mut judge = Judge::new(&limit, None);
        for (at, cost) in &record.admitted {
            // A call starts up to a deadline after its charge.
            let from = at - (DEADLINE + slack).as_micros() as u64;
            judge.admitted_between(&limit, (from, *at), *cost);
        }
        let breaches = judge.breaches();
        assert!(breaches.is_empty(), "{what}: {breaches:?}");
    }
    // The runtime has polled all calls in time.
    if !record.has_failed && pause < DEADLINE / 4 {
        record.ended.sort_unstable_by_key(|call| call.number);
        let admitted: Vec<_> = record.ended.iter().filter(|call| call.is_admitted).collect();
        for (index, call) in admitted.iter().enumerate() {
            let is_before = |later: &&&Ended| later.at + DEADLINE + slack < call.at;
            if let Some(Ended { number, cost, .. }) = admitted[index + 1..].iter().find(is_before) {
                panic!("{what}: call {number} of {cost} before {} of {}", call.number, call.cost);
            }
        }
    }
}

/// Waits until no line holds a call or a unit, and asserts that the store has nothing reserved.
async fn rest(seed: u64, limiter: &RateLimiter) {
    wait_until(async || lines(limiter) == 0).await;
    // What was charged leaves, and what was reserved by requests without a reply drains.
    sleep(2 * PERIOD + Duration::from_millis(1_100)).await;
    for algorithm in ALGORITHMS {
        let limit = limit(algorithm);
        let peek = limiter.peek(&limit, "key", limit.capacity()).await.expect("a reply");
        assert!(peek.allowed, "seed {seed}, {algorithm}: {peek:?}");
    }
}

fn run(seed: u64, limiter: &RateLimiter, network: Option<&Proxy>) {
    let (gives, fails) = (seed.is_multiple_of(3), seed.is_multiple_of(2));
    let runtime =
        || Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (moving, still) = (runtime(), runtime());
    let records: Vec<SharedRecord> = ALGORITHMS.iter().map(|_| SharedRecord::default()).collect();
    let pause = Arc::new(Mutex::new(Duration::ZERO));
    moving.block_on(async {
        let mut chaos = JoinSet::new();
        for (index, (algorithm, record)) in ALGORITHMS.into_iter().zip(&records).enumerate() {
            let random = Random(seed * 1_000_003 + index as u64 + 1);
            let (limiter, record) = (limiter.clone(), Arc::clone(record));
            let one = Chaos { limiter, limit: limit(algorithm), record, random };
            chaos.spawn(one.run(still.handle().clone(), gives));
        }
        // The longest time in which the runtime did not poll a task that was ready: the machine was busy.
        let longest = Arc::clone(&pause);
        let watch = tokio::spawn(async move {
            loop {
                let start = Instant::now();
                sleep(STEP).await;
                let mut longest = longest.lock().expect("no panic");
                *longest = (*longest).max(start.elapsed().saturating_sub(2 * STEP));
            }
        });
        let mut random = Random(seed + 7_777);
        let end = Instant::now() + RUN;
        while Instant::now() < end {
            sleep(random.millis(300)).await;
            // The other runtime stands still.
            let pause = random.millis(400);
            drop(still.spawn(async move { std::thread::sleep(pause) }));
            if let Some(proxy) = network.filter(|_| fails) {
                proxy.set(random.of(&[Network::Cut, Network::RepliesLost, Network::Blackhole]));
                sleep(random.millis(250)).await;
                proxy.set(Network::Up);
            }
        }
        chaos.join_all().await;
        watch.abort();
        // The calls of the other runtime end, too.
        sleep(Duration::from_millis(1_200)).await;
        rest(seed, limiter).await;
    });
    let pause = *pause.lock().expect("no panic");
    for (algorithm, record) in ALGORITHMS.into_iter().zip(records) {
        check_record(seed, algorithm, &mut record.lock().expect("no panic"), pause);
    }
}

#[test]
fn waiting_calls_keep_their_promises_on_the_embedded_store() {
    for seed in SEEDS {
        let limiter = RateLimiter::builder().deadline(DEADLINE).build().expect("valid settings");
        run(seed, &limiter, None);
    }
}

#[test]
fn waiting_calls_keep_their_promises_on_redis() {
    let server = Server::start();
    for seed in SEEDS {
        let proxy = Proxy::with_latency(server.port(), Duration::from_millis(seed % 3 * 4));
        let builder = proxy.builder().deadline(DEADLINE).on_error(OnError::Deny);
        let builder = builder.key_prefix(format!("chaos{seed}"));
        run(seed, &builder.build().expect("valid settings"), Some(&proxy));
    }
}
