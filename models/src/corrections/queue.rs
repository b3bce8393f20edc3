//! The queue of the process, as a step of the model changes it.

use super::super::{Kind, Queueable, Sent};
use super::{CHARGED, PERIOD, State, TICK, charge_of};
use crate::algorithm::Correction;
use crate::bounds::Bound;
use crate::key::KeyId;
use crate::reply::StoreError;
use crate::store::CorrectError;

/// A correction that is queued or sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queued {
    is_bucket: bool,
    pub(super) change: Change,
    /// The resets that were queued before.
    pub(super) own_resets: u8,
    /// The time at which it was queued, by the clock of the process.
    at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Change {
    Settle {
        /// The index of the admission.
        admission: usize,
        correction: Correction,
        /// For how long the key is blocked, in microseconds; 0 if it is not.
        block_us: u64,
    },
    /// `passes` is the fault: it passes settlements.
    Reset { passes: bool },
}

/// The pending request. A probe corrects nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pending {
    pub(super) due: Vec<Queued>,
    pub(super) is_executed: bool,
}

impl Queueable for Queued {
    fn key_id(&self) -> KeyId {
        charge_of(self.is_bucket).key_id
    }

    fn kind(&self) -> Kind {
        match self.change {
            Change::Reset { passes: true } => Kind::Block,
            Change::Reset { passes: false } => Kind::Awaited,
            Change::Settle { block_us: 1.., .. } => Kind::Block,
            Change::Settle { correction, .. } if correction.less() > 0 => Kind::GiveBack,
            Change::Settle { .. } => Kind::Settlement,
        }
    }

    fn blocks(&self) -> bool {
        self.kind() == Kind::Block
    }

    fn unblocks(&self) -> bool {
        matches!(self.change, Change::Reset { passes: false })
    }

    fn is_due(&self, now: u64) -> bool {
        match self.due(now).change {
            Change::Reset { .. } => true,
            Change::Settle { correction, block_us, .. } => correction.change != 0 || block_us > 0,
        }
    }
}

impl Queued {
    /// Returns this without what does not count any more at `now`.
    fn due(&self, now: u64) -> Self {
        let delay = now - self.at;
        let has_left = !self.is_bucket && delay >= PERIOD.as_micros() as u64;
        let change = match self.change {
            Change::Settle { admission, correction, block_us } => Change::Settle {
                admission,
                correction: if has_left { Correction::default() } else { correction },
                block_us: block_us.saturating_sub(delay),
            },
            reset @ Change::Reset { .. } => reset,
        };
        Self { change, ..*self }
    }
}

impl State {
    /// A call ends: its settlement is queued, unless it has nothing to correct.
    pub(super) fn end(&mut self, is_bucket: bool, call: usize, used: u64, blocks: bool) {
        let admission = self.running.remove(call);
        let ended = &mut self.admissions[admission];
        (ended.used, ended.ended) = (used, true);
        ended.is_settled = used == CHARGED;
        let correction = Correction::settled(ended.receipt, CHARGED, used);
        if blocks {
            let (correction, block_us) = (Correction::default(), TICK + TICK / 2);
            self.add(is_bucket, Change::Settle { admission, correction, block_us });
        }
        if used != CHARGED {
            self.add(is_bucket, Change::Settle { admission, correction, block_us: 0 });
        }
    }

    pub(super) fn add(&mut self, is_bucket: bool, change: Change) {
        let is_reset = matches!(change, Change::Reset { .. });
        let own_resets = self.used.get(Bound::OwnResets) - u8::from(is_reset);
        let queued = Queued { is_bucket, change, own_resets, at: self.local_clock() };
        let mut left = Vec::new();
        let lost = self.queue.add(0, 0, queued, self.real, &mut left);
        assert!(lost.is_none(), "the queue is not full");
        // The reset unblocks the key: a block that waits is not sent.
        let is_block = |it: &Queued| matches!(it.change, Change::Settle { block_us: 1.., .. });
        assert!(left.iter().all(is_block), "no settlement is dropped");
    }

    /// The process sends what is due once the lane does not pause any more.
    pub(super) fn send(&mut self) {
        let (now, wake) = (self.local_clock(), self.queue.next_wake().unwrap_or_default());
        self.real = self.real.max(wake);
        let mut left = Vec::new();
        let sent = self.queue.next(now, self.real, &mut left);
        // What has left the window needs no correction.
        left.into_iter().for_each(|left| self.lose(left));
        self.pending = sent.map(|(_, sent)| Pending {
            due: match sent {
                Sent::Corrections => self.queue.sent(0).map(|it| it.due(now)).collect(),
                Sent::Probe => Vec::new(),
            },
            is_executed: false,
        });
    }

    /// The process receives the reply to the pending request.
    pub(super) fn deliver(&mut self) {
        self.replied(Ok(()));
    }

    /// The process learns that nothing was executed.
    pub(super) fn refuse(&mut self) {
        self.replied(Err(CorrectError::NotExecuted(StoreError::ShuttingDown)));
    }

    /// The process receives no reply.
    pub(super) fn lose_reply(&mut self) {
        for lost in self.replied(Err(CorrectError::NoReply(StoreError::ShuttingDown))) {
            self.lose(lost);
        }
    }

    /// The pending request ends, with the same result for each of its corrections. Returns what is lost.
    fn replied(&mut self, result: Result<(), CorrectError>) -> Vec<Queued> {
        let results = self.pending.take().map_or(1, |pending| pending.due.len().max(1));
        let lost = self.queue.replied(0, vec![result; results], self.real);
        lost.into_iter().map(|(lost, _)| lost).collect()
    }

    /// A settlement is not executed, or perhaps late.
    fn lose(&mut self, lost: Queued) {
        if let Change::Settle { admission, block_us: 0, .. } = lost.change {
            self.admissions[admission].is_lost = true;
        }
    }
}
