//! What a bucket knows about the charges that can be settled, and about the reserved moments.

use super::super::Receipt;
use super::super::least_levels::LeastLevels;

#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    birth: u64,
    /// In units of the rate of the last change.
    levels: LeastLevels,
    /// The latest moment that was reserved.
    reserved: u64,
}

impl Ledger {
    pub(super) fn new(birth: u64) -> Self {
        Self { birth, levels: LeastLevels::default(), reserved: 0 }
    }

    /// Records the level at the time of a change; `full` is the time until the bucket is full at the rate of its last
    /// charge, if the rate has changed since, and otherwise `u64::MAX`.
    pub(super) fn bring_to(&mut self, level: u64, full: u64) {
        // In a full bucket, and after a change of the rate, nothing can be given back to the charges before.
        if level == 0 || full != u64::MAX {
            self.levels.forget();
        }
        if full != u64::MAX {
            // The moment of the last charge was reserved at another rate.
            self.levels.pass();
        }
        self.levels.lower(level);
    }

    /// Records that the bucket has this level now.
    pub(super) fn lower(&mut self, level: u64) {
        self.levels.lower(level);
    }

    /// Records a charge for the moment `reserved`, after which the bucket has this level.
    pub(super) fn charge(&mut self, level: u64, reserved: u64) -> Receipt {
        self.reserved = self.reserved.max(reserved);
        Receipt { birth: self.birth, place: self.levels.charge(level) }
    }

    /// Records a charge without a receipt.
    pub(super) fn pass(&mut self) {
        self.levels.pass();
    }

    /// Gives back up to `units` of a charge. Returns how many.
    pub(super) fn give_back(&mut self, receipt: Receipt, units: u64) -> u64 {
        if receipt.birth == self.birth { self.levels.give_back(receipt.place, units) } else { 0 }
    }

    /// Returns whether a receipt is of this state.
    pub(super) fn has_birth(&self, receipt: Receipt) -> bool {
        receipt.birth == self.birth
    }

    /// Removes the charge of a receipt, if it is the last one, and gives back up to `units` of it. Returns how many.
    pub(super) fn take_back(&mut self, receipt: Receipt, units: u64) -> Option<u64> {
        self.levels.take_back(receipt.place, units)
    }

    /// Returns whether a reserved moment is after `now`.
    pub(super) fn is_ahead(&self, now: u64) -> bool {
        self.reserved > now
    }
}
