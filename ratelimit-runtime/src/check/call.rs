//! Calls: the limits of a call under the rules in force, which of them decide it, and what follows for the others.
//! [`Check`](super::Check) and [`Acquire`](super::Acquire) are the two conclusions of a call.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;

use super::decide::{AdmittedCall, BoxedCall, CallResult, LineReply, Refusal, StartedCall};
use super::{AnyPart, Checker, Part, Permit, may_be_ruled};
use crate::backend::Backend;
use crate::clock::complete_by;
use crate::key::{OwnedKey, lacks_secret};
use crate::limit::{Access, Limit, Policy};
use crate::one_or_many::OneOrMany;
use crate::reply::Mistake;
use crate::report::{self, Report, Started};
use crate::rules::{Asker, Ruled, RulesInForce};
use crate::waiting::OwnedPart;

impl StartedCall {
    /// Lets trials decide beside this call. They do not change its result.
    fn beside(self, backend: &Arc<Backend>, mut trials: Vec<BoxedCall>) -> Self {
        if trials.is_empty() {
            return self;
        }
        Self::boxed(backend, || async move {
            let (mut call, mut result) = (pin!(self), None);
            // Polled in one turn, so the requests leave together, and one batch can have them.
            poll_fn(|context| {
                if result.is_none()
                    && let Poll::Ready(decided) = call.as_mut().poll(context)
                {
                    result = Some(decided);
                }
                trials.retain_mut(|trial| trial.as_mut().poll(context).is_pending());
                match result.take_if(|_| trials.is_empty()) {
                    Some(decided) => Poll::Ready(decided),
                    None => Poll::Pending,
                }
            })
            .await
        })
    }

    /// Lets a pending call run in a span, which begins with its first poll; if this process counts it, with its wait.
    fn traced(self, parts: &[AnyPart<'_>], backend: &Backend) -> Self {
        let mut call = match self {
            Self::Pending(call) if tracing::level_enabled!(tracing::Level::DEBUG) => call,
            other => return other,
        };
        let names = parts.iter().map(|part| part.limit.terms().identity.name);
        // The limits of a call agree in both.
        let Policy { scope, wait, .. } = parts[0].limit.policy();
        let (limit, is_shared) = (names.collect::<Vec<_>>().join(", "), backend.is_shared(scope));
        Self::Pending(Box::pin(async move {
            let first = |context: &mut Context<'_>| Poll::Ready(call.as_mut().poll(context));
            if !is_shared && let Poll::Ready(result) = poll_fn(first).await {
                return result;
            }
            let (span, start) = (report::call_span(&limit), Instant::now());
            // If the subscriber panics at an end of the span, the permits must not be in what is returned there: Rust
            // would leak them.
            let result = poll_fn(|context| {
                let mut polled = Poll::Pending;
                span.in_scope(|| polled = call.as_mut().poll(context));
                polled
            });
            let result = result.await;
            let decision = result.as_ref().map(|call| &call.decision);
            report::end_call(&span, decision, wait.map(|_| start.elapsed()));
            drop(span);
            result
        }))
    }
}

impl Checker {
    /// Starts a call under the rules in force. If it `settles`, it has permits.
    pub(crate) fn start_all(&self, parts: &[AnyPart<'_>], settles: bool) -> StartedCall {
        self.start(parts, settles).traced(parts, &self.backend)
    }

    fn start(&self, parts: &[AnyPart<'_>], settles: bool) -> StartedCall {
        let mistake = |limit, mistake| {
            Refusal::mistake(Report::start(), limit, mistake).into_call(settles, parts.len())
        };
        let Some(first) = parts.first().map(|part| part.limit) else {
            return mistake(&Limit::NONE, Mistake::NoLimits);
        };
        if !parts.iter().all(|part| part.limit.policy().agrees_with(first.policy())) {
            return mistake(first, Mistake::MixedLimits);
        }
        let has_charge = |part: &AnyPart<'_>| part.limit.is_in_flight();
        let has_id = parts.iter().any(|part| part.limit.policy().once);
        if has_id && (settles || first.policy().wait.is_some() || parts.iter().any(has_charge)) {
            return mistake(first, Mistake::ChargedOnce);
        }
        let is_mistaken = |part: &&AnyPart<'_>| {
            part.access == Access::Limited
                && self.backend.is_shared(part.limit.policy().scope)
                && lacks_secret(part.key)
        };
        if let Some(part) = parts.iter().find(is_mistaken) {
            return mistake(part.limit, Mistake::NoKeySecret);
        }
        if may_wait(parts, &self.rules) {
            let (checker, parts) = (self.clone(), parts.iter().map(owned).collect());
            return StartedCall::boxed(&self.backend, move || checker.wait(parts, settles));
        }
        if !may_be_ruled(parts, &self.rules) {
            return self.decide_as_written(parts, settles, None);
        }
        let ruled = self.ruled(parts);
        let by = Instant::now() + self.backend.settings.deadline;
        match self.decide_enforced(parts, &ruled, settles, None, by) {
            StartedCall::Decided(Some(Ok(call))) if call.is_repeated => {
                StartedCall::decided(Ok(call))
            }
            StartedCall::Pending(call) if has_id && ruled.iter().any(|it| it.trial.is_some()) => {
                self.before_trials(call, parts, ruled, by)
            }
            call => call.beside(&self.backend, self.trials(parts, &ruled)),
        }
    }

    /// Lets trials decide after a call that has an id: they do not count it if it is repeated.
    fn before_trials(
        &self,
        call: BoxedCall,
        parts: &[AnyPart<'_>],
        ruled: OneOrMany<Ruled>,
        by: Instant,
    ) -> StartedCall {
        let (checker, parts) = (self.clone(), parts.iter().map(owned).collect::<Vec<_>>());
        StartedCall::boxed(&self.backend, move || async move {
            let result = call.await;
            if !result.as_ref().is_ok_and(|call| call.is_repeated) {
                let trials = checker.trials(&borrowed(&parts), &ruled);
                let all = StartedCall::unlimited(false, 0).beside(&checker.backend, trials);
                let _ = complete_by(by, all).await;
            }
            result
        })
    }

    /// Returns the limits of a call under the rules in force: one set of rules for all parts.
    fn ruled(&self, parts: &[AnyPart<'_>]) -> OneOrMany<Ruled> {
        let table = self.rules.table();
        let under = |part: &AnyPart<'_>| part.under(table.as_deref(), &self.backend, Asker::Call);
        parts.iter().map(under).collect()
    }

    /// Returns the trials of a call that need a request, and lets the others decide it.
    fn trials(&self, parts: &[AnyPart<'_>], ruled: &[Ruled]) -> Vec<BoxedCall> {
        let trials = parts.iter().zip(ruled).filter_map(|(part, ruled)| {
            let trial = ruled.trial.as_deref()?;
            if ruled.access != Access::Limited {
                return None;
            }
            let part: AnyPart<'_> = Part::of(trial, part.key, part.cost);
            match self.decide_as_written(&[part], false, None) {
                StartedCall::Decided(_) => None,
                StartedCall::Pending(trial) => Some(trial),
            }
        });
        trials.collect()
    }

    /// Decides a call as `ruled` says. First come the parts that can reject it; if they have waited, the reply to their
    /// line decides them. Once they have admitted the call, the shadows are decided together. Shadows that have no
    /// reply at the time `by` are left out.
    fn decide_enforced(
        &self,
        parts: &[AnyPart<'_>],
        ruled: &[Ruled],
        settles: bool,
        reply: Option<LineReply>,
        by: Instant,
    ) -> StartedCall {
        if let ([part], [ruled]) = (parts, ruled) {
            let part = Part::of(&ruled.limit, part.key, part.cost);
            return match ruled.access {
                Access::Limited => self.decide_as_written(&[part], settles, reply),
                Access::Unlimited => StartedCall::unlimited(settles, 1),
                Access::Blocked => {
                    let blocked_for = ruled.blocked_for(self.backend.clock().local());
                    Refusal::blocked(&part, blocked_for, &self.backend).into_call(settles, 1)
                }
            };
        }
        let (mut first, mut shadows, mut blocked) = (Vec::new(), Vec::new(), Vec::new());
        let mut longest = None;
        for (index, (part, ruled)) in parts.iter().zip(ruled).enumerate() {
            let part: AnyPart<'_> = Part::of(&ruled.limit, part.key, part.cost);
            let is_shadow = part.limit.policy().shadow;
            match ruled.access {
                Access::Unlimited => {}
                Access::Blocked => {
                    let blocked_for = ruled.blocked_for(self.backend.clock().local());
                    let refuse = || Refusal::blocked(&part, blocked_for, &self.backend);
                    if is_shadow {
                        blocked.push(refuse());
                    } else if longest.as_ref().is_none_or(|(other, _)| *other < blocked_for) {
                        longest = Some((blocked_for, refuse()));
                    }
                }
                Access::Limited if is_shadow => shadows.push((index, part)),
                Access::Limited => first.push((index, part)),
            }
        }
        if let Some((_, refusal)) = longest {
            return refusal.into_call(settles, parts.len());
        }
        // Shadows alone are decided together. An id is decided with the limits that it spares.
        let has_first = !first.is_empty();
        let (joining, shadows): (Vec<_>, Vec<_>) =
            shadows.into_iter().partition(|(_, part)| !has_first || part.limit.policy().once);
        first.extend(joining);
        let (count, places) = (parts.len(), first.iter().chain(&shadows).map(|(index, _)| *index));
        let places: Vec<_> = places.collect();
        let shadows: Vec<_> = shadows.iter().map(|(_, part)| owned(part)).collect();
        let first: Vec<_> = first.into_iter().map(|(_, part)| part).collect();
        let decision = if first.is_empty() {
            StartedCall::unlimited(settles, 0)
        } else {
            self.decide_as_written(&first, settles, reply)
        };
        if first.len() == count {
            return decision;
        }
        let checker = self.clone();
        StartedCall::boxed(&self.backend, move || async move {
            let admitted = decision.await?;
            for blocked in blocked {
                let _ = blocked.end();
            }
            let started = (!shadows.is_empty() && !admitted.is_repeated)
                .then(|| checker.decide_as_written(&borrowed(&shadows), settles, None));
            let decided = match started {
                None => None,
                Some(StartedCall::Decided(decided)) => decided.and_then(Result::ok),
                Some(StartedCall::Pending(call)) => {
                    complete_by(by, call).await.and_then(Result::ok)
                }
            };
            let of_shadows = decided.map(|it| it.permits);
            let decided = admitted.permits.into_iter().chain(of_shadows.unwrap_or_default());
            let count = if settles { count } else { 0 };
            let mut permits: Vec<_> = (0..count).map(|_| Permit::unlimited()).collect();
            for (place, permit) in places.into_iter().zip(decided) {
                permits[place] = permit;
            }
            Ok(AdmittedCall { permits, ..admitted })
        })
    }

    /// Decides a call that may wait. Rules can change meanwhile: its line follows them.
    async fn wait(self, parts: OneOrMany<OwnedPart>, settles: bool) -> CallResult {
        let (started, start) = (Started::now(), Instant::now());
        let wait = parts.first().and_then(|part| part.limit.policy().wait).unwrap_or_default();
        // Not beside the call: it must neither end later nor lose a grant that it has taken.
        let trials = {
            let parts = borrowed(&parts);
            self.trials(&parts, &self.ruled(&parts))
        };
        for trial in trials {
            self.backend.background.spawn(async { drop(trial.await) });
        }
        let (ticket, reply) = self.waiting.admit(parts, settles).await;
        let late = start.elapsed().saturating_sub(wait);
        let by = Instant::now() + self.backend.settings.deadline.saturating_sub(late);
        let reply = reply.map(|reply| (started, reply));
        let decision = {
            let (parts, ruled) = (borrowed(&ticket.parts), ticket.ruled());
            self.decide_enforced(&parts, &ruled, settles, reply, by)
        };
        decision.await
    }
}

/// Returns whether a call may wait. A shadow does not wait, unless a rule ends the shadow.
fn may_wait(parts: &[AnyPart<'_>], rules: &RulesInForce) -> bool {
    let waits = |part: &AnyPart<'_>| {
        part.limit.policy().wait.is_some()
            && (part.limit.max_wait().is_some() || may_be_ruled(parts, rules))
    };
    parts.first().is_some_and(waits)
}

fn owned(part: &AnyPart<'_>) -> OwnedPart {
    let Part { limit, key, cost, access } = *part;
    OwnedPart { limit: *limit, key: OwnedKey::of(key), cost, access }
}

fn borrowed(parts: &[OwnedPart]) -> Vec<AnyPart<'_>> {
    fn borrow(OwnedPart { limit, key, cost, access }: &OwnedPart) -> AnyPart<'_> {
        Part { limit, key, cost: *cost, access: *access }
    }
    parts.iter().map(borrow).collect()
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::time::Duration;

    use crate::key::{Key, KeyWriter};
    use crate::reply::{Mistake, Rejection, Source};
    use crate::{Limit, Part, Permit, RateLimiter, Rule, RuleSet};

    const MINUTE: Duration = Duration::from_secs(60);
    const LIMIT: Limit = Limit::sliding("ruled", 3, MINUTE);

    fn acquire(limiter: &RateLimiter, limit: &Limit, cost: u64) -> Result<Permit, Rejection> {
        let call = limiter.checker().start_all(&[Part::of(limit, &"key", cost)], true);
        let admitted = call.blocking(&limiter.checker().backend, || *limit)?;
        let permit = Permit::from(admitted);
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
        let result = checked.0.blocking(&limiter.checker().backend, || LIMIT);
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
