//! The owner of what outlives a call. It has one task on the thread of the limiter, so it depends on no runtime of a
//! caller, and on no future that a caller must poll.
//!
//! It owns the corrections of the shared store: settlements, give-backs, blocks and resets (`corrections.rs`); and
//! the units in flight that this process holds there (`slots.rs`). Both are plain values under one lock, which callers
//! change as well. The task sends what is due, and goes on until the limiter and its permits are dropped and nothing
//! waits.

#![cfg_attr(
    not(feature = "redis"),
    allow(unreachable_code, unused_variables, reason = "there is no shared store")
)]

mod agenda;
mod corrections;
mod held;
mod notices;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::HashMap;
use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

pub(crate) use self::agenda::Agenda;
use self::corrections::{Corrections, Kind, Queueable, Sent};
use self::held::HeldReply;
pub(crate) use self::held::HeldSlot;
pub(crate) use self::notices::Notices;
use self::slots::{SlotCounts, SlotEnds, SlotRequest};
use crate::algorithm::{BlockChange, Charged, Correction, Outcome};
use crate::background::{
    Background, OwnValue, PendingWork, SHUTDOWN_GRACE, WorkCount, lock_own, read_process,
};
use crate::clock::Clock;
use crate::key::KeyId;
use crate::limit::Algorithm;
use crate::reply::{Answer, StoreError};
use crate::report;
use crate::store::{Charge, CorrectedCharge, Failure, SharedStore};
use crate::threads::{Mutex, MutexGuard};

#[cfg(model)]
pub mod models {
    pub use super::corrections::model as corrections;
    pub use super::held::model as slots;
}

/// The longest time until the task looks at its counts again, in microseconds: a virtual clock moves at any time.
const LOOK_AGAIN: u64 = 1_000_000;

/// The owner of a limiter. Its task ends after this is dropped.
pub(crate) struct Owner {
    core: Arc<Core>,
    background: Arc<Background>,
    is_started: AtomicBool,
}

/// What the task and the callers share.
struct Core {
    store: SharedStore,
    notices: Arc<Notices>,
    clock: Clock,
    queue: Mutex<OwnValue<Queue>>,
    /// Of each key that this process is about to block how many blocks are pending, and the latest end, by the steady
    /// clock of the limiter.
    blocks: Mutex<OwnValue<HashMap<KeyId, (usize, u64)>>>,
    /// The corrections that are not done.
    pending: WorkCount,
    /// The beginning of real time.
    start: Instant,
}

#[derive(Default)]
struct Queue {
    corrections: Corrections<QueuedCorrection>,
    slots: SlotCounts,
    /// Notified when there is something to do for the task.
    changed: Arc<Notify>,
    /// How many corrections were lost since the last flush.
    lost: u64,
    /// Why the last one was lost; `None` if it was never sent.
    cause: Option<StoreError>,
}

/// A correction that is not done.
struct QueuedCorrection {
    corrected: CorrectedCharge,
    /// The time at which it was added, by the steady clock of the limiter.
    at: u64,
    kind: Kind,
    /// The caller that waits for the result. Without one, `flush` reports the correction if it is lost.
    reply_to: Option<ResultSender>,
    /// Dropped last: a flush reads the losses once nothing is pending.
    pending: PendingWork,
}

type ResultSender = oneshot::Sender<Result<Outcome, StoreError>>;

impl Owner {
    pub(crate) fn new(
        store: &SharedStore,
        notices: &Arc<Notices>,
        background: &Arc<Background>,
        clock: &Clock,
    ) -> Arc<Self> {
        let (queue, blocks, pending) = Default::default();
        let core = Core {
            store: store.clone(),
            notices: Arc::clone(notices),
            clock: clock.clone(),
            queue,
            blocks,
            pending,
            start: Instant::now(),
        };
        let (core, background) = (Arc::new(core), Arc::clone(background));
        Arc::new(Self { core, background, is_started: AtomicBool::new(false) })
    }

    /// Corrects a charge. A block holds for this process at once.
    pub(crate) fn settle(self: &Arc<Self>, corrected: CorrectedCharge) {
        let CorrectedCharge { charge, correction, block } = corrected;
        // Apart, because a block that waits is not sent once the key is unblocked.
        if block != BlockChange::None {
            self.core.add(CorrectedCharge::block(Arc::clone(&charge), block), Kind::Block, None);
            self.wake();
        }
        if correction.change != 0 {
            let kind = if correction.less() > 0 { Kind::GiveBack } else { Kind::Settlement };
            self.core.add(CorrectedCharge::by(charge, correction), kind, None);
            self.wake();
        }
    }

    /// Gives a charge back to its count.
    pub(crate) fn give_back(
        self: &Arc<Self>,
        charge: Arc<Charge>,
        charged: Charged,
    ) -> Answer<Outcome> {
        let given_back = self.core.give_back(charge, charged);
        self.wake();
        given_back
    }

    /// Corrects a charge for a caller, who waits for the result within its deadline.
    pub(crate) fn correct(self: &Arc<Self>, corrected: CorrectedCharge) -> Answer<Outcome> {
        let result = self.core.ask(corrected, Kind::Awaited);
        self.wake();
        result
    }

    /// Returns until when a key is blocked that this process is about to block.
    #[inline]
    pub(crate) fn blocked_until(&self, key_id: KeyId) -> Option<u64> {
        lock_own(&self.core.blocks).get(&key_id).map(|(_, until)| *until)
    }

    /// Returns whether no correction is pending; for tests.
    pub(crate) fn is_flushed(&self) -> bool {
        self.core.pending.pending() == 0
    }

    /// Completes once all corrections up to now are done. Fails if settlements were lost.
    pub(crate) fn flushed(&self) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let core = Arc::clone(&self.core);
        let ended = self.core.pending.ended();
        self.background.revive();
        async move {
            ended.await;
            let mut queue = core.lock();
            match mem::take(&mut queue.lost) {
                0 => Ok(()),
                lost => {
                    let cause = queue.cause.clone().map(Arc::new);
                    Err(StoreError::SettlementsLost { lost, cause })
                }
            }
        }
    }

    /// Makes the task look for what is due. Starts it if it does not run.
    fn wake(self: &Arc<Self>) {
        if self.is_started.swap(true, Ordering::Relaxed) {
            self.background.revive();
        } else {
            // Weak, because the core has the store, which has the thread.
            self.background
                .spawn_resident(self, |owner| Arc::clone(&owner.core).run(Arc::downgrade(&owner)));
        }
        self.core.change(|_| {});
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.core.change(|_| {});
    }
}

impl Core {
    /// Gives a charge back to its count.
    fn give_back(&self, charge: Arc<Charge>, charged: Charged) -> Answer<Outcome> {
        let correction = Correction::give_back(charged, charge.cost);
        self.ask(CorrectedCharge::by(charge, correction), Kind::GiveBack)
    }

    fn ask(&self, corrected: CorrectedCharge, kind: Kind) -> Answer<Outcome> {
        let (sender, result) = oneshot::channel();
        self.add(corrected, kind, Some(sender));
        Box::pin(async { result.await.unwrap_or_else(|_| Err(ended())) })
    }

    fn add(&self, corrected: CorrectedCharge, kind: Kind, reply_to: Option<ResultSender>) {
        // A child that has no runtime yet would add to the copy of its parent's queue.
        read_process();
        let (key_id, at) = (corrected.charge.key_id, self.clock.steady());
        if let BlockChange::BlockFor(time) = corrected.block {
            let mut blocks = lock_own(&self.blocks);
            let (pending, latest) = blocks.entry(key_id).or_default();
            (*pending, *latest) = (*pending + 1, (at + time).max(*latest));
        }
        let slot = self.store.slot(&corrected.charge);
        let (server, pending) = (self.store.server_of(slot), self.pending.begin());
        let added = QueuedCorrection { corrected, at, kind, reply_to, pending };
        let (real, mut left) = (self.real(), Vec::new());
        let lost = self.change(|it| it.corrections.add(slot, server, added, real, &mut left));
        self.leave(left);
        if let Some(lost) = lost {
            foreign(report::settlement_queue_full);
            self.lose(lost);
        }
    }

    /// Sends what is queued, until the owner is dropped and all is done. Gives up what the store does not execute for
    /// [`SHUTDOWN_GRACE`] after that.
    async fn run(self: Arc<Self>, owner: Weak<Owner>) {
        let mut deserted: Option<Instant> = None;
        loop {
            let sent = catch_unwind(AssertUnwindSafe(|| {
                let looks = self.send_slots();
                self.send_due().into_iter().chain(looks).min()
            }));
            // The panic hook has reported a panic.
            let pause = sent.unwrap_or_else(|_| {
                let (mut queue, real) = (self.lock(), self.real());
                queue.corrections.begin_anew(real);
                queue.slots.begin_anew(real);
                Some(Duration::ZERO)
            });
            let changed = {
                let queue = self.lock();
                if owner.strong_count() == 0 {
                    let since = *deserted.get_or_insert_with(Instant::now);
                    let is_done = queue.corrections.is_empty() && queue.slots.is_empty();
                    if is_done || since.elapsed() > SHUTDOWN_GRACE {
                        break;
                    }
                }
                Arc::clone(&queue.changed)
            };
            let longest = if deserted.is_some() { SHUTDOWN_GRACE } else { Duration::MAX };
            let _ = timeout(pause.unwrap_or(longest), changed.notified()).await;
        }
        let lost = self.lock().corrections.drain();
        for lost in lost {
            self.lose(lost);
        }
    }

    /// Sends the requests about units in flight that are due. Returns the time until the next ones.
    fn send_slots(self: &Arc<Self>) -> Option<Duration> {
        let (now, real, mut queue) = (self.clock.boottime(), self.real(), self.lock());
        let requests = queue.slots.due(now, real, |charge| self.store.slot(charge));
        let [soon, later] = queue.slots.next_looks();
        let ends = mem::take(&mut queue.slots.ends);
        drop(queue);
        self.end_slots(ends);
        for request in requests {
            self.send_slot(request);
        }
        let soon = soon.map(|at| at.saturating_sub(real));
        // A virtual clock moves at any time.
        let later = later.map(|at| at.saturating_sub(now).clamp(1_000, LOOK_AGAIN));
        soon.into_iter().chain(later).min().map(Duration::from_micros)
    }

    fn send_slot(self: &Arc<Self>, request: SlotRequest) {
        let (core, here) = (Arc::clone(self), Arc::clone(self));
        match request {
            SlotRequest::State(charges) => {
                let stated = charges.clone();
                let hold = async move { core.store.hold(&stated).await };
                send(hold, move |results| {
                    let results = results.unwrap_or_else(|| vec![Err(ended()); charges.len()]);
                    here.end_slot(|slots, times| slots.stated(&charges, results, times));
                });
            }
            SlotRequest::Take(request) => {
                let calls = request.calls.clone();
                let slot = |charge: &Arc<Charge>| self.store.slot(charge);
                let mut pairs = calls.charges.windows(2);
                let is_split = pairs.any(|pair| slot(&pair[0]) != slot(&pair[1]));
                let execute = async move {
                    let give_back = |charge, charged| core.give_back(charge, charged);
                    core.store.execute(&calls, &give_back).await
                };
                send(execute, move |result| {
                    let result = result.unwrap_or_else(|| Err(ended()));
                    here.end_slot(|slots, times| slots.taken(request, is_split, result, times));
                });
            }
        }
    }

    /// Completes once `known` returns a value. Calls it now, and after each change of units in flight.
    async fn until<T>(&self, known: impl Fn(&SlotCounts) -> Option<T> + Send) -> T {
        loop {
            let changed = Arc::clone(&self.lock().slots.changed);
            // Receives notifications from now on.
            let changed = changed.notified();
            let value = known(&self.lock().slots);
            match value {
                Some(value) => return value,
                None => changed.await,
            }
        }
    }

    /// Ends a request about units in flight.
    fn end_slot(self: &Arc<Self>, end: impl FnOnce(&mut SlotCounts, (u64, u64))) {
        let times = (self.clock.boottime(), self.real());
        let ends = self.change(|Queue { slots, .. }| {
            end(slots, times);
            slots.replies += slots.ends.replies.len();
            mem::take(&mut slots.ends)
        });
        let replies = ends.replies.len();
        self.end_slots(ends);
        if replies > 0 {
            let mut queue = self.lock();
            queue.slots.replies -= replies;
            queue.slots.changed.notify_waiters();
        }
    }

    /// Tells everyone what has become of units in flight.
    fn end_slots(self: &Arc<Self>, ends: SlotEnds) {
        for (reply_to, result) in ends.replies {
            let core = Arc::clone(self);
            let result = result.map(|(reply, calls)| HeldReply { core, reply, calls });
            foreign(|| drop(reply_to.send(result)));
        }
        for (charge, units) in ends.lost {
            foreign(|| report::units_lost(charge.terms.identity.name, units));
            foreign(|| self.notices.released(charge.key_id));
        }
        for (charge, charged) in ends.returns {
            drop(self.give_back(charge, charged));
        }
    }

    /// Sends each request that is due. Returns the time until the next one.
    fn send_due(self: &Arc<Self>) -> Option<Duration> {
        loop {
            let (now, real, mut left) = (self.clock.steady(), self.real(), Vec::new());
            let mut queue = self.lock();
            let next = queue.corrections.next(now, real, &mut left);
            let next = next.map(|(slot, sent)| {
                let due = |queued: &QueuedCorrection| queued.due(now, &sent);
                (slot, queue.corrections.sent(slot).map(due).collect::<Vec<_>>())
            });
            let wake = queue.corrections.next_wake();
            drop(queue);
            let Some((slot, due)) = next else {
                self.leave(left);
                return wake.map(|at| Duration::from_micros(at.saturating_sub(real)));
            };
            let (core, here, count) = (Arc::clone(self), Arc::clone(self), due.len());
            let correct = async move { core.store.correct(&due).await };
            send(correct, move |results| {
                let unanswered = || vec![Err(Failure::NoReply(ended())); count];
                let (results, real) = (results.unwrap_or_else(unanswered), here.real());
                let done = here.change(|queue| queue.corrections.replied(slot, results, real));
                for (queued, result) in done {
                    here.end(queued, result);
                }
            });
            self.leave(left);
        }
    }

    /// Tells everyone what has become of a correction. All of them are foreign code, and a panic there loses nothing.
    fn end(&self, queued: QueuedCorrection, result: Result<Outcome, Failure>) {
        let QueuedCorrection { corrected, kind, reply_to, pending, .. } = queued;
        let CorrectedCharge { charge, correction, block } = corrected;
        self.end_block(charge.key_id, block);
        let is_reset = block == BlockChange::Reset && charge.statement.is_some();
        match &result {
            Ok(outcome) if is_reset => {
                self.lock().slots.reset(charge.key_id, outcome.remaining, self.real());
            }
            Err(error) if kind != Kind::Awaited => {
                let was_sent = !matches!(error, Failure::NotExecuted(_));
                let mut queue = self.lock();
                queue.lost += 1;
                queue.cause = was_sent.then(|| error.error().clone());
            }
            Ok(_) | Err(_) => {}
        }
        if !matches!(result, Err(Failure::NotExecuted(_))) {
            foreign(|| self.notices.corrected(charge.key_id, correction));
            foreign(|| self.notices.changed(charge.key_id, block));
        }
        if let Some(sender) = reply_to {
            let result = result.map_err(StoreError::from);
            foreign(|| drop(sender.send(result)));
        } else {
            let debt = (report::DEBT, correction.more());
            let (counter, by) = if result.is_ok() { debt } else { (report::LOST, 1) };
            foreign(|| report::count(counter, charge.terms.identity.name, by));
        }
        foreign(|| drop(pending));
    }

    /// Ends corrections that have nothing left to correct.
    fn leave(&self, left: Vec<QueuedCorrection>) {
        for QueuedCorrection { corrected, kind, reply_to, pending, .. } in left {
            self.end_block(corrected.charge.key_id, corrected.block);
            if let Some(sender) = reply_to.filter(|_| kind != Kind::Awaited) {
                foreign(|| drop(sender.send(Ok(Outcome::UNDECIDED))));
            }
            foreign(|| drop(pending));
        }
    }

    fn end_block(&self, key_id: KeyId, block: BlockChange) {
        let mut blocks = lock_own(&self.blocks);
        if let (BlockChange::BlockFor(_), Some((pending, _))) = (block, blocks.get_mut(&key_id)) {
            *pending -= 1;
            if *pending == 0 {
                blocks.remove(&key_id);
            }
        }
    }

    /// Gives up a correction that was never sent.
    fn lose(&self, lost: QueuedCorrection) {
        let full = StoreError::SettlementsLost { lost: 1, cause: None };
        self.end(lost, Err(Failure::NotExecuted(full)));
    }

    fn real(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn lock(&self) -> MutexGuard<'_, OwnValue<Queue>> {
        lock_own(&self.queue)
    }

    /// Changes the queue, and makes the task look for what is due.
    fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> T {
        let mut queue = self.lock();
        queue.changed.notify_one();
        change(&mut queue)
    }
}

/// Sends a request by a task, and ends it with its result; without one if it panics.
pub(crate) fn send<T: Send + 'static>(
    request: impl Future<Output = T> + Send + 'static,
    end: impl FnOnce(Option<T>) + Send + 'static,
) {
    tokio::spawn(async move {
        let mut request = pin!(request);
        let result = poll_fn(|context| {
            // The panic hook has reported a panic.
            match catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(context))) {
                Ok(polled) => polled.map(Some),
                Err(_) => Poll::Ready(None),
            }
        });
        end(result.await);
    });
}

/// The error of a caller whose request has no result, or no thread that could send it.
pub(crate) fn ended() -> StoreError {
    StoreError::Connection { message: "the thread of the rate limiter does not run".into() }
}

impl QueuedCorrection {
    /// Returns what is to be sent at `now`. A probe corrects nothing.
    fn due(&self, now: u64, sent: &Sent) -> CorrectedCharge {
        let (correction, block) = match sent {
            Sent::Corrections => self.rest(now),
            Sent::Probe => Default::default(),
        };
        CorrectedCharge { charge: Arc::clone(&self.corrected.charge), correction, block }
    }

    fn rest(&self, now: u64) -> (Correction, BlockChange) {
        let CorrectedCharge { correction, block, .. } = self.corrected;
        let correction = if self.has_left(now) { Correction::default() } else { correction };
        (correction, block.after(now.saturating_sub(self.at)))
    }

    /// Returns whether neither the charge nor a debt of this settlement would count any more. A bucket that never
    /// empties remembers both.
    fn has_left(&self, now: u64) -> bool {
        let (terms, delay) = (&self.corrected.charge.terms, now.saturating_sub(self.at));
        match terms.identity.algorithm {
            Algorithm::Fixed | Algorithm::Sliding => delay >= terms.period_us(),
            Algorithm::SlidingCounter => delay / 2 >= terms.period_us(),
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::InFlight => false,
        }
    }
}

impl Queueable for QueuedCorrection {
    fn key_id(&self) -> KeyId {
        self.corrected.charge.key_id
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn block(&self) -> BlockChange {
        self.corrected.block
    }

    fn is_due(&self, now: u64) -> bool {
        match &self.reply_to {
            Some(sender) if self.kind == Kind::Awaited => !sender.is_closed(),
            Some(_) => !self.has_left(now),
            None => {
                let (correction, block) = self.rest(now);
                correction.change != 0 || block != BlockChange::None
            }
        }
    }
}

/// Runs foreign code, such as a waker or a recorder of metrics. The panic hook reports a panic of it, and the caller
/// goes on: it may hold units.
pub(crate) fn foreign(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}
