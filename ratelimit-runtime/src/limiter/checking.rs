//! How one call is checked: at once, where that can be, and further where it cannot.

use super::RateLimiter;
use crate::algorithm::{Op, Outcome, with_state};
use crate::check::Check;
use crate::decision::{Answered, Source};
use crate::key::Key;
use crate::lease;
use crate::limit::Limit;
use crate::part::Charge;
use crate::question::Question;
use crate::report::{self, Began, Report};
use crate::store::embedded::Held;

/// What is left after a decision, in two registers.
pub(super) struct Left {
    /// The call was admitted, and nobody hears of it: there is no more to say.
    pub(super) is_all: bool,
    pub(super) remaining: u32,
    pub(super) reset_us: u64,
}

impl RateLimiter {
    /// Decides here, if that is where such calls are decided. This is every decision of those who have
    /// no Redis.
    pub(super) fn decide_here(
        &self,
        limit: &Limit,
        key: &impl Key,
        cost: u32,
        outcome: &mut Option<Outcome>,
    ) -> Left {
        if self.shared(limit).is_some() || limit.patience().is_some() || cost > limit.capacity() {
            return Left { is_all: false, remaining: 0, reset_us: 0 };
        }
        let place = self.inner.local.place(limit, key);
        with_state!(limit.algorithm(), S => self.decide_as::<S>(place, limit, cost, outcome))
    }

    /// The same, for the algorithm that keeps this state: made for each by itself, since all of them at
    /// once do not fit into registers. What is all in these is not written as well.
    #[inline(never)]
    fn decide_as<S: Held>(
        &self,
        place: u128,
        limit: &Limit,
        cost: u32,
        outcome: &mut Option<Outcome>,
    ) -> Left {
        let decided = self.inner.local.apply_as::<S>(place, Op::Decide, limit, cost);
        let is_all = decided.allowed && !report::hears();
        if !is_all {
            *outcome = Some(decided);
        }
        Left { is_all, remaining: decided.remaining, reset_us: decided.reset_us }
    }

    /// The answer of what was refused or is heard of, and of what is not decided here.
    #[inline(never)]
    pub(super) fn check_further(
        &self,
        began: Began,
        limit: &Limit,
        key: &dyn Key,
        cost: u32,
        outcome: Option<&Outcome>,
    ) -> Check {
        let Some(&outcome) = outcome else { return self.check_later(limit, key, cost) };
        let answered = Answered { outcome, source: Source::Embedded };
        if outcome.allowed {
            Check::decided(Report::since(began), limit, answered)
        } else if report::hears() || report::tells(limit, cost) {
            let place = || self.inner.local.place(limit, key);
            Check::decided(Report::since(began).about(limit, cost, place), limit, answered)
        } else {
            Check::unheard(limit, answered)
        }
    }

    fn check_later(&self, limit: &Limit, key: &dyn Key, cost: u32) -> Check {
        let report = Report::begin();
        let question = match limit.patience() {
            Some(wait) => self.wait_for(&[Charge::new(limit, key, cost)], wait),
            None if self.is_leased(limit) => {
                return lease::check(self, report, limit, key, cost);
            }
            None if cost > limit.capacity() => Question::never(limit, cost),
            None => {
                let place = self.inner.local.place(limit, key);
                if let Some(answered) = self.refused_before(limit, place, cost) {
                    return Check::decided(report.about(limit, cost, || place), limit, answered);
                }
                let answer = self.decide_at(place, Op::Decide, limit, key, cost);
                Question::new(Op::Decide, limit, answer)
            }
        };
        let report = report.about(limit, cost, || self.inner.local.place(limit, key));
        Check::new(report, limit, question)
    }
}
