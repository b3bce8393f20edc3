//! Reservations of buckets: a call reserves the moment at which it will be admitted, with one request, and
//! sleeps until then. Calls of all processes are admitted in the order of their reservations.
//!
//! The calls of a process share the moments that they have reserved: the first call uses the first moment. When a
//! call is dropped, the calls behind it move up, and the last moment is cancelled. If another process has reserved
//! a later moment, the store does not cancel: the moment stays for the next call of this process, or passes unused.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use tokio::sync::Notify;

use super::{UndoOnDrop, WaitingCall, lock};
use crate::algorithm::{BucketOp, Outcome};
use crate::clock::before;
use crate::key::KeyId;
use crate::reply::{Source, StoreError};
use crate::store::{BucketCharge, Reply, Request};

/// The reserved moments of this process.
#[derive(Default)]
pub(super) struct ReservationQueues {
    queues: Mutex<HashMap<QueueKey, ReservationQueue>>,
}

/// The count, and the store of the reservations.
type QueueKey = (KeyId, Source);

#[derive(Default)]
struct ReservationQueue {
    /// The lane of each cost, because only calls of one cost can share moments.
    lanes: BTreeMap<u32, CostLane>,
    /// The number of calls that have come so far.
    arrivals: u64,
    /// Whether a task cancels moments.
    cancelling: bool,
}

#[derive(Default)]
struct CostLane {
    /// The waiting calls by arrival. Only the first call sleeps by the clock, until the first moment.
    waiters: BTreeMap<u64, Arc<Notify>>,
    /// The reserved moments: as many as waiters, or more after calls were dropped.
    moments: BTreeSet<ReservedMoment>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ReservedMoment {
    /// By the clock of the store.
    at: u64,
    /// Distinguishes equal moments.
    arrival: u64,
    /// By the clock of this process.
    local: u64,
}

/// Reserves a moment and waits for it.
pub(super) async fn admit(
    call: &WaitingCall,
    bucket: &BucketCharge,
    deadline: u64,
) -> Result<Reply, StoreError> {
    let wait = deadline.saturating_sub(call.clock().local()).min(1 << 52);
    let undo = {
        let (call, bucket) = (call.clone(), bucket.clone());
        async move |reply: Result<Reply, StoreError>| {
            let Ok(reply) = reply else { return };
            let outcome = reply.first();
            if outcome.allowed && outcome.retry_us == 0 {
                call.refund(reply.source).await;
            } else if outcome.allowed {
                drop(QueuedCall::enter(&call, &bucket, &outcome, reply.source));
            }
        }
    };
    let request = Request::ApplyAhead(BucketOp::Reserve { wait }, bucket.clone());
    let reply = UndoOnDrop::new(call.clone().execute(request), undo).await?;
    let outcome = reply.first();
    if !outcome.allowed || outcome.retry_us == 0 {
        return Ok(reply);
    }
    QueuedCall::enter(call, bucket, &outcome, reply.source).wait().await;
    let reset_us = outcome.reset_us.saturating_sub(outcome.retry_us);
    Ok(Reply::one(Outcome { retry_us: 0, reset_us, ..outcome }, reply.source))
}

/// A call in the queue of its cost. Dropping it leaves the queue.
struct QueuedCall<'a> {
    call: &'a WaitingCall,
    bucket: &'a BucketCharge,
    queue: QueueKey,
    arrival: u64,
    wake: Arc<Notify>,
}

impl<'a> QueuedCall<'a> {
    /// Adds the moment that the call has reserved, and enters the queue.
    fn enter(
        call: &'a WaitingCall,
        bucket: &'a BucketCharge,
        outcome: &Outcome,
        source: Source,
    ) -> Self {
        let now = call.clock().local();
        let (key, wake) = ((call.key_id, source), Arc::new(Notify::new()));
        let mut queues = lock(&call.waiting.reservations.queues);
        let queue = queues.entry(key).or_default();
        queue.arrivals += 1;
        let arrival = queue.arrivals;
        let at = outcome.clock + outcome.retry_us;
        let local = now.saturating_add(outcome.retry_us);
        let lane = queue.lanes.entry(bucket.charge().cost).or_default();
        lane.enter(arrival, &wake, ReservedMoment { at, arrival, local }, now);
        drop(queues);
        let entered = Self { call, bucket, queue: key, arrival, wake };
        entered.cancel_spare();
        entered
    }

    async fn wait(self) {
        let clock = self.call.clock();
        loop {
            let now = clock.local();
            let turn = self.with_lane(|lane| lane.turn(self.arrival, now));
            match turn.flatten() {
                None => self.wake.notified().await,
                Some(at) if at > now => {
                    before(clock.sleep_until_local(at), self.wake.notified()).await;
                }
                Some(_) => return,
            }
        }
    }

    fn with_lane<T>(&self, work: impl FnOnce(&mut CostLane) -> T) -> Option<T> {
        let mut queues = lock(&self.call.waiting.reservations.queues);
        queues.get_mut(&self.queue)?.lanes.get_mut(&self.bucket.charge().cost).map(work)
    }

    /// Cancels the moments that no call of this process needs.
    fn cancel_spare(&self) {
        let mut queues = lock(&self.call.waiting.reservations.queues);
        let Some(queue) = queues.get_mut(&self.queue).filter(|queue| !queue.cancelling) else {
            return;
        };
        queue.remove_passed(self.call.clock().local());
        if queue.last_spare().is_none() {
            if queue.has_no_waiters() {
                queues.remove(&self.queue);
            }
            return;
        }
        queue.cancelling = true;
        drop(queues);
        let cancel = cancel_spare(self.call.clone(), self.bucket.clone(), self.queue);
        let mut cancel = Box::pin(cancel);
        // The embedded store replies at once and needs no runtime.
        let mut context = Context::from_waker(Waker::noop());
        if cancel.as_mut().poll(&mut context).is_pending()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(cancel);
        }
    }
}

impl Drop for QueuedCall<'_> {
    fn drop(&mut self) {
        self.with_lane(|lane| lane.leave(self.arrival));
        self.cancel_spare();
    }
}

/// Cancels the moments of a queue that no call needs, the last moment first.
async fn cancel_spare(call: WaitingCall, bucket: BucketCharge, key: QueueKey) {
    let queues = &call.waiting.reservations.queues;
    let mut task = CancelTask { queues, key, ended: false };
    let mut kept = None;
    loop {
        let Some((cost, moment)) = next_spare(&mut lock(queues), key, kept) else {
            task.ended = true;
            return;
        };
        let op = BucketOp::Cancel { moment: moment.at };
        let request = Request::ApplyAhead(op, bucket.with_cost(cost));
        let result = call.backend().give_back(call.policy, key.1, request).await;
        // If the store keeps the last spare moment, another process has reserved a later moment. The store would then
        // keep the earlier spare moments as well.
        kept = result.is_ok_and(|reply| !reply.is_allowed()).then_some((cost, moment));
    }
}

/// The task that cancels the spare moments of a queue. If it ends with its runtime, it resets `cancelling`.
struct CancelTask<'a> {
    queues: &'a Mutex<HashMap<QueueKey, ReservationQueue>>,
    key: QueueKey,
    ended: bool,
}

impl Drop for CancelTask<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut queues = lock(self.queues);
        if let Some(queue) = queues.get_mut(&self.key) {
            queue.cancelling = false;
            if queue.has_no_waiters() {
                queues.remove(&self.key);
            }
        }
    }
}

/// Takes the next moment to cancel; `None` if no spare moment is later than `kept`, which the store did not cancel.
fn next_spare(
    queues: &mut HashMap<QueueKey, ReservationQueue>,
    key: QueueKey,
    kept: Option<(u32, ReservedMoment)>,
) -> Option<(u32, ReservedMoment)> {
    let queue = queues.get_mut(&key)?;
    if let Some((cost, moment)) = kept {
        let lane = queue.lanes.entry(cost).or_default();
        lane.moments.insert(moment);
        lane.wake_first();
    }
    let spare = queue.last_spare().filter(|(_, spare)| kept.is_none_or(|(_, kept)| *spare > kept));
    if let Some((cost, moment)) = spare {
        queue.lanes.get_mut(&cost)?.moments.remove(&moment);
        return spare;
    }
    queue.cancelling = false;
    if queue.has_no_waiters() {
        queues.remove(&key);
    }
    None
}

impl ReservationQueue {
    /// Returns the last moment that no call needs, and its cost.
    fn last_spare(&self) -> Option<(u32, ReservedMoment)> {
        let spare = self.lanes.iter().filter(|(_, lane)| lane.has_spare());
        let last = spare.filter_map(|(cost, lane)| Some((*cost, *lane.moments.last()?)));
        last.max_by_key(|(_, moment)| moment.at)
    }

    fn remove_passed(&mut self, now: u64) {
        self.lanes.values_mut().for_each(|lane| lane.remove_passed(now));
        self.lanes.retain(|_, lane| !(lane.waiters.is_empty() && lane.moments.is_empty()));
    }

    fn has_no_waiters(&self) -> bool {
        self.lanes.values().all(|lane| lane.waiters.is_empty())
    }
}

impl CostLane {
    fn has_spare(&self) -> bool {
        self.moments.len() > self.waiters.len()
    }

    fn enter(&mut self, arrival: u64, wake: &Arc<Notify>, moment: ReservedMoment, now: u64) {
        self.remove_passed(now);
        self.waiters.insert(arrival, Arc::clone(wake));
        self.moments.insert(moment);
        self.wake_first();
    }

    /// Returns the time of the first moment if it is the turn of the call `arrival`. Takes the moment if it has come.
    fn turn(&mut self, arrival: u64, now: u64) -> Option<u64> {
        let (first, _) = self.waiters.first_key_value()?;
        let local = self.moments.first().filter(|_| *first == arrival)?.local;
        if local <= now {
            self.moments.pop_first();
            self.leave(arrival);
        }
        Some(local)
    }

    /// Removes the moments that passed while no call waited.
    fn remove_passed(&mut self, now: u64) {
        if self.waiters.is_empty() {
            self.moments.retain(|moment| moment.local > now);
        }
    }

    fn leave(&mut self, arrival: u64) {
        if self.waiters.remove(&arrival).is_some() {
            self.wake_first();
        }
    }

    /// Wakes the first call: it may have become the first, or its moment may have changed.
    fn wake_first(&self) {
        if let Some((_, first)) = self.waiters.first_key_value() {
            first.notify_one();
        }
    }
}
