//! The numbers of a holder, as a plain value: no clock, no lock, no I/O. [`Holder`](super::Holder) locks them and wakes
//! tasks.

use crate::algorithm::{Outcome, Receipt};
use crate::store::Statement;

/// The clocks of two machines run at rates that differ by less than one part in this number.
const DRIFT: u64 = 100;

/// The number of statements within a hold.
const STATEMENTS: u64 = 3;

/// A time that no store reaches: a process states the units of a fallback however late the store replies again.
const NEVER: u64 = 1 << 52;

/// What a process knows of the units that it holds of one count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HolderState {
    /// Grows when the process gives up requests that have no reply. The units that they have taken are then free again,
    /// and no request of a smaller fence takes any.
    fence: u64,
    epoch: u64,
    taken: u64,
    released: u64,
    promised: u64,
    hold_us: u64,
    /// The units in `taken` that a fallback has taken, and that are not released.
    local: u64,
    /// The time at which the units are lost, by the clock of the limiter, unless the store replies before.
    alive_until: u64,
    /// The time of the next statement.
    next_statement: u64,
    /// Whether there is something to state at once.
    is_dirty: bool,
    /// The value of `released` in the last statement that the store has confirmed, and the fence in it.
    known_released: u64,
    known_fence: u64,
    /// How many losses there were. Units that were taken before the last one are lost.
    losses: u64,
    /// How many resets there were; they also lose the units of fallbacks.
    resets: u64,
    /// How many requests that take units have no reply yet.
    pending: u64,
    /// The smallest value of `taken` that one of these requests has stated, or a smaller value.
    pending_taken: u64,
    /// Whether the store may have units of a request whose reply is lost, or not all units of a fallback.
    is_unsure: bool,
}

/// A statement that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SentStatement {
    fence: u64,
    epoch: u64,
    released: u64,
    sent_at: u64,
}

/// Units of a call, and the losses and resets before they were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TakenUnits {
    pub(crate) units: u64,
    losses: u64,
    resets: u64,
    is_local: bool,
}

/// A request that takes units and has no reply yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PendingUnits {
    fence: u64,
    epoch: u64,
    /// The units that were released when the request began: it states these, or more.
    released: u64,
    /// Until when the store keeps what this process held when the request began, by the clock of the store.
    promised: u64,
    /// The losses before the request began.
    losses: u64,
}

impl HolderState {
    /// Returns the state of a process without units. `fence` is greater than those of its states before.
    pub(crate) fn new(fence: u64) -> Self {
        Self { fence, known_fence: fence, ..Self::default() }
    }

    pub(crate) fn statement(&self, process: u64) -> Statement {
        let Self { fence, epoch, taken, released, promised, hold_us, .. } = *self;
        Statement { process, fence, epoch, taken, released, promised, hold_us, waited_us: 0 }
    }

    /// Sets for how long the store keeps the units.
    pub(crate) fn set_hold(&mut self, hold_us: u64) {
        self.hold_us = hold_us;
    }

    /// Begins a request that takes units. Returns `None` and does nothing while the process is unsure of the numbers
    /// and replies are to come.
    pub(crate) fn begin(&mut self) -> Option<PendingUnits> {
        if self.can_give_up() {
            self.give_up();
        } else if self.is_unsure {
            return None;
        }
        let oldest = if self.pending == 0 { u64::MAX } else { self.pending_taken };
        self.pending_taken = oldest.min(self.taken);
        self.pending += 1;
        let promised = if self.units() > 0 { self.promised } else { u64::MAX };
        let Self { fence, epoch, released, losses, .. } = *self;
        Some(PendingUnits { fence, epoch, released, promised, losses })
    }

    /// Ends a request that was not sent.
    pub(crate) fn end(&mut self) {
        self.pending -= 1;
    }

    /// Ends a request whose reply is lost.
    pub(crate) fn end_without_reply(&mut self, pending: PendingUnits) {
        self.end();
        self.is_unsure |= pending.fence == self.fence;
    }

    /// Ends a request with its reply, which is received at `now` and was sent at `sent_at`: it has admitted calls of
    /// `units` units, with `receipt` for the last of them. Returns the receipt for [`granted`](Self::granted), and how
    /// many units were lost.
    pub(crate) fn take(
        &mut self,
        pending: PendingUnits,
        units: u64,
        receipt: Option<Receipt>,
        clock: u64,
        [sent_at, now]: [u64; 2],
    ) -> (Receipt, u64) {
        let mut lost = self.lose_late(now);
        let Some(Receipt { birth: epoch, .. }) = receipt.filter(|_| units > 0) else {
            self.end();
            return (Receipt::default(), lost);
        };
        let is_current = |state: &Self| pending.fence == state.fence && epoch >= state.epoch;
        if is_current(self) {
            lost += self.follow(epoch);
            if clock >= pending.promised && self.losses == pending.losses {
                // A store that has lost its memory has then given up what this process held.
                lost += self.lose();
            }
        }
        self.end();
        // Units that were lost before this reply came, or because it is late.
        let mut losses = self.losses.wrapping_sub(1);
        if is_current(self) {
            self.taken += units;
            if now < self.end_of_hold(sent_at) {
                self.keep(clock, sent_at);
                let PendingUnits { fence, epoch, released, .. } = pending;
                if self.confirm(fence, epoch, released) {
                    self.is_dirty = self.released != released;
                }
                losses = self.losses;
            } else {
                // Others may have the units by now.
                (self.released, self.is_dirty) = (self.released + units, true);
                lost += units;
                self.give_up_pending();
            }
        }
        (Receipt { birth: 1, place: losses }, lost)
    }

    /// Returns the units of a call that a reply has admitted: `receipt` is that of [`take`](Self::take).
    pub(crate) fn granted(&self, units: u64, receipt: Receipt) -> TakenUnits {
        TakenUnits { units, losses: receipt.place, resets: self.resets, is_local: false }
    }

    /// Takes units without the store, which learns of them when it replies again.
    pub(crate) fn take_locally(&mut self, units: u64) -> TakenUnits {
        self.taken += units;
        self.local += units;
        self.promised = NEVER;
        // Requests under way do not state these units, so the store cannot add what they take to them.
        self.is_unsure |= self.pending > 0;
        self.is_dirty = true;
        TakenUnits { units, losses: self.losses, resets: self.resets, is_local: true }
    }

    /// Returns whether units are held that were not lost.
    pub(crate) fn has(&self, held: TakenUnits) -> bool {
        held.resets == self.resets && (held.is_local || held.losses == self.losses)
    }

    /// Returns whether units were lost before a release of them.
    pub(crate) fn has_lost(&self, held: TakenUnits) -> bool {
        held.losses != self.losses
    }

    /// Returns whether units were lost at `now`, by the clock of the limiter.
    pub(crate) fn is_lost(&self, held: TakenUnits, now: u64) -> bool {
        let is_late = self.alive_until > 0 && now >= self.alive_until;
        !self.has(held) || is_late && !held.is_local
    }

    /// Returns the time at which units are lost unless the store replies; `None` if there is none.
    pub(crate) fn alive_until(&self, held: TakenUnits) -> Option<u64> {
        (self.alive_until > 0 && !held.is_local).then_some(self.alive_until)
    }

    /// Releases units. Returns whether they were held.
    pub(crate) fn release(&mut self, held: TakenUnits) -> bool {
        if !self.has(held) {
            return false;
        }
        let units = held.units;
        self.released += units;
        self.local -= if held.is_local { units } else { 0 };
        self.is_dirty = true;
        true
    }

    /// Returns whether there is nothing to state, now or later.
    pub(crate) fn is_idle(&self) -> bool {
        self.taken == self.released && !self.is_dirty && !self.is_unsure && self.pending == 0
    }

    /// Returns the time of the next statement, by the clock of the limiter; `None` if there is nothing to state, or if
    /// an unsure process waits for replies: the store would take what a fallback has released from pending requests.
    pub(crate) fn next_statement(&self) -> Option<u64> {
        if self.is_unsure && self.pending > 0 {
            return None;
        }
        let is_due = self.is_dirty || self.can_give_up();
        let holds = self.taken > self.released;
        if is_due { Some(0) } else { holds.then_some(self.next_statement) }
    }

    /// Returns the time at which units are lost unless the store replies; `None` if there is none.
    pub(crate) fn ends_at(&self) -> Option<u64> {
        (self.alive_until > 0).then_some(self.alive_until)
    }

    /// Prepares a statement at `now`.
    pub(crate) fn state(&mut self, now: u64) -> SentStatement {
        if self.is_unsure {
            self.give_up();
        }
        self.is_dirty = false;
        let Self { fence, epoch, released, .. } = *self;
        SentStatement { fence, epoch, released, sent_at: now }
    }

    /// Records the reply to a statement, which is received at `now`. Returns how many units were lost.
    pub(crate) fn stated(
        &mut self,
        sent: SentStatement,
        outcome: &Outcome,
        receipt: Receipt,
        now: u64,
    ) -> u64 {
        let Receipt { birth: epoch, .. } = receipt;
        let mut lost = self.lose_late(now) + self.follow(epoch);
        // In another epoch, the reply is about units that are lost already.
        if !outcome.is_allowed() && sent.epoch == epoch {
            lost += self.lose();
        }
        self.keep(outcome.clock, sent.sent_at);
        self.confirm(sent.fence, sent.epoch, sent.released);
        self.is_dirty |= self.released != sent.released || self.fence != sent.fence;
        lost
    }

    /// Records that a statement has failed.
    pub(crate) fn not_stated(&mut self) {
        self.is_dirty = true;
    }

    /// Loses the units whose time has come. Returns how many. A later request finds them given to others, and its reply
    /// must not keep them.
    pub(crate) fn lose_late(&mut self, now: u64) -> u64 {
        if self.alive_until == 0 || now < self.alive_until {
            return 0;
        }
        let lost = self.lose();
        self.forget_epoch();
        lost
    }

    /// Loses all units, also those of fallbacks, because the count was reset. `receipt` comes from the store. It is
    /// `None` if the reset has failed: then this process gives up its pending requests, too.
    pub(crate) fn reset(&mut self, receipt: Option<Receipt>) {
        if let Some(Receipt { birth: epoch, .. }) = receipt {
            self.follow(epoch);
        } else {
            self.restart();
            self.give_up();
        }
    }

    /// Returns whether units were released of which the store does not know.
    pub(crate) fn is_dirty(&self) -> bool {
        self.released != self.known_released || self.fence != self.known_fence || self.is_unsure
    }

    pub(crate) fn released(&self) -> u64 {
        self.released
    }

    /// Returns whether the store knows that `released` units were released.
    pub(crate) fn knows(&self, released: u64) -> bool {
        self.known_released >= released
    }

    /// Returns the units that this process holds.
    pub(crate) fn units(&self) -> u64 {
        self.taken - self.released
    }

    /// Records that the store has these numbers. Returns false if they count from other ones than now.
    fn confirm(&mut self, fence: u64, epoch: u64, released: u64) -> bool {
        let is_current = fence == self.fence && epoch == self.epoch;
        if is_current {
            self.known_fence = fence;
            self.known_released = self.known_released.max(released);
        }
        is_current
    }

    /// Follows the epoch of a reply. Returns how many units were lost.
    fn follow(&mut self, epoch: u64) -> u64 {
        if epoch <= self.epoch {
            return 0;
        }
        self.epoch = epoch;
        // A store that has lost its memory learns of an epoch from another process, and may have units of this one.
        self.is_unsure = true;
        self.restart()
    }

    /// Counts from zero, as the store does in a new epoch. Returns how many units were lost, also of fallbacks.
    fn restart(&mut self) -> u64 {
        let lost = self.taken - self.released;
        (self.taken, self.released, self.known_released, self.local) = (0, 0, 0, 0);
        self.losses += 1;
        self.resets += 1;
        lost
    }

    /// Forgets the epoch if nothing is held, and counts from zero. The store may have forgotten it, too. If the process
    /// stated it again, others would lose the units that they have taken since then.
    fn forget_epoch(&mut self) {
        if self.epoch > 0 && self.units() == 0 && self.pending == 0 {
            let Self { hold_us, losses, resets, .. } = *self;
            let is_dirty = self.is_dirty || self.is_unsure;
            *self = Self { hold_us, is_dirty, resets, ..Self::new(self.fence + 1) };
            self.losses = losses + 1;
        }
    }

    /// Loses the units that the store has not kept.
    fn lose(&mut self) -> u64 {
        let lost = self.taken - self.released - self.local;
        self.alive_until = 0;
        self.released += lost;
        if lost > 0 {
            (self.losses, self.is_dirty) = (self.losses + 1, true);
        }
        self.give_up_pending();
        lost
    }

    /// Gives up the requests under way when the store may have forgotten this process, if they state less than was
    /// released: another statement would release what they take.
    fn give_up_pending(&mut self) {
        if self.pending > 0 && self.pending_taken < self.released {
            self.give_up();
        }
    }

    /// Returns whether the process is unsure of the numbers and no reply is to come.
    fn can_give_up(&self) -> bool {
        self.is_unsure && self.pending == 0
    }

    /// Gives up all requests that have no reply.
    fn give_up(&mut self) {
        self.fence += 1;
        (self.is_unsure, self.is_dirty) = (false, true);
    }

    /// Returns the time until which the store keeps units by a request that was sent at `sent_at`.
    fn end_of_hold(&self, sent_at: u64) -> u64 {
        sent_at.saturating_add(self.hold_us - self.hold_us / DRIFT)
    }

    /// Records that the store keeps the units, by a request that was sent at `sent_at` and executed at `clock`.
    fn keep(&mut self, clock: u64, sent_at: u64) {
        // The store counts the units of fallbacks whenever it learns of them.
        self.promised = if self.local > 0 { NEVER } else { clock.saturating_add(self.hold_us) };
        self.alive_until = self.alive_until.max(self.end_of_hold(sent_at));
        self.next_statement = sent_at.saturating_add(self.hold_us / STATEMENTS);
    }
}
