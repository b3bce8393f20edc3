//! Calls under the rules in force: a limit can have other amounts, admit nothing, or not limit a call at all.

use std::mem;

use tokio::time::Instant;

use super::call::{
    AdmittedCall, BoxedCall, CallOptions, CallResult, LineReply, Refusal, StartedCall,
};
use super::fast::Conclusion;
use super::part::may_be_ruled;
use super::wait::{borrowed, may_wait, owned};
use super::{AnyPart, Checker, Part, Permit};
use crate::backend::Backend;
use crate::clock::complete_by;
use crate::limit::{Access, Limit, LimitLabel};
use crate::one_or_many::OneOrMany;
use crate::reply::Mistake;
use crate::report::Report;
use crate::rules::{Asker, Ruled};
use crate::waiting::OwnedPart;

/// The parts of a call that are decided, or only reported, once the others have admitted it.
struct TrailingParts {
    checker: Checker,
    options: CallOptions,
    /// The end of the call. Shadows that are not decided by then are left out.
    by: Instant,
    /// How many parts the call has.
    parts: usize,
    /// The indexes of the parts that are decided first.
    first: Vec<usize>,
    /// The shadows, with their indexes.
    shadows: Vec<OwnedPart>,
    shadow_indexes: Vec<usize>,
    /// The shadows that a rule blocks.
    blocked: Vec<Refusal>,
}

/// The parts of a call, with their indexes.
struct SortedParts<'a> {
    /// The parts that are decided first.
    first: Vec<(usize, AnyPart<'a>)>,
    shadows: Vec<(usize, AnyPart<'a>)>,
    blocked: Vec<Refusal>,
}

impl Checker {
    /// Starts a call of one limit that has rules, waits, costs too much, or is decided by Redis. If this process counts
    /// the limit, the call is decided by a `T`: so a program that only makes such calls contains no request
    /// (`benches/all -- footprint`).
    #[inline(never)]
    pub(super) fn start_slow<T: Conclusion>(&self, part: AnyPart<'_>, options: CallOptions) -> T {
        if !self.backend.counts_here(part.limit) {
            return self.start_all(&[part], options).into();
        }
        if may_wait(&[part], &self.rules) {
            return self.start_waiting(&[part], options).into();
        }
        let decide = |limit: &Limit| {
            let part = Part::of(limit, part.key, part.cost);
            match Refusal::of_local(&part, options, &self.backend) {
                Some(refusal) => refusal.into_call(options, 1).into(),
                None => T::decide_here(self, limit, &part.key, part.cost, None),
            }
        };
        let table = self.rules.table_of(part.limit);
        let ruled = part.under(table.as_deref(), &self.backend, Asker::Call);
        if let Some(call) = StartedCall::by_access(&part, &ruled, options, &self.backend) {
            return call.into();
        }
        let call = decide(&ruled.limit);
        // It sees each call, and does not change its result.
        if let Some(trial) = &ruled.trial {
            drop(decide(trial));
        }
        call
    }

    /// Starts a call by requests, in a line or by leases, under the rules in force.
    pub(crate) fn start_all(&self, parts: &[AnyPart<'_>], options: CallOptions) -> StartedCall {
        let mistake = |label, mistake| {
            Refusal::mistake(Report::start(), label, mistake).into_call(options, parts.len())
        };
        let Some(first) = parts.first().map(|part| part.limit) else {
            return mistake(LimitLabel::unnamed(), Mistake::NoLimits);
        };
        if !parts.iter().all(|part| part.limit.policy().agrees_with(first.policy())) {
            return mistake(first.label(), Mistake::MixedLimits);
        }
        let lacks_secret = |part: &&AnyPart<'_>| {
            part.access == Access::Limited
                && part.key.lacks_secret()
                && self.backend.is_shared(part.limit.policy().scope())
        };
        if let Some(part) = parts.iter().find(lacks_secret) {
            return mistake(part.limit.label(), Mistake::NoKeySecret);
        }
        if may_wait(parts, &self.rules) {
            return self.start_waiting(parts, options);
        }
        if !may_be_ruled(parts, &self.rules) {
            return self.decide_as_written(parts, options, None);
        }
        let ruled = self.ruled(parts);
        let by = Instant::now() + self.backend.deadline();
        let call = self.decide_enforced(parts, &ruled, options, None, by);
        call.beside(&self.backend, self.trials(parts, &ruled))
    }

    /// Returns the limits of a call under the rules in force: one set of rules for all parts.
    pub(super) fn ruled(&self, parts: &[AnyPart<'_>]) -> OneOrMany<Ruled> {
        let table = self.rules.table();
        let under = |part: &AnyPart<'_>| part.under(table.as_deref(), &self.backend, Asker::Call);
        parts.iter().map(under).collect()
    }

    /// Returns the trials of a call that need a request, and lets the others decide it.
    pub(super) fn trials(&self, parts: &[AnyPart<'_>], ruled: &[Ruled]) -> Vec<BoxedCall> {
        let trials = parts.iter().zip(ruled).filter_map(|(part, ruled)| {
            let trial = ruled.trial.as_deref()?;
            if ruled.access != Access::Limited {
                return None;
            }
            let part: AnyPart<'_> = Part::of(trial, part.key, part.cost);
            match self.decide_as_written(&[part], CallOptions::CHECK, None) {
                StartedCall::Decided(_) => None,
                StartedCall::Pending(trial) => Some(trial),
            }
        });
        trials.collect()
    }

    /// Decides a call as `ruled` says, by a time: first the parts that can reject it, by the reply to their line if
    /// they have waited.
    pub(super) fn decide_enforced(
        &self,
        parts: &[AnyPart<'_>],
        ruled: &[Ruled],
        options: CallOptions,
        reply: Option<LineReply>,
        by: Instant,
    ) -> StartedCall {
        if let ([part], [ruled]) = (parts, ruled) {
            // Nothing is allocated for the usual call.
            let decided = StartedCall::by_access(part, ruled, options, &self.backend);
            return decided.unwrap_or_else(|| {
                let part = Part::of(&ruled.limit, part.key, part.cost);
                self.decide_as_written(&[part], options, reply)
            });
        }
        let SortedParts { first, shadows, blocked } =
            match SortedParts::new(parts, ruled, &self.backend) {
                Ok(sorted) => sorted,
                Err(refusal) => return refusal.into_call(options, parts.len()),
            };
        let decision = if first.is_empty() {
            StartedCall::unlimited(options, 0)
        } else {
            let first: Vec<_> = first.iter().map(|(_, part)| *part).collect();
            self.decide_as_written(&first, options, reply)
        };
        if first.len() == parts.len() {
            return decision;
        }
        let indexes = |parts: &[(usize, _)]| parts.iter().map(|(index, _)| *index).collect();
        let trailing = TrailingParts {
            checker: self.clone(),
            options,
            by,
            parts: parts.len(),
            first: indexes(&first),
            shadow_indexes: indexes(&shadows),
            shadows: shadows.iter().map(|(_, part)| owned(part)).collect(),
            blocked,
        };
        StartedCall::boxed(&self.backend, || async move {
            trailing.decide(decision.result().await?).await
        })
    }
}

impl<'a> SortedParts<'a> {
    /// Sorts the parts of a call, or rejects it if a rule blocks one of them.
    fn new(
        parts: &[AnyPart<'a>],
        ruled: &'a [Ruled],
        backend: &Backend,
    ) -> Result<Self, Box<Refusal>> {
        let (mut first, mut shadows, mut blocked) = (Vec::new(), Vec::new(), Vec::new());
        let mut longest = None;
        for (index, (part, ruled)) in parts.iter().zip(ruled).enumerate() {
            let limit = &ruled.limit;
            let part = Part::of(limit, part.key, part.cost);
            match ruled.access {
                Access::Unlimited => {}
                Access::Blocked => {
                    let blocked_for = ruled.blocked_for(backend.clock().local());
                    let refuse = || Refusal::blocked(&part, blocked_for, backend);
                    if limit.is_shadow() {
                        blocked.push(refuse());
                    } else if longest.as_ref().is_none_or(|(other, _)| *other < blocked_for) {
                        longest = Some((blocked_for, refuse()));
                    }
                }
                Access::Limited if limit.is_shadow() => shadows.push((index, part)),
                Access::Limited => first.push((index, part)),
            }
        }
        if let Some((_, refusal)) = longest {
            return Err(Box::new(refusal));
        }
        if first.is_empty() {
            // Shadows alone are decided together.
            first = mem::take(&mut shadows);
        }
        Ok(Self { first, shadows, blocked })
    }
}

impl TrailingParts {
    /// Decides the shadows of a call that was admitted.
    async fn decide(self, admission: AdmittedCall) -> CallResult {
        for blocked in self.blocked {
            let _ = blocked.end();
        }
        let mut shadows = Vec::new();
        if !self.shadows.is_empty() {
            let decision =
                self.checker.decide_as_written(&borrowed(&self.shadows), self.options, None);
            let decided = match decision {
                StartedCall::Decided(decided) => Some(decided),
                StartedCall::Pending(call) => complete_by(self.by, call).await,
            };
            shadows = decided.and_then(Result::ok).map(|it| it.permits).unwrap_or_default();
        }
        if !self.options.settles {
            return Ok(admission);
        }
        let mut permits: Vec<_> = (0..self.parts).map(|_| Permit::unlimited()).collect();
        let decided = self.first.iter().zip(admission.permits);
        for (index, permit) in decided.chain(self.shadow_indexes.iter().zip(shadows)) {
            permits[*index] = permit;
        }
        Ok(AdmittedCall { permits, ..admission })
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::time::Duration;

    use crate::check::{Acquire, CallOptions};
    use crate::key::{Key, KeyWriter};
    use crate::reply::{Mistake, Rejection, Source};
    use crate::{Limit, Part, Permit, RateLimiter, Rule, RuleSet};

    const MINUTE: Duration = Duration::from_secs(60);
    const LIMIT: Limit = Limit::sliding("ruled", 3, MINUTE);

    fn acquire(limiter: &RateLimiter, limit: &Limit, cost: u64) -> Result<Permit, Rejection> {
        let (part, options) = (Part::of(limit, &"key", cost), CallOptions::ACQUIRE);
        let call: Acquire = limiter.checker().start(part, options, None);
        let [permit] = call.into_array().blocking(&limiter.checker().backend, || limit.label())?;
        Ok(permit)
    }

    #[test]
    fn a_call_under_a_rule_is_decided_and_settled_by_the_amounts_of_the_rule() {
        let limiter = RateLimiter::embedded();
        let waiting = LIMIT.wait(Duration::from_secs(1));
        assert_eq!(limiter.check_blocking(&waiting, "key", 1).expect("admitted").remaining, 2);
        let mut rules = RuleSet::new();
        rules.set("ruled", Rule::new().threshold(10)).expect("valid");
        limiter.set_rules(rules).expect("valid");

        let permit = acquire(&limiter, &waiting, 8).expect("admitted");
        let decision = permit.decision();
        assert_eq!((decision.limit, decision.remaining), (10, 1));
        permit.settle(2);
        let decision = limiter.check_blocking(&waiting, "key", 7).expect("admitted");
        assert_eq!((decision.remaining, decision.source), (0, Source::Embedded));
        let rejection = acquire(&limiter, &LIMIT, 1).expect_err("full");
        assert!(matches!(rejection, Rejection::Limited { .. }), "{rejection}");
        let rejection = acquire(&limiter, &LIMIT, 11).expect_err("too costly");
        let Rejection::CostExceedsCapacity { cost, capacity, .. } = rejection else {
            panic!("{rejection}")
        };
        assert_eq!((cost, capacity), (11, 10));
    }

    #[test]
    fn rules_do_not_make_limits_agree_that_disagree_in_the_code() {
        let (limiter, shadow) =
            (RateLimiter::embedded(), Limit::fixed("shadow", 3, MINUTE).shadow(true));
        let mut rules = RuleSet::new();
        rules.set("shadow", Rule::new().shadow(false)).expect("valid");
        limiter.set_rules(rules).expect("valid");
        let parts = [Part::new(&LIMIT, &"key", 1), Part::new(&shadow, &"key", 1)];
        let checked = limiter.check_all(&parts);
        let result = checked.blocking(&limiter.checker().backend, || LIMIT.label());
        let Err(Rejection::Mistake { mistake: Mistake::MixedLimits, .. }) = result else {
            panic!("{result:?}")
        };
    }

    #[test]
    fn a_key_can_call_a_limiter_while_it_is_written() {
        struct CallingKey<'a>(&'a RateLimiter);

        impl fmt::Display for CallingKey<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let inner = self.0.check_blocking(&Limit::fixed("inner", 3, MINUTE), "inner", 0);
                write!(f, "{:?}", inner.map(|decision| decision.limit))
            }
        }

        impl Key for CallingKey<'_> {
            fn write(&self, out: &mut KeyWriter<'_>) {
                out.display(self);
            }
        }

        let (limiter, mut rules) = (RateLimiter::embedded(), RuleSet::new());
        rules.set("ruled", Rule::new().threshold(4)).expect("valid");
        rules.set_key("ruled", "vip", Rule::new().threshold(5)).expect("valid");
        rules.set("inner", Rule::new().threshold(6)).expect("valid");
        limiter.set_rules(rules).expect("valid");
        for _ in 0..2 {
            let decision = limiter.check_blocking(&LIMIT, CallingKey(&limiter), 0);
            assert_eq!(decision.expect("admitted").limit, 4);
        }
    }
}
