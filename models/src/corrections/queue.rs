//! The queue of the process, as a step of the model changes it.

use super::super::{Kind, Queueable, Sent};
use super::execution::{CHARGED, PERIOD_US, charge};
use super::state::{Change, Pending, Queued, State, TICK};
use crate::algorithm::{Correction, Receipt};
use crate::key::KeyId;
use crate::reply::StoreError;
use crate::store::CorrectError;

impl Queueable for Queued {
    fn key_id(&self) -> KeyId {
        charge(self.is_bucket).key_id
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
        let has_left = !self.is_bucket && delay >= PERIOD_US;
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

/// A call ends: its settlement is queued, unless it has nothing to correct.
pub(super) fn end(state: &mut State, is_bucket: bool, call: usize, used: u64, blocks: bool) {
    let admission = state.running.remove(call);
    let ended = &mut state.admissions[admission];
    (ended.used, ended.ended) = (used, true);
    ended.is_settled = used == CHARGED;
    let receipt = Receipt { birth: ended.receipt.0, place: ended.receipt.1 };
    if blocks {
        let (correction, block_us) = (Correction::default(), TICK + TICK / 2);
        add(state, is_bucket, Change::Settle { admission, correction, block_us });
    }
    if used != CHARGED {
        let correction = Correction::settled(receipt, CHARGED, used);
        add(state, is_bucket, Change::Settle { admission, correction, block_us: 0 });
    }
}

/// The process resets the count.
pub(super) fn reset(state: &mut State, is_bucket: bool, passes: bool) {
    add(state, is_bucket, Change::Reset { passes });
}

fn add(state: &mut State, is_bucket: bool, change: Change) {
    let own_resets = state.used.own_resets - u8::from(matches!(change, Change::Reset { .. }));
    let queued = Queued { is_bucket, change, own_resets, at: state.local_clock() };
    let mut left = Vec::new();
    let lost = state.queue.add(0, 0, queued, state.real, &mut left);
    assert!(lost.is_none(), "the queue is not full");
    // The reset unblocks the key: a block that waits is not sent.
    let is_block = |it: &Queued| matches!(it.change, Change::Settle { block_us: 1.., .. });
    assert!(left.iter().all(is_block), "no settlement is dropped");
}

/// The process sends what is due once the lane does not pause any more.
pub(super) fn send(state: &mut State) {
    let (now, wake) = (state.local_clock(), state.queue.next_wake().unwrap_or_default());
    state.real = state.real.max(wake);
    let mut left = Vec::new();
    let sent = state.queue.next(now, state.real, &mut left);
    // What has left the window needs no correction.
    for left in left {
        state.lose(left);
    }
    state.pending = sent.map(|(_, sent)| Pending {
        due: match sent {
            Sent::Corrections => state.queue.sent(0).map(|it| it.due(now)).collect(),
            Sent::Probe => Vec::new(),
        },
        is_executed: false,
    });
}

/// The process receives the reply.
pub(super) fn deliver(state: &mut State, pending: &Pending) {
    state.queue.replied(0, vec![Ok(()); pending.due.len().max(1)], state.real);
}

/// The process learns that nothing was executed.
pub(super) fn refuse(state: &mut State, pending: &Pending) {
    let refused = Err::<(), _>(CorrectError::NotExecuted(StoreError::ShuttingDown));
    let results = vec![refused; pending.due.len().max(1)];
    state.queue.replied(0, results, state.real);
}

/// The process receives no reply.
pub(super) fn lose(state: &mut State, pending: &Pending) {
    let unknown = Err::<(), _>(CorrectError::NoReply(StoreError::ShuttingDown));
    let results = vec![unknown; pending.due.len().max(1)];
    for (lost, _) in state.queue.replied(0, results, state.real) {
        state.lose(lost);
    }
}

impl State {
    /// A settlement is not executed, or perhaps late.
    fn lose(&mut self, lost: Queued) {
        if let Change::Settle { admission, block_us: 0, .. } = lost.change {
            self.admissions[admission].is_lost = true;
        }
    }
}
