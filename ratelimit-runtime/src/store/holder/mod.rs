//! What this process holds of a count of calls in flight in the shared store.
//!
//! A process counts the units that its calls have taken and released. It states both numbers with each request
//! (`lua/slots.lua`). They only grow, so a statement that is late, or sent twice, changes nothing, and a store that has
//! lost its memory learns them again. A call whose reply is lost leaves units in the store of which this process does
//! not know. Then no call of the count is sent before the process has found and released them.
//!
//! The numbers and their arithmetic are a plain value (`holder_state.rs`), which `models/` checks.

mod changes;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

pub(crate) use self::changes::ChangedCounts;
use super::Statement;
use super::holder_state::{HolderState, PendingUnits, SentStatement, TakenUnits};
use crate::algorithm::{Outcome, Receipt};
use crate::background::seen_process;
use crate::clock::{Clock, before};
use crate::key::KeyId;
use crate::reply::StoreError;

/// The units that this process holds of one count.
pub(crate) struct Holder {
    process: u64,
    key_id: KeyId,
    state: Mutex<HolderRecord>,
    /// Notified when units are lost, when requests can be sent again, and after each statement.
    changed: Notify,
    /// Wakes the sender of statements.
    sender: Arc<ChangedCounts>,
}

#[derive(Default)]
struct HolderRecord {
    state: HolderState,
    /// For how long the line that asks has waited.
    waited_us: u64,
    /// Why the last statement has failed, and the time before which none is made again.
    failure: Option<(StoreError, u64)>,
}

/// A request that takes units, until its reply.
pub(crate) struct TakingRequest {
    holder: Arc<Holder>,
    /// `None` once it has ended.
    pending: Option<PendingUnits>,
}

/// Units of a call that runs. They are released when this is dropped.
pub(crate) struct HeldSlot {
    holder: Arc<Holder>,
    held: TakenUnits,
    os_process: u32,
}

impl Holder {
    pub(crate) fn new(process: u64, key_id: KeyId, sender: Arc<ChangedCounts>) -> Arc<Self> {
        let (state, changed) = Default::default();
        Arc::new(Self { process, key_id, state, changed, sender })
    }

    pub(crate) fn statement(&self) -> Statement {
        let stated = self.lock();
        Statement { waited_us: stated.waited_us, ..stated.state.statement(self.process) }
    }

    /// Sets for how long the store keeps the units.
    pub(crate) fn set_hold(&self, hold_us: u64) {
        self.lock().state.set_hold(hold_us);
    }

    /// Sets for how long the line that asks next has waited.
    pub(crate) fn set_waited(&self, waited_us: u64) {
        self.lock().waited_us = waited_us;
    }

    /// Begins a request that takes up to `units`, once it is known what the store has. Fails while the store does not
    /// tell.
    pub(crate) async fn begin(self: &Arc<Self>, units: u64) -> Result<TakingRequest, StoreError> {
        loop {
            // Receives notifications from now on.
            let changed = self.changed.notified();
            {
                let mut record = self.lock();
                if let pending @ Some(_) = record.state.begin(units) {
                    return Ok(TakingRequest { holder: Arc::clone(self), pending });
                }
                if let Some((error, _)) = &record.failure {
                    return Err(error.clone());
                }
            }
            changed.await;
        }
    }

    /// Takes units without the store, which learns of them when it replies again.
    pub(crate) fn take_locally(self: &Arc<Self>, units: u32) -> HeldSlot {
        let held = self.lock().state.take_locally(units);
        self.sender.add(self.key_id);
        self.slot(held)
    }

    /// Returns the units of a call that a reply has admitted: `receipt` is that of [`TakingRequest::granted`].
    pub(crate) fn granted(self: &Arc<Self>, units: u32, receipt: Receipt) -> HeldSlot {
        let held = self.lock().state.granted(units, receipt);
        self.slot(held)
    }

    fn slot(self: &Arc<Self>, held: TakenUnits) -> HeldSlot {
        HeldSlot { holder: Arc::clone(self), held, os_process: seen_process() }
    }

    /// Returns whether there is nothing to state, now or later.
    pub(crate) fn is_idle(&self) -> bool {
        self.lock().state.is_idle()
    }

    /// Returns the time of the next statement, by the clock of the limiter; `None` if there is nothing to state.
    pub(crate) fn next_statement(&self) -> Option<u64> {
        let record = self.lock();
        let not_before = record.failure.as_ref().map_or(0, |(_, again)| *again);
        record.state.next_statement().map(|at| at.max(not_before))
    }

    /// Returns the time at which something is to be done without a call: a statement, or units are lost.
    pub(crate) fn next_look(&self) -> Option<u64> {
        let next = self.next_statement();
        next.into_iter().chain(self.lock().state.ends_at()).min()
    }

    /// Prepares a statement at `now`.
    pub(crate) fn state(&self, now: u64) -> SentStatement {
        self.lock().state.state(now)
    }

    /// Records the reply to a statement, which is received at `now`. Returns how many units were lost.
    pub(crate) fn stated(
        &self,
        sent: SentStatement,
        outcome: &Outcome,
        receipt: Receipt,
        now: u64,
    ) -> u64 {
        let mut record = self.lock();
        record.failure = None;
        let lost = record.state.stated(sent, outcome, receipt, now);
        drop(record);
        self.changed.notify_waiters();
        lost
    }

    /// Records that a statement has failed. It is made again at `again`.
    pub(crate) fn not_stated(&self, error: StoreError, again: u64) {
        let mut record = self.lock();
        record.state.not_stated();
        record.failure = Some((error, again));
        drop(record);
        self.changed.notify_waiters();
    }

    /// Loses the units whose time has come. Returns how many.
    pub(crate) fn lose_late(&self, now: u64) -> u64 {
        let lost = self.lock().state.lose_late(now);
        if lost > 0 {
            self.changed.notify_waiters();
        }
        lost
    }

    /// Loses all units: the count was reset.
    pub(crate) fn reset(&self) {
        self.lock().state.reset();
        self.changed.notify_waiters();
    }

    /// Returns whether units were released of which the store does not know.
    pub(crate) fn is_dirty(&self) -> bool {
        self.lock().state.is_dirty()
    }

    /// Returns the units that this process holds.
    pub(crate) fn units(&self) -> u64 {
        self.lock().state.units()
    }

    fn lock(&self) -> MutexGuard<'_, HolderRecord> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HolderRecord {
    /// Returns whether the end of a request lets a statement be sent that had to wait for it.
    fn is_due(&self) -> bool {
        self.state.next_statement() == Some(0)
    }
}

impl TakingRequest {
    /// Records the reply, which is received at `now` to a request that was sent at `sent_at`: it has admitted calls of
    /// `units` units, with `receipt` for the last of them. Returns the receipt for [`Holder::granted`], and how many
    /// units were lost.
    pub(crate) fn granted(
        mut self,
        units: u64,
        receipt: Option<Receipt>,
        clock: u64,
        [sent_at, now]: [u64; 2],
    ) -> (Receipt, u64) {
        let Some(pending) = self.pending.take() else { return (Receipt::default(), 0) };
        let mut stated = self.holder.lock();
        let (granted, lost) = stated.state.take(pending, units, receipt, clock, [sent_at, now]);
        if granted.birth > 0 {
            stated.waited_us = 0;
        }
        let is_due = stated.is_due();
        drop(stated);
        if lost > 0 {
            self.holder.changed.notify_waiters();
        }
        if granted.birth > 0 || lost > 0 || is_due {
            self.holder.sender.add(self.holder.key_id);
        }
        (granted, lost)
    }

    /// Records that the request was certainly not executed.
    pub(crate) fn not_sent(mut self) {
        let Some(pending) = self.pending.take() else { return };
        let mut stated = self.holder.lock();
        stated.state.end(pending);
        let is_due = stated.is_due();
        drop(stated);
        if is_due {
            self.holder.sender.add(self.holder.key_id);
        }
    }
}

impl Drop for TakingRequest {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.holder.lock().state.end_without_reply(pending);
            self.holder.sender.add(self.holder.key_id);
        }
    }
}

impl HeldSlot {
    /// Returns whether the units were lost at `now`, by the clock of the limiter.
    pub(crate) fn is_lost(&self, now: u64) -> bool {
        self.holder.lock().state.is_lost(self.held, now)
    }

    /// Returns the time at which the units are lost unless the store replies; `None` if there is none.
    fn alive_until(&self) -> Option<u64> {
        self.holder.lock().state.alive_until(self.held)
    }

    /// Takes some of the units out of these.
    pub(crate) fn split(&mut self, units: u32) -> Self {
        let held = self.held.split(units);
        Self { holder: Arc::clone(&self.holder), held, os_process: self.os_process }
    }

    /// Completes once the units are lost.
    pub(crate) async fn lost(&self, clock: &Clock) {
        loop {
            // Receives notifications from now on.
            let changed = self.holder.changed.notified();
            if self.is_lost(clock.steady()) {
                return;
            }
            match self.alive_until() {
                Some(until) => drop(before(clock.sleep_until_steady(until), changed).await),
                None => changed.await,
            }
        }
    }

    /// Releases the units. The future completes once the store knows of it, and fails if the store does not reply.
    pub(crate) fn release(self) -> impl Future<Output = Result<(), StoreError>> + Send + 'static {
        let (holder, held) = (Arc::clone(&self.holder), self.held);
        drop(self);
        let released = holder.lock().state.released();
        async move {
            loop {
                let changed = holder.changed.notified();
                {
                    let HolderRecord { state, failure, .. } = &*holder.lock();
                    if state.knows(released) || state.has_lost(held) {
                        return Ok(());
                    }
                    if let Some((error, _)) = failure {
                        return Err(error.clone());
                    }
                }
                changed.await;
            }
        }
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        // A process that was forked does not release what its parent holds.
        if self.held.units == 0 || self.os_process != seen_process() {
            return;
        }
        let has_released = self.holder.lock().state.release(self.held);
        if has_released {
            self.holder.sender.add(self.holder.key_id);
        }
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.statement())
    }
}

impl PartialEq for Holder {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Holder {}
