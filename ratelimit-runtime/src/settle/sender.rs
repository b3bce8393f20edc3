//! Sends the settlements of a lane: a job of the background thread.

use std::mem;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::SemaphorePermit;
use tokio::time::sleep;

use super::Settlements;
use super::queue::{LaneId, QueuedSettlement, SharedQueue};
use crate::backend::Backend;
use crate::background::{Job, RunningJob, SHUTDOWN_GRACE};
use crate::reply::StoreError;
use crate::report;
use crate::store::{Charge, SettleError, SettledCharge};

/// The first and the longest pause between two requests to a store that executes nothing. They are those of the probes
/// that close the breaker.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(400)];

pub(super) struct LaneSender {
    backend: Arc<Backend>,
    queue: Arc<SharedQueue>,
    /// The limiter and its permits.
    owner: Weak<Settlements>,
    lane: LaneId,
    /// The settlements in the request.
    taken: Vec<QueuedSettlement>,
}

impl LaneSender {
    pub(super) fn new(
        backend: Arc<Backend>,
        queue: Arc<SharedQueue>,
        owner: Weak<Settlements>,
        lane: LaneId,
    ) -> Self {
        Self { backend, queue, owner, lane, taken: Vec::new() }
    }

    /// Sends the settlements of the lane until there are none.
    pub(super) async fn run(mut job: RunningJob<Self>) {
        let (backend, queue) = (Arc::clone(&job.backend), Arc::clone(&job.queue));
        loop {
            let turn = job.turn(&queue).await;
            job.taken = queue.lock().take(job.lane);
            if job.taken.is_empty() {
                return job.end();
            }
            let now = backend.clock().steady();
            job.taken.retain(|queued| queued.is_due(now));
            if job.taken.is_empty() {
                continue;
            }
            let due = job.taken.iter().map(|queued| queued.due(now)).collect::<Vec<_>>();
            let results = backend.settle_shared(&due).await;
            drop(turn);
            let failure = job.finish(&due, results);
            if let Some(error) = failure
                && !job.is_executed_again(&queue, error).await
            {
                return;
            }
        }
    }

    /// Waits until the lane may send a request. Closings need not wait.
    async fn turn<'a>(&self, queue: &'a SharedQueue) -> Option<SemaphorePermit<'a>> {
        if self.lane.closes() { None } else { queue.turns.acquire().await.ok() }
    }

    /// Records the results of a request. Returns why the store executes nothing now.
    fn finish<T>(
        &mut self,
        due: &[SettledCharge],
        results: Vec<Result<T, SettleError>>,
    ) -> Option<StoreError> {
        for (SettledCharge { charge, correction, .. }, result) in due.iter().zip(&results) {
            match result {
                Ok(_) => report::settled(charge.terms.name(), correction.more()),
                Err(SettleError::NotExecuted(_)) => {}
                Err(SettleError::NoReply(_) | SettleError::Replied(_)) => {
                    report::settlement_lost(charge.terms.name());
                }
            }
        }
        let (mut failure, mut done, mut not_executed) = (None, Vec::new(), Vec::new());
        let mut queue = self.queue.lock();
        for (queued, result) in mem::take(&mut self.taken).into_iter().zip(results) {
            match result {
                Err(SettleError::NotExecuted(error)) => {
                    not_executed.push(queued);
                    failure = Some(error);
                    continue;
                }
                Ok(_) => queue.record_reply(),
                Err(SettleError::NoReply(error)) => {
                    queue.record_loss(Some(error.clone()));
                    failure = Some(error);
                }
                Err(SettleError::Replied(error)) => queue.record_loss(Some(error)),
            }
            done.push(queued);
        }
        queue.put_back(self.lane, not_executed);
        drop(queue);
        // Last, because a flush reads the losses once nothing is pending.
        drop(done);
        failure
    }

    /// Waits until the store replies to a request that corrects nothing: no other settlement is lost meanwhile. Gives
    /// up if the limiter is dropped.
    async fn is_executed_again(&mut self, queue: &SharedQueue, mut error: StoreError) -> bool {
        let ([mut pause, longest], mut dropped) = (PAUSES, None);
        loop {
            let Some(charge) = self.delay(&error) else { return true };
            sleep(pause).await;
            pause = longest.min(2 * pause);
            let turn = self.turn(queue).await;
            match self.backend.try_settle(charge).await {
                Ok(()) => return true,
                Err(cause) => error = cause,
            }
            drop(turn);
            if self.owner.strong_count() == 0
                && dropped.get_or_insert_with(Instant::now).elapsed() > SHUTDOWN_GRACE
            {
                return false;
            }
        }
    }

    /// Makes the calls fail that wait for a closing of the lane, and drops the settlements that have nothing left to
    /// correct. Returns the charge of the first of the others.
    fn delay(&mut self, error: &StoreError) -> Option<Arc<Charge>> {
        // The job has them meanwhile: if a waker panics, they are counted as lost.
        self.taken = self.queue.lock().take_refused(self.lane, error);
        let now = self.backend.clock().steady();
        self.taken.retain(|queued| queued.is_due(now));
        for queued in &self.taken {
            queued.delay(error);
        }
        let charge = self.taken.first().map(|queued| Arc::clone(queued.charge()));
        self.queue.lock().put_back(self.lane, mem::take(&mut self.taken));
        charge
    }
}

impl Job for LaneSender {
    /// The recorder of metrics has panicked, the thread has ended, or the limiter was dropped. The settlements of the
    /// lane are lost.
    fn abandon(&mut self) {
        let mut queue = self.queue.lock();
        let taken = mem::take(&mut self.taken).into_iter();
        let lost: Vec<_> = taken.chain(queue.remove(self.lane)).collect();
        for _ in &lost {
            queue.record_loss(None);
        }
        drop(queue);
        if !thread::panicking() {
            for queued in &lost {
                report::settlement_lost(queued.name());
            }
        }
    }
}
