//! A hash slot that moves with all its keys in one step (Redis 8.4, Valkey 9.0), while calls charge its keys at a rate.
//! As many calls charge keys of other slots, so that scripts over many slots decide both. Older servers move the keys
//! one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, RateLimiter};
use support::limits::{HOUR, SECOND};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::{first_decision, start_cluster};

/// The key that moves. Its limits share a hash slot.
const MOVED: &str = "moved";
const LIMITS: [&str; 4] = ["first", "second", "third", "fourth"];
const TASKS: usize = 40;

/// How many counts are charged: those of the key that moves, and as many of other keys.
const COUNTS: usize = 2 * LIMITS.len();

/// No call charges as much.
const THRESHOLD: u64 = 1_000_000_000;

/// What the calls have charged until they stop.
#[derive(Default)]
struct Load {
    admitted: [AtomicU64; COUNTS],
    /// The longest call, in microseconds.
    longest: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    /// Charges the counts of the key that moves, or of other keys, in turn.
    async fn charge(&self, limiter: &RateLimiter, task: usize, every: Duration) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let counts: Vec<_> = (0..COUNTS).map(count).collect();
        let mut next = task % COUNTS;
        while !self.stop.load(Relaxed) {
            ticks.tick().await;
            // The task stays in its half of the counts.
            next = next / LIMITS.len() * LIMITS.len() + (next + 1) % LIMITS.len();
            let started = Instant::now();
            let (limit, key) = &counts[next];
            limiter.check(limit, key, 1).await.expect("decided within five seconds");
            self.admitted[next].fetch_add(1, Relaxed);
            self.longest.fetch_max(started.elapsed().as_micros() as u64, Relaxed);
        }
    }
}

/// Returns the limit and the key of a count. The key that moves has the first counts.
fn count(index: usize) -> (Limit, String) {
    let limit = Limit::fixed(LIMITS[index % LIMITS.len()], THRESHOLD, HOUR);
    (limit, if index < LIMITS.len() { MOVED.to_owned() } else { format!("other {index}") })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_is_charged_once_while_a_slot_moves() {
    let (mut cluster, limiter) = start_cluster();
    first_decision(&limiter, &count(0).0, "warm").await;
    let slot = cluster.slot(&format!("{{{MOVED}}}"));
    for per_second in [2_000, 20_000] {
        let (load, started) = (Arc::new(Load::default()), Instant::now());
        let mut tasks = JoinSet::new();
        for task in 0..2 * TASKS {
            let (limiter, load) = (limiter.clone(), Arc::clone(&load));
            let every = Duration::from_secs(TASKS as u64) / per_second;
            tasks.spawn(async move { load.charge(&limiter, task, every).await });
        }
        let moves = tokio::task::spawn_blocking(move || {
            for _ in 0..4 {
                sleep(SECOND / 5);
                if !cluster.move_slot_at_once(slot) {
                    cluster.move_slot(slot, SECOND / 50);
                }
            }
            sleep(SECOND / 5);
            cluster
        });
        cluster = moves.await.expect("no panic");
        load.stop.store(true, Relaxed);
        tasks.join_all().await;
        let (took, mut all) = (started.elapsed().as_secs_f64(), 0);
        for (index, admitted) in load.admitted.iter().enumerate() {
            let ((limit, key), admitted) = (count(index), admitted.load(Relaxed));
            let left = limiter.peek(&limit, &key, 0).await.expect("a reply").remaining;
            assert_eq!(THRESHOLD - left, admitted, "{key}");
            limiter.reset(&limit, &key).await.expect("a reply");
            all += admitted;
        }
        let longest = Duration::from_micros(load.longest.load(Relaxed));
        println!("{:.0} charges a second, the longest call {longest:?}", all as f64 / took);
    }
}
