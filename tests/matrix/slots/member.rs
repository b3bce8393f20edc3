//! One process of a fleet whose calls hold slots: tasks that call until standard input has a line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use ratelimit_runtime::{Limit, OnError, RateLimiter};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::call::{CallPlan, End, play};
use super::{DEADLINE, HOLDS, KEYS, LONG, SHORT_MILLIS, SLOTS, TASKS};

/// A process.
pub(super) struct Member {
    pub(super) limiter: RateLimiter,
    pub(super) slots: Limit,
    pub(super) is_rated: bool,
    /// The calls that were made, and those that were certainly rejected.
    pub(super) asked: AtomicU64,
    pub(super) rejected: AtomicU64,
    number: u64,
    calls: AtomicU64,
    is_stopping: AtomicBool,
}

/// Runs a process: the arguments are the URL, the number of the process, and whether rates limit its calls.
pub(crate) fn member(url: &str, number: &str, is_rated: &str) {
    let number: u64 = number.parse().expect("a number");
    let builder = RateLimiter::builder().redis(url).on_error(OnError::Deny).deadline(DEADLINE);
    let member = Arc::new(Member {
        limiter: builder.build().expect("valid"),
        slots: SLOTS.hold(HOLDS[number as usize]),
        is_rated: is_rated.parse().expect("true or false"),
        asked: AtomicU64::new(0),
        rejected: AtomicU64::new(0),
        number,
        calls: AtomicU64::new(0),
        is_stopping: AtomicBool::new(false),
    });
    let stops = Arc::clone(&member);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        stops.is_stopping.store(true, Relaxed);
    });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        while member.limiter.peek(&member.slots, 0_u64, 0).await.is_err() {}
        println!("ready");
        let tasks = (0..TASKS).map(|task| Arc::clone(&member).call_until_stopped(task));
        // Panics if a task has.
        tasks.collect::<JoinSet<()>>().join_all().await;
        member.limiter.flush().await.expect("a reply");
        println!("counts {} {}", member.asked.load(Relaxed), member.rejected.load(Relaxed));
    });
}

impl Member {
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Relaxed)
    }

    async fn call_until_stopped(self: Arc<Self>, task: u64) {
        let mut random = self.number * TASKS + task + 1;
        let mut below = move |end: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % end
        };
        while !self.is_stopping() {
            let end = match below(8) {
                0 => End::Panics,
                1 => End::Aborted(Duration::from_millis(below(SHORT_MILLIS))),
                2 => End::Dropped(below(12)),
                _ => End::Returns,
            };
            let work =
                if below(50) == 0 { LONG } else { Duration::from_millis(below(SHORT_MILLIS)) };
            let units = if below(6) == 0 { 2 } else { 1 };
            let plan = CallPlan {
                id: self.calls.fetch_add(1, Relaxed),
                key: below(KEYS),
                units,
                // A call in line for two units would leave one unused behind long calls.
                waits: units == 1 && below(2) == 0,
                work,
                end,
            };
            play(&self, plan).await;
            sleep(Duration::from_millis(20 + below(60))).await;
        }
    }
}
