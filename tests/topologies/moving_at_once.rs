//! A hash slot that moves with all its keys in one step (Redis 8.4, Valkey 9.0), while calls charge its keys at a rate.
//! As many calls charge keys of other slots, so that scripts over many slots decide both. Older servers move the keys
//! one by one.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Algorithm, Limit, RateLimiter, Rejection};
use support::cluster::Cluster;
use support::limits::{HOUR, SECOND};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::{denying_builder, first_decision};

/// The key that moves. Its limits share a hash slot.
const MOVED: &str = "moved";
const LIMITS: [&str; 4] = ["first", "second", "third", "fourth"];
const TASKS: usize = 40;

/// How many counts are charged: those of the key that moves, and as many of other keys.
const COUNTS: usize = 2 * LIMITS.len();

const MOVES: u32 = 4;

/// No call charges as much.
const THRESHOLD: u64 = 1_000_000_000;

/// What became of the calls of a count.
#[derive(Clone, Copy, Default)]
struct Charged {
    admitted: u64,
    /// Calls that may have been charged.
    undecided: u64,
    longest: Duration,
}

impl AddAssign for Charged {
    fn add_assign(&mut self, other: Self) {
        self.admitted += other.admitted;
        self.undecided += other.undecided;
        self.longest = self.longest.max(other.longest);
    }
}

/// Returns the limit and the key of a count. The key that moves has the first counts.
fn count(index: usize) -> (Limit, String) {
    let name = LIMITS[index % LIMITS.len()];
    let limit = Limit::new(name, Algorithm::Fixed, THRESHOLD, HOUR).expect("valid");
    (limit, if index < LIMITS.len() { MOVED.to_owned() } else { format!("other {index}") })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_at_two_thousand_charges_a_second() {
    moves_under(2_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_at_twenty_thousand_charges_a_second() {
    moves_under(20_000).await;
}

async fn moves_under(per_second: u32) {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    first_decision(&limiter, &count(0).0, "warm").await;
    let slot = cluster.slot(&format!("{{{MOVED}}}"));
    let (stop, started) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let mut tasks = JoinSet::new();
    for task in 0..2 * TASKS {
        let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
        let every = Duration::from_secs(TASKS as u64) / per_second;
        tasks.spawn(async move { calls(&limiter, task, every, &stop).await });
    }
    let moves = tokio::task::spawn_blocking(move || {
        for _ in 0..MOVES {
            sleep(SECOND / 5);
            if !cluster.move_slot_at_once(slot) {
                cluster.move_slot(slot, SECOND / 50);
            }
        }
        sleep(SECOND / 5);
        cluster
    });
    let _cluster = moves.await.expect("no panic");
    stop.store(true, Ordering::Relaxed);
    let mut charged = [Charged::default(); COUNTS];
    for of_task in tasks.join_all().await {
        charged.iter_mut().zip(of_task).for_each(|(charged, of_task)| *charged += of_task);
    }
    let (took, mut all) = (started.elapsed().as_secs_f64(), Charged::default());
    for (index, charged) in charged.into_iter().enumerate() {
        let (limit, key) = count(index);
        let left = limiter.peek(&limit, &key, 0).await.expect("a reply").remaining;
        let (counted, most) = (THRESHOLD - left, charged.admitted + charged.undecided);
        assert!((charged.admitted..=most).contains(&counted), "{key}: {counted} of {most}");
        all += charged;
    }
    let Charged { admitted, undecided, longest } = all;
    let rate = admitted as f64 / took;
    println!("{rate:.0} charges a second, {undecided} undecided, the longest call {longest:?}");
    assert!(undecided == 0, "{undecided} calls were undecided for five seconds");
}

/// Charges the counts of the key that moves, or of other keys, in turn until `stop`.
async fn calls(
    limiter: &RateLimiter,
    task: usize,
    every: Duration,
    stop: &AtomicBool,
) -> [Charged; COUNTS] {
    let (mut charged, mut ticks) = ([Charged::default(); COUNTS], interval(every));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let counts: Vec<_> = (0..COUNTS).map(count).collect();
    let mut next = task % COUNTS;
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        // The task stays in its half of the counts.
        next = next / LIMITS.len() * LIMITS.len() + (next + 1) % LIMITS.len();
        let started = Instant::now();
        let (limit, key) = &counts[next];
        let call = match limiter.check(limit, key, 1).await {
            Ok(_) => Charged { admitted: 1, ..Charged::default() },
            Err(Rejection::Unavailable { .. }) => Charged { undecided: 1, ..Charged::default() },
            Err(other) => panic!("{other:?}"),
        };
        charged[next] += Charged { longest: started.elapsed(), ..call };
    }
    charged
}
