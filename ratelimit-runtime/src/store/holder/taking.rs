//! A request that takes units in flight: until its reply, the store may have more units of the process than the process
//! knows of.

use std::mem;
use std::sync::{Arc, MutexGuard};

use super::{Holder, HolderState};
use crate::algorithm::Receipt;

/// A request that takes units, until its reply.
pub(crate) struct TakingRequest {
    pub(super) holder: Arc<Holder>,
    pub(super) units: u64,
    pub(super) is_answered: bool,
}

impl TakingRequest {
    /// Records the reply: it has admitted calls of `units` units, with `receipt` for the last of them. Returns the
    /// receipt for [`Holder::granted`].
    pub(crate) fn granted(
        mut self,
        units: u64,
        receipt: Option<Receipt>,
        clock: u64,
        sent_at: u64,
    ) -> Receipt {
        let mut state = self.end();
        let Some(Receipt { birth: epoch, place: taken }) = receipt.filter(|_| units > 0) else {
            return Receipt::default();
        };
        let losses = if epoch < state.epoch {
            // The units were lost before this reply came.
            state.losses.wrapping_sub(1)
        } else {
            state.follow(epoch);
            state.taken += units;
            state.waited_us = 0;
            state.keep(clock, sent_at);
            // More than all requests without a reply can have taken.
            state.is_unsure |= taken > state.taken + state.pending_units;
            state.losses
        };
        drop(state);
        self.holder.changes.add(self.holder.key_id);
        Receipt { birth: 1, place: losses.into() }
    }

    /// Records that the request was certainly not executed.
    pub(crate) fn not_sent(mut self) {
        drop(self.end());
    }

    fn end(&mut self) -> MutexGuard<'_, HolderState> {
        self.is_answered = true;
        let mut state = self.holder.lock();
        state.pending -= 1;
        state.pending_units -= self.units;
        state
    }
}

impl Drop for TakingRequest {
    fn drop(&mut self) {
        if !mem::replace(&mut self.is_answered, true) {
            let mut state = self.end();
            state.is_unsure = true;
            drop(state);
            self.holder.changes.add(self.holder.key_id);
        }
    }
}
