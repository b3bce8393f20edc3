//! The fast path: a call of one limit that this process decides at once. No request, and no allocation.

#![allow(
    clippy::inline_always,
    reason = "an inlined result stays in registers (`benches/all -- embedded`)"
)]

use super::{Check, Checker};
use crate::algorithm::{Outcome, Verdict, match_algorithm, with_state};
use crate::key::{Key, KeyId};
use crate::limit::{Limit, Terms};
use crate::report::{self, Started};
use crate::store::embedded::{LocalCharge, StoredState};

/// The units that remain after an admitted call, and its reset. A function returns two whole words in registers
/// (`benches/all -- embedded`).
struct Left {
    /// [`u64::MAX`] unless the call was admitted and nothing observes it, so that nothing else is to be done.
    remaining: u64,
    reset_us: u64,
}

impl Left {
    const NOT_FINAL: Self = Self { remaining: u64::MAX, reset_us: 0 };

    #[inline]
    fn is_final(&self) -> bool {
        self.remaining != u64::MAX
    }
}

impl Checker {
    /// Checks a call against one limit, under the rules in force.
    #[inline]
    pub(crate) fn check(&self, limit: &Limit, key: &impl Key, cost: u32) -> Check {
        let (started, mut outcome) = (Started::now(), None);
        let left = self.decide_fast(limit, key, cost, &mut outcome);
        if left.is_final() {
            return Check::admitted(limit.capacity(), left.remaining as u32, left.reset_us);
        }
        self.check_decided(started, limit, key, cost, outcome.as_ref())
    }

    /// Checks a call against one limit as it is.
    pub(super) fn check_as_written(&self, limit: &Limit, key: &impl Key, cost: u32) -> Check {
        if !self.decides_here(limit, cost) {
            return self.check_by_request(limit, key, cost);
        }
        let (started, mut outcome) = (Started::now(), None);
        let left = self.decide_here(limit, key, cost, &mut outcome);
        if left.is_final() {
            return Check::admitted(limit.capacity(), left.remaining as u32, left.reset_us);
        }
        self.check_decided(started, limit, key, cost, outcome.as_ref())
    }

    /// Completes the check of a call that this process has rejected, or that is observed. Checks all other calls.
    #[inline(always)]
    pub(super) fn check_decided(
        &self,
        started: Started,
        limit: &Limit,
        key: &dyn Key,
        cost: u32,
        outcome: Option<&Outcome>,
    ) -> Check {
        if let Some(outcome) = outcome
            && outcome.verdict == Verdict::Rejected
            && !report::is_observed()
            && !self.reports_rejections()
        {
            return Check::rejected_here(limit, outcome);
        }
        // Moved by its fields: so the check above is not built in memory (`benches/all -- embedded`).
        self.check_slow(started, limit, key, cost, outcome).moved()
    }

    /// Returns whether rejections are reported.
    #[inline]
    pub(super) fn reports_rejections(&self) -> bool {
        self.backend.reports().on_rejected.is_some() || report::is_traced()
    }

    /// Decides the call if this process decides it at once, and there are no rules for it. Without Redis, that is every
    /// call that does not wait. Stores the outcome in `outcome` unless the result is final.
    fn decide_fast(
        &self,
        limit: &Limit,
        key: &impl Key,
        cost: u32,
        outcome: &mut Option<Outcome>,
    ) -> Left {
        if !self.decides_here(limit, cost) || self.rules.may_apply(limit) {
            return Left::NOT_FINAL;
        }
        self.decide_here(limit, key, cost, outcome)
    }

    /// Returns whether this process decides a call at once.
    #[inline]
    fn decides_here(&self, limit: &Limit, cost: u32) -> bool {
        !self.backend.is_shared(limit.policy())
            && limit.max_wait().is_none()
            && cost <= limit.capacity()
    }

    #[inline]
    fn decide_here(
        &self,
        limit: &Limit,
        key: &impl Key,
        cost: u32,
        outcome: &mut Option<Outcome>,
    ) -> Left {
        let key_id = self.backend.key_id(limit.terms(), key);
        with_state!(limit.algorithm(), S => {
            self.decide_as::<S>(key_id, limit.terms(), cost, outcome)
        })
    }

    /// Decides the call by the algorithm whose state is an `S`. Not inlined, because the variables of all algorithms
    /// together do not fit in registers (`benches/all -- instructions`). Takes no structure, which would be passed in
    /// memory.
    #[inline(never)]
    fn decide_as<S: StoredState>(
        &self,
        key_id: KeyId,
        terms: &Terms,
        cost: u32,
        outcome: &mut Option<Outcome>,
    ) -> Left {
        let charge = LocalCharge { key_id, terms, cost };
        let decided = self.backend.local().decide_as::<S>(charge);
        if decided.is_allowed() && !report::is_observed() {
            return Left { remaining: decided.remaining.into(), reset_us: decided.reset_us };
        }
        *outcome = Some(decided);
        Left::NOT_FINAL
    }
}
