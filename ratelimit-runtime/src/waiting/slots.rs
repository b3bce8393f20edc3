//! Slots of buckets: a call books the moment at which it will be admitted, in one step of the store,
//! and sleeps until then. Calls of all processes are admitted in the order in which they booked.
//!
//! The slots of a process are taken by its calls in their order, whoever booked which: when one
//! gives up, those behind it move up, and the last slot goes back to the store. If another process
//! has booked behind that slot it stays here, for the next to come, or passes unused; the calls of
//! the other process have been told their time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use super::{InFlight, Wanted, before, lock};
use crate::decision::{Answered, Decision, Source, Verdict};
use crate::error::StoreError;
use crate::key::Written;
use crate::limit::BucketLimit;
use crate::question::Finding;
use crate::rejection::Rejection;

/// The booked slots of this process.
#[derive(Default)]
pub(super) struct Slots {
    queues: Mutex<HashMap<QueueId, Queue>>,
}

/// What is waited for, and who gave the slots.
type QueueId = (u128, Source);

#[derive(Default)]
struct Queue {
    /// By cost: calls of one cost can take each other's slots.
    lanes: BTreeMap<u32, Lane>,
    /// How many calls have come.
    arrivals: u64,
    /// Slots are being given back.
    giving: bool,
}

#[derive(Default)]
struct Lane {
    /// Those that wait, by arrival. Only the first waits for the clock, until the first slot.
    waiters: BTreeMap<u64, Arc<Notify>>,
    /// As many slots as waiters, or more when some have given up.
    slots: BTreeSet<Slot>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Slot {
    /// By the clock of the store.
    at: u64,
    /// Tells slots of one moment apart.
    arrival: u64,
    /// By the clock of this process.
    local: u64,
}

/// Books a slot and waits for it.
pub(super) async fn admitted(
    wanted: &Wanted,
    limit: &BucketLimit,
    key: &Written,
    cost: u32,
    deadline: u64,
) -> Finding {
    let (clock, capacity, name) = (wanted.clock(), limit.capacity(), limit.name());
    let wait = deadline.saturating_sub(clock.local()).min(1 << 52);
    let undo = {
        let wanted = wanted.clone();
        async move |answer: Result<Answered, StoreError>| match answer {
            Ok(Answered { outcome, source }) if outcome.allowed && outcome.retry_us == 0 => {
                wanted.refund(source).await;
            }
            Ok(answered) if answered.outcome.allowed => drop(Seat::take(&wanted, answered)),
            _ => {}
        }
    };
    let answer = wanted.limiter.book(limit, key, cost, wait);
    let answered = match InFlight::new(answer, undo).await {
        Ok(answered) => answered,
        Err(error) => return Err(Rejection::Unavailable { name, error }),
    };
    let mut decision = Decision::new(capacity, answered);
    if !decision.allowed {
        return Err(Rejection::limited(limit, decision));
    }
    if !decision.retry_after.is_zero() {
        Seat::take(wanted, answered).wait().await;
        decision.reset_after = decision.reset_after.saturating_sub(decision.retry_after);
        decision.retry_after = Duration::ZERO;
    }
    Ok(Verdict::new(limit, decision))
}

/// A waiter's place among those of its cost, given up on drop.
struct Seat<'a> {
    wanted: &'a Wanted,
    queue: QueueId,
    cost: u32,
    arrival: u64,
    called: Arc<Notify>,
}

impl<'a> Seat<'a> {
    /// Brings the slot that was booked, and takes a place.
    fn take(wanted: &'a Wanted, Answered { outcome, source }: Answered) -> Self {
        let now = wanted.clock().local();
        let cost = wanted.parts.first().map_or(0, |(_, _, cost)| *cost);
        let (id, called) = ((wanted.place, source), Arc::new(Notify::new()));
        let mut queues = lock(&wanted.limiter.waiters().slots.queues);
        let queue = queues.entry(id).or_default();
        queue.arrivals += 1;
        let arrival = queue.arrivals;
        let at = outcome.clock + outcome.retry_us;
        let local = now.saturating_add(outcome.retry_us);
        let lane = queue.lanes.entry(cost).or_default();
        lane.enter(arrival, &called, Slot { at, arrival, local }, now);
        drop(queues);
        let seat = Self { wanted, queue: id, cost, arrival, called };
        seat.settle();
        seat
    }

    async fn wait(self) {
        let clock = self.wanted.clock();
        loop {
            let now = clock.local();
            let turn = self.with_lane(|lane| lane.turn(self.arrival, now));
            match turn.flatten() {
                None => self.called.notified().await,
                Some(at) if at > now => {
                    before(clock.sleep_until(at), self.called.notified()).await;
                }
                Some(_) => return,
            }
        }
    }

    fn with_lane<T>(&self, work: impl FnOnce(&mut Lane) -> T) -> Option<T> {
        let mut queues = lock(&self.wanted.limiter.waiters().slots.queues);
        queues.get_mut(&self.queue)?.lanes.get_mut(&self.cost).map(work)
    }

    /// Gives back the slots that nobody needs.
    fn settle(&self) {
        let mut queues = lock(&self.wanted.limiter.waiters().slots.queues);
        let Some(queue) = queues.get_mut(&self.queue).filter(|queue| !queue.giving) else { return };
        queue.forget_passed(self.wanted.clock().local());
        if queue.spare().is_none() {
            if queue.is_deserted() {
                queues.remove(&self.queue);
            }
            return;
        }
        queue.giving = true;
        drop(queues);
        let mut giving = Box::pin(give_back(self.wanted.clone(), self.queue));
        // The embedded store answers at once, and needs no runtime.
        let mut context = Context::from_waker(Waker::noop());
        if giving.as_mut().poll(&mut context).is_pending()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(giving);
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.with_lane(|lane| lane.leave(self.arrival));
        self.settle();
    }
}

/// Gives back the slots of a queue that nobody needs, the last one first.
async fn give_back(wanted: Wanted, id: QueueId) {
    let queues = &wanted.limiter.waiters().slots.queues;
    let mut giving = Giving { queues, id, ended: false };
    let mut kept = None;
    while let Some((limit, key, _)) = wanted.parts.first()
        && let Some(limit) = &BucketLimit::of(limit)
    {
        let spare = spare_of(&mut lock(queues), id, kept);
        let Some((cost, slot)) = spare else {
            giving.ended = true;
            return;
        };
        let answer = wanted.limiter.unbook(id.1, limit, key, cost, slot.at).await;
        // When somebody has booked behind the last of these slots, then behind all of them.
        kept = answer.is_ok_and(|answered| !answered.outcome.allowed).then_some((cost, slot));
    }
}

/// Slots of a queue are being given back: until there are none, or the runtime ends.
struct Giving<'a> {
    queues: &'a Mutex<HashMap<QueueId, Queue>>,
    id: QueueId,
    ended: bool,
}

impl Drop for Giving<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut queues = lock(self.queues);
        if let Some(queue) = queues.get_mut(&self.id) {
            queue.giving = false;
            if queue.is_deserted() {
                queues.remove(&self.id);
            }
        }
    }
}

/// What to give back next; nothing when there is no slot behind the one that had to be kept.
fn spare_of(
    queues: &mut HashMap<QueueId, Queue>,
    id: QueueId,
    kept: Option<(u32, Slot)>,
) -> Option<(u32, Slot)> {
    let queue = queues.get_mut(&id)?;
    if let Some((cost, slot)) = kept {
        let lane = queue.lanes.entry(cost).or_default();
        lane.slots.insert(slot);
        lane.call();
    }
    let spare = queue.spare().filter(|(_, spare)| kept.is_none_or(|(_, kept)| *spare > kept));
    if let Some((cost, slot)) = spare {
        queue.lanes.get_mut(&cost)?.slots.remove(&slot);
        return spare;
    }
    queue.giving = false;
    if queue.is_deserted() {
        queues.remove(&id);
    }
    None
}

impl Queue {
    /// The last of the slots that nobody needs, and its cost.
    fn spare(&self) -> Option<(u32, Slot)> {
        let spare = self.lanes.iter().filter(|(_, lane)| lane.has_spare());
        let last = spare.filter_map(|(cost, lane)| Some((*cost, *lane.slots.last()?)));
        last.max_by_key(|(_, slot)| slot.at)
    }

    fn forget_passed(&mut self, now: u64) {
        self.lanes.values_mut().for_each(|lane| lane.forget_passed(now));
        self.lanes.retain(|_, lane| !(lane.waiters.is_empty() && lane.slots.is_empty()));
    }

    fn is_deserted(&self) -> bool {
        self.lanes.values().all(|lane| lane.waiters.is_empty())
    }
}

impl Lane {
    fn has_spare(&self) -> bool {
        self.slots.len() > self.waiters.len()
    }

    fn enter(&mut self, arrival: u64, called: &Arc<Notify>, slot: Slot, now: u64) {
        self.forget_passed(now);
        self.waiters.insert(arrival, Arc::clone(called));
        self.slots.insert(slot);
        self.call();
    }

    /// The time of the first slot, if it is this waiter's turn; the slot is used when it is due.
    fn turn(&mut self, arrival: u64, now: u64) -> Option<u64> {
        let (first, _) = self.waiters.first_key_value()?;
        let local = self.slots.first().filter(|_| *first == arrival)?.local;
        if local <= now {
            self.slots.pop_first();
            self.leave(arrival);
        }
        Some(local)
    }

    /// A slot that passed while nobody waited is nobody's; the first waiter's may be due.
    fn forget_passed(&mut self, now: u64) {
        if self.waiters.is_empty() {
            self.slots.retain(|slot| slot.local > now);
        }
    }

    fn leave(&mut self, arrival: u64) {
        if self.waiters.remove(&arrival).is_some() {
            self.call();
        }
    }

    /// Calls the first, which may have become it, or whose slot may be another.
    fn call(&self) {
        if let Some((_, first)) = self.waiters.first_key_value() {
            first.notify_one();
        }
    }
}
