//! The fast path: a call of one limit that this process decides at once. No request, and no allocation.

#![allow(
    clippy::inline_always,
    reason = "an inlined result stays in registers (`benches/all -- embedded`)"
)]

use std::slice;

use super::call::{CallOptions, Refusal, conclude};
use super::{AnyPart, Check, Checker, Part};
use crate::algorithm::{Outcome, Verdict, match_algorithm, with_state};
use crate::key::{Key, KeyId};
use crate::limit::{Access, Limit, Terms};
use crate::reply::{Decision, Rejection, Source};
use crate::report::{self, Report, Started};
use crate::store::Reply;
use crate::store::embedded::{Embedded, LocalCharge, StoredState};

/// The units that remain after an admitted call, and its reset. A function returns two whole words in registers
/// (`benches/all -- embedded`).
struct Left {
    /// [`u64::MAX`] unless the call was admitted and nothing records it, so that nothing else is to be done.
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
    pub(crate) fn check(&self, part: Part<'_, impl Key>, options: CallOptions) -> Check {
        let Part { limit, key, cost, access } = part;
        if access == Access::Limited
            && self.backend.decides_here(limit, cost)
            && !self.rules.may_apply(limit)
        {
            return self.check_here(limit, key, cost);
        }
        // Moved by its fields: so the check above is not built in memory (`benches/all -- embedded`).
        self.check_slow(Part { limit, key, cost, access }, options).moved()
    }

    /// Checks a call of one limit that has rules, waits, costs too much, or is decided by Redis.
    #[inline(never)]
    fn check_slow(&self, part: AnyPart<'_>, options: CallOptions) -> Check {
        self.call_one(part, options, |limit| self.check_here(limit, &part.key, part.cost))
    }

    /// Checks a call that this process decides at once, without rules.
    #[inline(always)]
    fn check_here(&self, limit: &Limit, key: &impl Key, cost: u32) -> Check {
        let (started, mut outcome) = (Started::now(), None);
        let (local, key_id) = (self.backend.local(), self.backend.key_id(limit.terms(), key));
        let left = with_state!(limit.algorithm(), S => {
            decide_as::<S>(local, key_id, limit.terms(), cost, &mut outcome)
        });
        if left.is_final() {
            return Check::admitted(limit.terms().capacity(), left.remaining as u32, left.reset_us);
        }
        if let Some(outcome) = &outcome
            && outcome.verdict == Verdict::Rejected
            && !report::is_recorded()
            && !self.backend.reports().reports_rejections()
        {
            self.backend.count_rejection(limit, key_id, key, outcome.clock);
            return Check::rejected_here(limit, outcome);
        }
        let Some(outcome) = outcome else {
            // Nothing was decided, because the call needs a permit.
            let part: AnyPart<'_> = Part::of(limit, key, cost);
            let refusal = Refusal::of_local(&part, CallOptions::CHECK, &self.backend);
            let refused = refusal.map_or_else(Check::unlimited, |refusal| refusal.end().into());
            return refused.moved();
        };
        Check::from(self.report_here(started, limit, key, &outcome)).moved()
    }

    /// Reports the decision of this process about a call of one limit. Returns the result that the caller receives.
    #[inline(never)]
    pub(super) fn report_here(
        &self,
        started: Started,
        limit: &Limit,
        key: &dyn Key,
        outcome: &Outcome,
    ) -> Result<Decision, Rejection> {
        let (label, mut report) = (limit.label(), Report::since(started));
        let key_id = || self.backend.key_id(limit.terms(), key);
        if !outcome.is_allowed() {
            report = report.with_key(self.backend.reports(), limit.terms(), key, key_id);
        }
        let reply = Ok(Reply::one(*outcome, Source::Embedded));
        conclude(report, slice::from_ref(&label), reply, |_| {
            self.backend.count_rejection(limit, key_id(), key, outcome.clock);
        })
    }
}

/// Decides the call by the algorithm whose state is an `S`. Not inlined, because the variables of all algorithms
/// together do not fit in registers (`benches/all -- instructions`). Takes no structure, which would be passed in
/// memory.
#[inline(never)]
fn decide_as<S: StoredState>(
    local: &Embedded,
    key_id: KeyId,
    terms: &Terms,
    cost: u32,
    outcome: &mut Option<Outcome>,
) -> Left {
    if S::HOLDS {
        return Left::NOT_FINAL;
    }
    let decided = local.decide_as::<S>(LocalCharge { key_id, terms, cost });
    if decided.is_allowed() && !report::is_recorded() {
        return Left { remaining: decided.remaining.into(), reset_us: decided.reset_us };
    }
    *outcome = Some(decided);
    Left::NOT_FINAL
}
