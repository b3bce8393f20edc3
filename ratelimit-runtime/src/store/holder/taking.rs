//! A request that takes units in flight: until its reply, the store may have more units of the process than the process
//! knows of.

use std::sync::Arc;

use super::Holder;
use super::state::PendingUnits;
use crate::algorithm::Receipt;

/// A request that takes units, until its reply.
pub(crate) struct TakingRequest {
    pub(super) holder: Arc<Holder>,
    /// `None` once it has ended.
    pub(super) pending: Option<PendingUnits>,
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
        let mut record = self.holder.lock();
        let (granted, lost) = record.state.take(pending, units, receipt, clock, [sent_at, now]);
        if granted.birth > 0 {
            record.waited_us = 0;
            record.failure = None;
        }
        let is_due = record.is_due();
        drop(record);
        if granted.birth > 0 || lost > 0 {
            // The store may know of units that were released before.
            self.holder.changed.notify_waiters();
        }
        if granted.birth > 0 || lost > 0 || is_due {
            self.holder.sender.add(self.holder.key_id);
        }
        (granted, lost)
    }

    /// Records that the request was certainly not executed.
    pub(crate) fn not_sent(mut self) {
        if self.pending.take().is_none() {
            return;
        }
        let mut record = self.holder.lock();
        record.state.end();
        let is_due = record.is_due();
        drop(record);
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
