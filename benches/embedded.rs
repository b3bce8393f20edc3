//! What a decision in this process costs, beside `governor`.
//!
//! `cargo bench --bench embedded` decides on both in turn, several rounds each, and prints medians in
//! nanoseconds a decision, and the resident memory of a key. Both get the same keys in the same order,
//! just written into a buffer, as a handler has them.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use governor::{DefaultKeyedRateLimiter, Quota};
use ratelimit_runtime::{Algorithm, Limit, RateLimiter, rate_limit};
use support::ALGORITHMS;

const ROUNDS: usize = 7;
const DECISIONS: usize = 1 << 20;

/// Nothing is refused, and no key is as new again in the meantime.
const FLOWING: u32 = 10_000_000;
const PERIOD: Duration = Duration::from_secs(365 * 86_400);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [memory, who] = &arguments[..]
        && memory == "memory"
    {
        return println!("{}", memory_of_a_key(who == "ours"));
    }
    if arguments.first().is_some_and(|word| word == "ours") {
        // For a profiler.
        let (ours, keys) = (Ours::new(Algorithm::TokenBucket, FLOWING), uniform(10_000));
        for _ in 0..40 {
            black_box(round(1, &keys, &ours));
        }
        return;
    }
    println!("nanoseconds a decision        ours  governor  ratio");
    for threads in [1, 2] {
        let table = [
            ("10,000 keys", uniform(10_000)),
            ("a million keys", uniform(1_000_000)),
            ("a million keys, zipf", zipf(1_000_000)),
        ];
        for (name, keys) in table {
            let ours = Ours::new(Algorithm::TokenBucket, FLOWING);
            let governor = Governor::new(FLOWING);
            compare(name, threads, &keys, &ours, &governor);
        }
    }
    let (ours, governor) = (Ours::new(Algorithm::TokenBucket, 1), Governor::new(1));
    compare("refused, 10,000 keys", 1, &uniform(10_000), &ours, &governor);

    println!("\nnanoseconds a decision, 10,000 keys, against the token bucket");
    let bucket = Ours::new(Algorithm::TokenBucket, FLOWING);
    for algorithm in ALGORITHMS {
        let ours = Ours::new(algorithm, FLOWING);
        compare(algorithm.as_str(), 1, &uniform(10_000), &ours, &bucket);
    }
    attribute();

    let [ours, governor] = ["ours", "governor"].map(|who| {
        let program = std::env::current_exe().expect("this program has a path");
        let output = Command::new(program).args(["memory", who]).output().expect("a process");
        String::from_utf8_lossy(&output.stdout).trim().parse::<f64>().expect("a number")
    });
    println!("\nbytes a key, of a million: {ours:.0} {governor:.0} {:.2}", ours / governor);
}

/// Decides one call.
#[allow(clippy::ptr_arg, reason = "governor borrows a `String`")]
trait Decides: Sync {
    fn admits(&self, key: &String) -> bool;
}

struct Ours {
    limiter: RateLimiter,
    limit: Limit,
}

impl Ours {
    fn new(algorithm: Algorithm, threshold: u32) -> Self {
        let limiter = RateLimiter::builder().max_keys(2_000_000).build().expect("valid");
        let mut limit = Limit::new("bench", algorithm, threshold, PERIOD).expect("valid");
        if algorithm == Algorithm::LeakyBucket {
            limit = limit.burst(threshold);
        }
        Self { limiter, limit }
    }
}

impl Decides for Ours {
    fn admits(&self, key: &String) -> bool {
        ready(self.limiter.check(&self.limit, key, 1)).is_ok()
    }
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("the embedded store answers at once"),
    }
}

struct Governor(DefaultKeyedRateLimiter<String>);

impl Governor {
    fn new(threshold: u32) -> Self {
        let threshold = NonZeroU32::new(threshold).expect("above zero");
        let quota = Quota::with_period(PERIOD / threshold.get()).expect("above zero");
        let quota = quota.allow_burst(threshold);
        Self(DefaultKeyedRateLimiter::keyed(quota))
    }
}

impl Decides for Governor {
    fn admits(&self, key: &String) -> bool {
        match self.0.check_key(key) {
            Ok(()) => true,
            Err(refused) => {
                // Ours says it always.
                black_box(refused.wait_time_from(governor::clock::Clock::now(self.0.clock())));
                false
            }
        }
    }
}

fn compare(name: &str, threads: usize, keys: &[u32], ours: &dyn Decides, other: &dyn Decides) {
    let mut rounds = [const { Vec::new() }; 2];
    for _ in 0..=ROUNDS {
        for (who, rounds) in [ours, other].into_iter().zip(&mut rounds) {
            rounds.push(round(threads, keys, who));
        }
    }
    let [ours, other] = rounds.map(|mut rounds| {
        // The first made the keys.
        rounds.remove(0);
        rounds.sort_by(f64::total_cmp);
        rounds[rounds.len() / 2]
    });
    let name = if threads == 1 { name.to_owned() } else { format!("{name}, {threads} threads") };
    println!("{name:32} {ours:5.0} {other:6.0}   {:.2}", other / ours);
}

/// Nanoseconds a decision.
fn round(threads: usize, keys: &[u32], who: &dyn Decides) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut key = String::new();
                for index in keys.iter().skip(thread).step_by(threads) {
                    write(&mut key, *index);
                    black_box(who.admits(&key));
                }
            });
        }
    });
    start.elapsed().as_nanos() as f64 / keys.len() as f64
}

fn write(key: &mut String, index: u32) {
    key.clear();
    key.push_str("user:");
    key.push_str(itoa::Buffer::new().format(index));
}

/// Knuth's MMIX generator: the same keys in every run.
fn random() -> impl FnMut() -> u64 {
    let mut state = 1_u64;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 11
    }
}

fn uniform(keys: u64) -> Vec<u32> {
    let mut random = random();
    (0..DECISIONS).map(|_| (random() % keys) as u32).collect()
}

/// Key `i` comes as often as 1/(i + 1).
fn zipf(keys: u64) -> Vec<u32> {
    let mut random = random();
    let sums: Vec<f64> = (1..=keys)
        .scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        })
        .collect();
    let total = sums[sums.len() - 1];
    let pick = |number: u64| {
        let at = number as f64 / (1_u64 << 53) as f64 * total;
        sums.partition_point(|sum| *sum < at) as u32
    };
    (0..DECISIONS).map(|_| pick(random())).collect()
}

#[rate_limit(period = "365d", threshold = FLOWING, algo = "token_bucket", key = "{user}:{id}", on_limited = |_| false)]
async fn formatted(user: &str, id: u32) -> bool {
    black_box((user, id));
    true
}

#[rate_limit(period = "365d", threshold = FLOWING, algo = "token_bucket", key = user, on_limited = |_| false)]
async fn text(user: &str) -> bool {
    black_box(user);
    true
}

#[rate_limit(period = "365d", threshold = FLOWING, algo = "token_bucket", key = (user, id), on_limited = |_| false)]
async fn tuple(user: &str, id: u32) -> bool {
    black_box((user, id));
    true
}

#[rate_limit(period = "365d", threshold = FLOWING, algo = "token_bucket", on_limited = |_| false)]
async fn keyless() -> bool {
    true
}

type Call<'a> = &'a dyn Fn(u32) -> bool;

/// The attribute, beside `governor` called by hand with the key that is made for it.
fn attribute() {
    println!("\nnanoseconds a call            ours  governor  ratio");
    let governor = Governor::new(FLOWING);
    let ids: Vec<u32> = uniform(10_000);
    let names: Vec<String> = (0..10_000).map(|index| format!("user:{index}")).collect();
    let by_hand: Call<'_> = &|id| governor.admits(&format!("{}:{id}", "user"));
    let ours: [(&str, Call<'_>); 4] = [
        ("key = \"{user}:{id}\"", &|id| ready(formatted("user", id))),
        ("key = user", &|id| ready(text(&names[id as usize]))),
        ("key = (user, id)", &|id| ready(tuple("user", id))),
        ("no key", &|_| ready(keyless())),
    ];
    for (name, ours) in ours {
        let mut rounds = [const { Vec::new() }; 2];
        for _ in 0..=ROUNDS {
            for (call, rounds) in [ours, by_hand].into_iter().zip(&mut rounds) {
                let start = Instant::now();
                for id in &ids {
                    black_box(call(*id));
                }
                rounds.push(start.elapsed().as_nanos() as f64 / ids.len() as f64);
            }
        }
        let [ours, other] = rounds.map(|mut rounds| {
            rounds.remove(0);
            rounds.sort_by(f64::total_cmp);
            rounds[rounds.len() / 2]
        });
        println!("{name:32} {ours:5.0} {other:6.0}   {:.2}", other / ours);
    }
}

/// Bytes of resident memory for each of a million keys.
fn memory_of_a_key(ours: bool) -> f64 {
    const KEYS: u32 = 1_000_000;
    let who: Box<dyn Decides> = if ours {
        Box::new(Ours::new(Algorithm::TokenBucket, FLOWING))
    } else {
        Box::new(Governor::new(FLOWING))
    };
    let before = resident();
    let mut key = String::new();
    for index in 0..KEYS {
        write(&mut key, index);
        who.admits(&key);
    }
    (resident() - before) as f64 / f64::from(KEYS)
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).expect("resident pages");
    pages.parse::<u64>().expect("a number") * 4096
}
