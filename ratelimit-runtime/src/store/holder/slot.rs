//! The units in flight of one call, from its admission to its end.

use std::sync::Arc;

use super::{Holder, HolderState};
use crate::background::seen_process;
use crate::clock::{Clock, before};
use crate::reply::StoreError;

/// Units of a call that runs. They are released when this is dropped.
pub(crate) struct HeldSlot {
    pub(super) holder: Arc<Holder>,
    pub(super) units: u32,
    pub(super) losses: u32,
    pub(super) resets: u32,
    pub(super) is_local: bool,
    pub(super) os_process: u32,
}

impl HeldSlot {
    /// Returns whether the units were lost at `now`, by the clock of the limiter.
    pub(crate) fn is_lost(&self, now: u64) -> bool {
        let state = self.holder.lock();
        let is_late = state.alive_until > 0 && now >= state.alive_until;
        !self.is_of(&state) || is_late && !self.is_local
    }

    /// Returns the time at which the units are lost unless the store replies; `None` if there is none.
    fn alive_until(&self) -> Option<u64> {
        let until = self.holder.lock().alive_until;
        (until > 0 && !self.is_local).then_some(until)
    }

    /// Takes some of the units out of these.
    pub(crate) fn split(&mut self, units: u32) -> Self {
        let units = units.min(self.units);
        self.units -= units;
        let Self { losses, resets, is_local, os_process, .. } = *self;
        Self { holder: Arc::clone(&self.holder), units, losses, resets, is_local, os_process }
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
        let (holder, losses) = (Arc::clone(&self.holder), self.losses);
        drop(self);
        let released = holder.lock().released;
        async move {
            loop {
                let changed = holder.changed.notified();
                {
                    let state = holder.lock();
                    if state.known_released >= released || state.losses != losses {
                        return Ok(());
                    }
                    if let Some((error, _)) = &state.failure {
                        return Err(error.clone());
                    }
                }
                changed.await;
            }
        }
    }

    fn is_of(&self, state: &HolderState) -> bool {
        self.resets == state.resets && (self.is_local || self.losses == state.losses)
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        // A process that was forked does not release what its parent holds.
        if self.units == 0 || self.os_process != seen_process() {
            return;
        }
        let mut state = self.holder.lock();
        if self.is_of(&state) {
            let units = u64::from(self.units);
            state.released += units;
            state.local -= if self.is_local { units } else { 0 };
            state.is_dirty = true;
            drop(state);
            self.holder.changes.add(self.holder.key_id);
        }
    }
}
