//! Calls under the rules in force: a limit can have other amounts, admit nothing, or not limit a call at all.

use std::mem;
use std::sync::Arc;

use super::call::{AdmittedCall, CallOptions, CallResult, LineReply, Refusal, StartedCall};
use super::{AnyPart, Checker, Part, Permit};
use crate::backend::Backend;
use crate::key::OwnedKey;
use crate::limit::Access;
use crate::report::Started;
use crate::rules::{Asker, Ruled, RulesInForce};
use crate::store::OneOrMany;
use crate::waiting::{OwnedPart, StartWaiting, WaitingCalls};

/// The parts of a call that are decided, or only reported, once the others have admitted it.
struct TrailingParts {
    checker: Checker,
    options: CallOptions,
    /// How many parts the call has.
    parts: usize,
    /// The indexes of the parts that are decided first.
    first: Vec<usize>,
    /// The shadows, with their indexes.
    shadows: Vec<OwnedPart>,
    shadow_indexes: Vec<usize>,
    /// The shadows that a rule closes.
    closed: Vec<Refusal>,
}

/// The parts of a call, with their indexes.
struct SortedParts<'a> {
    /// The parts that are decided first.
    first: Vec<(usize, AnyPart<'a>)>,
    shadows: Vec<(usize, AnyPart<'a>)>,
    closed: Vec<Refusal>,
}

impl Checker {
    /// Starts a call of any kind, under the rules in force.
    pub(super) fn call(&self, parts: &[AnyPart<'_>], options: CallOptions) -> StartedCall {
        let policy = parts.first().map(|first| first.limit.policy());
        let agree = policy
            .is_some_and(|policy| parts.iter().all(|part| part.limit.policy().agrees_with(policy)));
        if !agree {
            // Reports the mistake.
            return self.decide_as_written(parts, options, None);
        }
        // A shadow does not wait, unless a rule ends the shadow.
        let may_wait = options.can_wait && parts[0].limit.max_wait().is_some();
        if !may_wait && !may_be_ruled(parts, &self.rules) {
            return self.decide_as_written(parts, options, None);
        }
        if options.can_wait
            && let Some(start) = StartWaiting::of(parts[0].limit)
        {
            let waiting = self.waiting.get_or_start(start, &self.backend, &self.rules);
            let parts = OneOrMany::of(parts, owned);
            return StartedCall::boxed(self.clone().wait(waiting, parts, options));
        }
        // One set of rules for all parts.
        let table = self.rules.table();
        let ruled =
            OneOrMany::of(parts, |part| part.under(table.as_deref(), &self.backend, Asker::Call));
        self.decide_ruled(parts, &ruled, options, None)
    }

    /// Decides a call that may wait. Rules can change meanwhile: its line follows them.
    async fn wait(
        self,
        waiting: Arc<dyn WaitingCalls>,
        parts: OneOrMany<OwnedPart>,
        options: CallOptions,
    ) -> CallResult {
        let started = Started::now();
        let (ticket, reply) = waiting.admit(parts, options.settles).await;
        let reply = reply.map(|reply| (started, reply));
        let decision = self.decide_ruled(&borrowed(&ticket.parts), &ticket.ruled(), options, reply);
        decision.result().await
    }

    /// Decides a call as `ruled` says, and the trials beside it.
    pub(super) fn decide_ruled(
        &self,
        parts: &[AnyPart<'_>],
        ruled: &[Ruled],
        options: CallOptions,
        reply: Option<LineReply>,
    ) -> StartedCall {
        let call = self.decide_enforced(parts, ruled, options, reply);
        self.with_trials(call, parts, ruled, options)
    }

    /// Decides a call as `ruled` says: first the parts that can reject it, by the reply to their line if they have
    /// waited.
    fn decide_enforced(
        &self,
        parts: &[AnyPart<'_>],
        ruled: &[Ruled],
        options: CallOptions,
        reply: Option<LineReply>,
    ) -> StartedCall {
        if let ([part], [Ruled { limit, access, .. }]) = (parts, ruled) {
            // Nothing is allocated for the usual call.
            return match access {
                Access::Unlimited => StartedCall::unlimited(options, 1),
                Access::Closed => {
                    let part = Part::of(limit, part.key, part.cost);
                    let closed_for = ruled[0].closed_for(self.backend.clock().local());
                    Refusal::closed(&part, closed_for, &self.backend).into_call(options, 1)
                }
                Access::Limited => {
                    self.decide_as_written(&[Part::of(limit, part.key, part.cost)], options, reply)
                }
            };
        }
        let SortedParts { first, shadows, closed } =
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
            parts: parts.len(),
            first: indexes(&first),
            shadow_indexes: indexes(&shadows),
            shadows: shadows.iter().map(|(_, part)| owned(part)).collect(),
            closed,
        };
        StartedCall::boxed(async move { trailing.decide(decision.result().await?).await })
    }
}

impl<'a> SortedParts<'a> {
    /// Sorts the parts of a call, or rejects it if a rule closes one of them.
    fn new(
        parts: &[AnyPart<'a>],
        ruled: &'a [Ruled],
        backend: &Backend,
    ) -> Result<Self, Box<Refusal>> {
        let (mut first, mut shadows, mut closed) = (Vec::new(), Vec::new(), Vec::new());
        let mut longest = None;
        for (index, (part, ruled)) in parts.iter().zip(ruled).enumerate() {
            let limit = &ruled.limit;
            let part = Part::of(limit, part.key, part.cost);
            match ruled.access {
                Access::Unlimited => {}
                Access::Closed => {
                    let closed_for = ruled.closed_for(backend.clock().local());
                    let refuse = || Refusal::closed(&part, closed_for, backend);
                    if limit.is_shadow() {
                        closed.push(refuse());
                    } else if longest.as_ref().is_none_or(|(other, _)| *other < closed_for) {
                        longest = Some((closed_for, refuse()));
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
        Ok(Self { first, shadows, closed })
    }
}

impl TrailingParts {
    /// Decides the shadows of a call that was admitted.
    async fn decide(self, admission: AdmittedCall) -> CallResult {
        for closed in self.closed {
            let _ = closed.end();
        }
        let mut shadows = Vec::new();
        if !self.shadows.is_empty() {
            let decision =
                self.checker.decide_as_written(&borrowed(&self.shadows), self.options, None);
            shadows = decision.result().await.map(|it| it.permits).unwrap_or_default();
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

/// Returns whether rules can exist for a call, or whether it has no limit unless a rule sets one.
pub(super) fn may_be_ruled<K: ?Sized>(parts: &[Part<'_, K>], rules: &RulesInForce) -> bool {
    parts.iter().any(|part| part.access != Access::Limited)
        || rules.may_apply_to_any(parts.iter().map(|part| part.limit))
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
