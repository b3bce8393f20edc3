//! The fast path: a call of one limit that this process decides at once. No request, and no allocation.

#![allow(
    clippy::inline_always,
    reason = "an inlined result stays in registers (`benches/all -- embedded`)"
)]

use super::call::{CallOptions, Refusal, StartedCall};
use super::{AnyPart, Check, Checker, Part};
use crate::algorithm::{Outcome, Verdict};
use crate::backend::Backend;
use crate::key::Key;
use crate::limit::{Access, Limit};
use crate::local::LocalCharge;
use crate::report::{self, Started};

/// What a call of one limit becomes: a [`Check`], or an [`Acquire`](super::Acquire).
pub(crate) trait Conclusion: From<StartedCall> {
    /// Decides and reports a call that this process decides at once, without rules. `kept` is the limit, if it is never
    /// dropped: a permit then keeps no copy of its terms.
    fn decide_here(
        checker: &Checker,
        limit: &Limit,
        key: &impl Key,
        cost: u64,
        kept: Option<&'static Limit>,
    ) -> Self;
}

impl Checker {
    /// Starts a call of one limit, under the rules in force. `kept` is the limit, if it is never dropped.
    #[inline]
    pub(crate) fn start<T: Conclusion>(
        &self,
        part: Part<'_, impl Key>,
        options: CallOptions,
        kept: Option<&'static Limit>,
    ) -> T {
        let Part { limit, key, cost, access } = part;
        if access == Access::Limited
            && self.backend.decides_here(limit, cost)
            && !(options.settles && limit.leases())
            && !self.rules.may_apply(limit)
        {
            return T::decide_here(self, limit, key, cost, kept);
        }
        self.start_slow(Part { limit, key, cost, access }, options)
    }
}

impl Conclusion for Check {
    #[inline(always)]
    fn decide_here(
        Checker { backend, .. }: &Checker,
        limit: &Limit,
        key: &impl Key,
        cost: u64,
        _: Option<&'static Limit>,
    ) -> Self {
        let part: AnyPart<'_> = Part::of(limit, key, cost);
        if limit.is_in_flight() {
            // The call needs a permit.
            let refusal = Refusal::of_local(&part, CallOptions::CHECK, backend);
            return refusal.map_or_else(Self::unlimited, |refusal| refusal.end().into());
        }
        let (started, key_id) = (Started::now(), backend.key_id(limit.terms(), key));
        let charge = LocalCharge { key_id, terms: limit.terms(), cost };
        let outcome = match decide_here(backend, charge) {
            Ok(check) => return check,
            Err(outcome) => outcome,
        };
        let is_plain = !report::is_recorded() && !backend.reports().reports_rejections();
        if is_plain && outcome.verdict == Verdict::Rejected {
            backend.count_rejection(limit, key_id, key, outcome.clock);
            return Self::rejected_here(limit, &outcome);
        }
        part.report_here(backend, started, &outcome).into()
    }
}

/// Decides a call. Returns the check if the call is admitted and nothing records it, otherwise the outcome.
#[inline(never)]
fn decide_here(backend: &Backend, charge: LocalCharge<'_>) -> Result<Check, Outcome> {
    let is_recorded = report::is_recorded();
    backend.local().decide(charge, |outcome| {
        if is_recorded || !outcome.is_allowed() {
            return Err(outcome);
        }
        let capacity = charge.terms.capacity();
        Ok(Check::admitted(capacity, outcome.remaining, outcome.reset_us))
    })
}
