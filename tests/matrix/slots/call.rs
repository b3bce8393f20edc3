//! A call of a process, from its request to its end in one of several ways.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use ratelimit_runtime::{Limit, Part, Permit, Rejection};
use support::history::machine_time;
use tokio::time::sleep;

use super::member::Member;
use super::{PACE, TOTAL, WAIT};

/// How often a call writes that it holds its units.
const TICK: Duration = Duration::from_millis(10);

/// What a call does.
#[derive(Clone, Copy)]
pub(super) struct CallPlan {
    pub(super) id: u64,
    pub(super) key: u64,
    pub(super) units: u64,
    pub(super) waits: bool,
    pub(super) work: Duration,
    pub(super) end: End,
}

/// How a call ends, unless its work is done before.
#[derive(Clone, Copy)]
pub(super) enum End {
    Returns,
    Panics,
    /// Its task is aborted.
    Aborted(Duration),
    /// Its future is dropped after a number of polls: at one of its awaits.
    Dropped(u64),
}

/// The panic of a call.
struct PlannedPanic;

/// Makes a call, and returns once it has ended.
pub(super) async fn play(member: &Arc<Member>, plan: CallPlan) {
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
    match task.await {
        Err(error) if error.is_panic() => {
            let panic = error.into_panic();
            if !panic.is::<PlannedPanic>() {
                std::panic::resume_unwind(panic);
            }
        }
        _ => {}
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
    let CallPlan { id, key, units, waits, work, end } = plan;
    let asked = machine_time();
    member.asked.fetch_add(1, Relaxed);
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
