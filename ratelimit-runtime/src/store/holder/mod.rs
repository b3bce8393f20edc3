//! What this process holds of a count of calls in flight in the shared store.
//!
//! A process counts the units that its calls have taken and released. It states both numbers with each request
//! (`lua/slots.lua`). They only grow, so a statement that is late, or sent twice, changes nothing, and a store that has
//! lost its memory learns them again. A call whose reply is lost leaves units in the store of which this process does
//! not know. Then no call of the count is sent before the process has found and released them.

mod changes;
mod slot;
mod taking;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

pub(crate) use self::changes::ChangedCounts;
pub(crate) use self::slot::HeldSlot;
pub(crate) use self::taking::TakingRequest;
use super::Statement;
use crate::algorithm::{Outcome, Receipt};
use crate::background::seen_process;
use crate::key::KeyId;
use crate::reply::StoreError;

/// The clocks of two machines run at rates that differ by less than one part in this number.
const DRIFT: u64 = 100;

/// The number of statements within a hold.
const STATEMENTS: u64 = 3;

/// A time that no store reaches: units that were taken without the store are stated whenever it comes back.
const NEVER: u64 = 1 << 52;

/// The units that this process holds of one count.
pub(crate) struct Holder {
    process: u64,
    key_id: KeyId,
    state: Mutex<HolderState>,
    /// Notified when units are lost, when requests can be sent again, and after each statement.
    changed: Notify,
    /// Wakes the sender of statements.
    changes: Arc<ChangedCounts>,
}

#[derive(Default)]
struct HolderState {
    epoch: u64,
    taken: u64,
    released: u64,
    promised: u64,
    hold_us: u64,
    /// For how long the line that asks has waited.
    waited_us: u64,
    /// The units in `taken` that a fallback has taken, and that are not released.
    local: u64,
    /// The time at which the units are lost, by the clock of the limiter, unless the store replies before.
    alive_until: u64,
    /// The time of the next statement.
    next_statement: u64,
    /// Whether units were released since the last statement.
    is_dirty: bool,
    /// Why the last statement has failed, and the time before which none is made again.
    failure: Option<(StoreError, u64)>,
    /// The units of `released` of which the store knows.
    known_released: u64,
    /// How many losses there were. Units that were taken before the last one are lost.
    losses: u32,
    /// How many resets there were; they also lose the units of fallbacks.
    resets: u32,
    /// The requests that take units and have no reply yet, their units, and how many there were.
    pending: u32,
    pending_units: u64,
    begun: u64,
    /// Whether the store may have more units of this process than it knows of.
    is_unsure: bool,
}

/// A statement that is sent.
#[derive(Clone, Copy)]
pub(crate) struct SentStatement {
    epoch: u64,
    released: u64,
    begun: u64,
    sent_at: u64,
}

impl Holder {
    pub(crate) fn new(process: u64, key_id: KeyId, changes: Arc<ChangedCounts>) -> Arc<Self> {
        let (state, changed) = Default::default();
        Arc::new(Self { process, key_id, state, changed, changes })
    }

    pub(crate) fn statement(&self) -> Statement {
        let HolderState { epoch, taken, released, promised, hold_us, waited_us, .. } = *self.lock();
        Statement { process: self.process, epoch, taken, released, promised, hold_us, waited_us }
    }

    /// Sets for how long the store keeps the units.
    pub(crate) fn set_hold(&self, hold_us: u64) {
        self.lock().hold_us = hold_us;
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
                let mut state = self.lock();
                if !state.is_unsure {
                    state.pending += 1;
                    state.pending_units += units;
                    state.begun += 1;
                    let holder = Arc::clone(self);
                    return Ok(TakingRequest { holder, units, is_answered: false });
                }
                if let Some((error, _)) = &state.failure {
                    return Err(error.clone());
                }
            }
            changed.await;
        }
    }

    /// Takes units without the store, which learns of them when it replies again.
    pub(crate) fn take_locally(self: &Arc<Self>, units: u32) -> HeldSlot {
        let mut state = self.lock();
        state.taken += u64::from(units);
        state.local += u64::from(units);
        state.promised = NEVER;
        let held = self.held(&state, units, true);
        drop(state);
        self.changes.add(self.key_id);
        held
    }

    /// Returns the units of a call that a reply has admitted: `receipt` is that of [`TakingRequest::granted`].
    pub(crate) fn granted(self: &Arc<Self>, units: u32, receipt: Receipt) -> HeldSlot {
        let mut held = self.held(&self.lock(), units, false);
        held.losses = receipt.place as u32;
        held
    }

    fn held(self: &Arc<Self>, state: &HolderState, units: u32, is_local: bool) -> HeldSlot {
        HeldSlot {
            holder: Arc::clone(self),
            units,
            losses: state.losses,
            resets: state.resets,
            is_local,
            os_process: seen_process(),
        }
    }

    /// Returns whether there is nothing to state, now or later.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.taken == state.released && !state.is_dirty && !state.is_unsure && state.pending == 0
    }

    /// Returns the time of the next statement, by the clock of the limiter; `None` if there is nothing to state.
    pub(crate) fn next_statement(&self) -> Option<u64> {
        let state = self.lock();
        let is_due = state.is_dirty || state.is_unsure && state.pending == 0;
        let holds = state.taken > state.released;
        let not_before = state.failure.as_ref().map_or(0, |(_, again)| *again);
        let at = if is_due { Some(0) } else { holds.then_some(state.next_statement) };
        at.map(|at| at.max(not_before))
    }

    /// Returns the time at which something is to be done without a call: a statement, or units are lost.
    pub(crate) fn next_look(&self) -> Option<u64> {
        let next = self.next_statement();
        let alive_until = self.lock().alive_until;
        next.into_iter().chain((alive_until > 0).then_some(alive_until)).min()
    }

    /// Prepares a statement at `now`.
    pub(crate) fn state(&self, now: u64) -> SentStatement {
        let mut state = self.lock();
        state.is_dirty = false;
        let HolderState { epoch, released, begun, .. } = *state;
        SentStatement { epoch, released, begun, sent_at: now }
    }

    /// Records the reply to a statement. Returns how many units were lost.
    pub(crate) fn stated(&self, sent: SentStatement, outcome: &Outcome, receipt: Receipt) -> u64 {
        let mut state = self.lock();
        let Receipt { birth: epoch, place: taken } = receipt;
        state.failure = None;
        state.known_released = state.known_released.max(sent.released);
        let mut lost = state.follow(epoch);
        // In another epoch, it was said of units that are lost already.
        if !outcome.is_allowed() && sent.epoch == epoch {
            lost += state.lose();
        }
        state.keep(outcome.clock, sent.sent_at);
        // No request was under way, so the store counts all that this process has taken.
        if epoch == state.epoch && state.begun == sent.begun && state.pending == 0 {
            let unknown = taken.saturating_sub(state.taken);
            state.taken += unknown;
            state.released += unknown;
            state.is_dirty |= unknown > 0;
            state.is_unsure = false;
        }
        state.is_dirty |= state.released != sent.released;
        drop(state);
        self.changed.notify_waiters();
        lost
    }

    /// Records that a statement has failed. It is made again at `again`.
    pub(crate) fn not_stated(&self, error: StoreError, again: u64) {
        let mut state = self.lock();
        (state.is_dirty, state.failure) = (true, Some((error, again)));
        drop(state);
        self.changed.notify_waiters();
    }

    /// Loses the units whose time has come. Returns how many.
    pub(crate) fn lose_late(&self, now: u64) -> u64 {
        let mut state = self.lock();
        if state.alive_until == 0 || now < state.alive_until {
            return 0;
        }
        let lost = state.lose();
        drop(state);
        if lost > 0 {
            self.changed.notify_waiters();
        }
        lost
    }

    /// Loses all units: the count was reset.
    pub(crate) fn reset(&self) {
        self.lock().reset();
        self.changed.notify_waiters();
    }

    /// Returns whether units were released of which the store does not know.
    pub(crate) fn is_dirty(&self) -> bool {
        let state = self.lock();
        state.released != state.known_released || state.is_unsure
    }

    /// Returns the units that this process holds.
    pub(crate) fn units(&self) -> u64 {
        let state = self.lock();
        state.taken - state.released
    }

    fn lock(&self) -> MutexGuard<'_, HolderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HolderState {
    /// Follows the epoch of a reply. Returns how many units were lost.
    fn follow(&mut self, epoch: u64) -> u64 {
        if epoch <= self.epoch {
            return 0;
        }
        let lost = self.reset();
        self.epoch = epoch;
        lost
    }

    /// Loses all units, also those of fallbacks. In a new epoch, the store counts from zero.
    fn reset(&mut self) -> u64 {
        let lost = self.taken - self.released;
        (self.taken, self.released, self.known_released, self.local) = (0, 0, 0, 0);
        self.losses += 1;
        self.resets += 1;
        self.is_unsure |= self.pending > 0;
        lost
    }

    /// Loses the units that the store has not kept.
    fn lose(&mut self) -> u64 {
        let lost = self.taken - self.released - self.local;
        self.released += lost;
        self.losses += u32::from(lost > 0);
        self.is_dirty |= lost > 0;
        self.alive_until = 0;
        lost
    }

    /// Records that the store keeps the units, by a request that was sent at `sent_at` and executed at `clock`.
    fn keep(&mut self, clock: u64, sent_at: u64) {
        self.promised = clock.saturating_add(self.hold_us);
        let alive = self.hold_us - self.hold_us / DRIFT;
        self.alive_until = self.alive_until.max(sent_at.saturating_add(alive));
        self.next_statement = sent_at.saturating_add(self.hold_us / STATEMENTS);
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
