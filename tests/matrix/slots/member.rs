//! One process of a fleet whose calls hold slots: tasks that call until standard input has a line. A call ends in one
//! of several ways.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use ratelimit_runtime::{Limit, OnError, Part, Permit, RateLimiter, Rejection};
use support::history::machine_time;
use support::random::Random;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{DEADLINE, HOLDS, KEYS, LONG, PACE, SHORT_MILLIS, SLOTS, TASKS, TOTAL, WAIT};
use crate::fleet::ready;

struct Member {
    limiter: RateLimiter,
    slots: Limit,
    is_rated: bool,
    /// The calls that were made, and those that were certainly rejected.
    asked: AtomicU64,
    rejected: AtomicU64,
    is_stopping: Arc<AtomicBool>,
}

/// Runs a process: the arguments are the URL, the number of the process, and whether rates limit its calls.
pub(crate) fn member(url: &str, number: &str, is_rated: &str) {
    let number: u64 = number.parse().expect("a number");
    let builder = RateLimiter::builder().redis(url).on_error(OnError::Deny).deadline(DEADLINE);
    let limiter = builder.build().expect("valid");
    let slots = SLOTS.hold(HOLDS[number as usize]);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        while limiter.peek(&slots, 0_u64, 0).await.is_err() {}
        let member = Arc::new(Member {
            limiter,
            slots,
            is_rated: is_rated.parse().expect("true or false"),
            asked: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            is_stopping: ready(),
        });
        let seeds = (number * TASKS..).take(TASKS as usize);
        let tasks = seeds.map(|seed| Arc::clone(&member).call_until_stopped(seed + 1));
        // Panics if a task has.
        tasks.collect::<JoinSet<()>>().join_all().await;
        member.limiter.flush().await.expect("a reply");
        println!("counts {} {}", member.asked.load(Relaxed), member.rejected.load(Relaxed));
    });
}

impl Member {
    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Relaxed)
    }

    async fn call_until_stopped(self: Arc<Self>, seed: u64) {
        // Xorshift begins with small numbers if its seed is one.
        let mut random = Random(seed.wrapping_mul(6_364_136_223_846_793_005));
        let mut below = move |end| random.below(end);
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
            // A call in line for two units would leave one unused behind long calls.
            let waits = units == 1 && below(2) == 0;
            play(&self, CallPlan { key: below(KEYS), units, waits, work, end }).await;
            sleep(Duration::from_millis(20 + below(60))).await;
        }
    }
}

/// How often a call writes that it holds its units.
const TICK: Duration = Duration::from_millis(10);

#[derive(Clone, Copy)]
struct CallPlan {
    key: u64,
    units: u64,
    waits: bool,
    work: Duration,
    end: End,
}

#[derive(Clone, Copy)]
enum End {
    Returns,
    Panics,
    Aborted(Duration),
    /// Its future is dropped after a number of polls: at one of its awaits.
    Dropped(u64),
}

struct PlannedPanic;

async fn play(member: &Arc<Member>, plan: CallPlan) {
    if let End::Dropped(polls) = plan.end {
        return poll_some_times(call(member, plan), polls).await;
    }
    let task = {
        let member = Arc::clone(member);
        tokio::spawn(async move { call(&member, plan).await })
    };
    if let End::Aborted(after) = plan.end {
        sleep(after).await;
        task.abort();
    }
    if let Some(panic) = task.await.err().and_then(|error| error.try_into_panic().ok())
        && !panic.is::<PlannedPanic>()
    {
        std::panic::resume_unwind(panic);
    }
}

async fn poll_some_times(call: impl Future<Output = ()>, polls: u64) {
    let (mut call, mut left) = (pin!(call), polls);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        if left == 0 {
            context.waker().wake_by_ref();
        }
        call.as_mut().poll(context)
    })
    .await;
}

async fn call(member: &Member, plan: CallPlan) {
    let CallPlan { key, units, waits, work, end } = plan;
    let (asked, id) = (machine_time(), member.asked.fetch_add(1, Relaxed));
    let wait = |limit: Limit| if waits { limit.wait(WAIT) } else { limit };
    let [slots, pace, total] = [wait(member.slots), wait(PACE), wait(TOTAL)];
    let mut parts = vec![Part::new(&slots, &key, units)];
    if member.is_rated {
        parts.extend([Part::new(&pace, &key, 1), Part::new(&total, &key, 1)]);
    }
    match member.limiter.acquire_all(&parts).await {
        Ok(permits) => {
            let running = Running { id, permits };
            let from = machine_time();
            if running.is_lost() {
                return;
            }
            println!("run {id} {key} {units} {asked} {from}");
            running.work(member, work).await;
            if matches!(end, End::Panics) {
                // Without a message of the panic hook.
                std::panic::resume_unwind(Box::new(PlannedPanic));
            }
        }
        Err(Rejection::Busy { .. } | Rejection::Limited { .. }) => {
            member.rejected.fetch_add(1, Relaxed);
        }
        Err(Rejection::Unavailable { .. }) => {}
        Err(other) => panic!("{other:?}"),
    }
}

/// A call that runs. The first permit is that of its units in flight.
struct Running {
    id: u64,
    permits: Vec<Permit>,
}

impl Running {
    /// Works until the work is done, the units are lost, or the process stops.
    async fn work(&self, member: &Member, work: Duration) {
        let mut left = work;
        while !left.is_zero() && !member.is_stopping() {
            sleep(left.min(TICK)).await;
            left = left.saturating_sub(TICK);
            if !self.is_alive() {
                println!("lost {}", self.id);
                return;
            }
        }
    }

    fn is_lost(&self) -> bool {
        self.permits[0].is_lost()
    }

    /// Returns whether the call holds its units, and writes when it certainly did.
    fn is_alive(&self) -> bool {
        // Units that are not lost after this time were held at it.
        let at = machine_time();
        let is_alive = !self.is_lost();
        if is_alive {
            println!("alive {} {at}", self.id);
        }
        is_alive
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.is_alive();
    }
}
