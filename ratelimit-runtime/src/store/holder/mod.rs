//! What this process holds of a count of calls in flight in the shared store.
//!
//! A process counts the units that its calls have taken and released. It states both numbers with each request
//! (`lua/slots.lua`). They only grow, so a statement that is late, or sent twice, changes nothing, and a store that has
//! lost its memory learns them again. If the reply to a request is lost, the process does not know whether the request
//! has taken units, or will take some later. Once all other requests have their replies, it gives the request up: it
//! states a greater fence. Then the units of the request are free again, and a request of a smaller fence takes none.
//!
//! The numbers and their arithmetic are a plain value (`state.rs`), which `models/` checks.

mod changes;
mod slot;
pub(crate) mod state;
mod taking;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

pub(crate) use self::changes::ChangedCounts;
pub(crate) use self::slot::HeldSlot;
use self::state::{HolderState, SentStatement, TakenUnits};
pub(crate) use self::taking::TakingRequest;
use super::Statement;
use crate::algorithm::{Outcome, Receipt};
use crate::background::seen_process;
use crate::key::KeyId;
use crate::reply::StoreError;

/// The fences of one holder. A process can have several holders of a count, one after the other.
const FENCES: u64 = 1 << 20;

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

struct HolderRecord {
    state: HolderState,
    /// For how long the line that asks has waited.
    waited_us: u64,
    /// Why the last statement has failed, and the time before which none is made again.
    failure: Option<(StoreError, u64)>,
}

impl Holder {
    pub(crate) fn new(process: u64, key_id: KeyId, sender: Arc<ChangedCounts>) -> Arc<Self> {
        static NEXT_FENCE: AtomicU64 = AtomicU64::new(1);
        let fence = NEXT_FENCE.fetch_add(FENCES, Ordering::Relaxed);
        let record = HolderRecord { state: HolderState::new(fence), waited_us: 0, failure: None };
        let (state, changed) = (Mutex::new(record), Notify::new());
        Arc::new(Self { process, key_id, state, changed, sender })
    }

    pub(crate) fn statement(&self) -> Statement {
        let record = self.lock();
        Statement { waited_us: record.waited_us, ..record.state.statement(self.process) }
    }

    /// Sets for how long the store keeps the units.
    pub(crate) fn set_hold(&self, hold_us: u64) {
        self.lock().state.set_hold(hold_us);
    }

    /// Sets for how long the line that asks next has waited.
    pub(crate) fn set_waited(&self, waited_us: u64) {
        self.lock().waited_us = waited_us;
    }

    /// Begins a request that takes units. After a lost reply, waits for the replies to the other requests, and fails if
    /// the last statement has failed.
    pub(crate) async fn begin(self: &Arc<Self>) -> Result<TakingRequest, StoreError> {
        loop {
            // Receives notifications from now on.
            let changed = self.changed.notified();
            {
                let mut record = self.lock();
                if let pending @ Some(_) = record.state.begin() {
                    let is_due = record.is_due();
                    drop(record);
                    if is_due {
                        self.sender.add(self.key_id);
                    }
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
    pub(crate) fn take_locally(self: &Arc<Self>, units: u64) -> HeldSlot {
        let held = self.lock().state.take_locally(units);
        self.sender.add(self.key_id);
        self.slot(held)
    }

    /// Returns the units of a call that a reply has admitted: `receipt` is that of [`TakingRequest::granted`].
    pub(crate) fn granted(self: &Arc<Self>, units: u64, receipt: Receipt) -> HeldSlot {
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

    /// Loses all units, because the count was reset. `receipt` comes from the store. It is `None` if the reset has
    /// failed.
    pub(crate) fn reset(&self, receipt: Option<Receipt>) {
        self.lock().state.reset(receipt);
        self.sender.add(self.key_id);
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
    /// Returns whether there is something to state at once.
    fn is_due(&self) -> bool {
        self.state.next_statement() == Some(0)
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
