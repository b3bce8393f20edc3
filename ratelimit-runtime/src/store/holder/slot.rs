//! The units in flight of one call, from its admission to its end.

use std::sync::Arc;

use super::state::TakenUnits;
use super::{Holder, HolderRecord};
use crate::background::seen_process;
use crate::clock::{Clock, before};
use crate::reply::StoreError;

/// Units of a call that runs. They are released when this is dropped.
pub(crate) struct HeldSlot {
    pub(super) holder: Arc<Holder>,
    pub(super) held: TakenUnits,
    pub(super) os_process: u32,
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
    pub(crate) fn split(&mut self, units: u64) -> Self {
        let mut held = self.held;
        held.units = units.min(held.units);
        self.held.units -= held.units;
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
        holder.sender.hurry();
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
