//! Calls that may wait.

use std::sync::Arc;

use tokio::time::Instant;

use super::call::{CallOptions, CallResult, StartedCall};
use super::part::may_be_ruled;
use super::{AnyPart, Checker, Part};
use crate::key::OwnedKey;
use crate::one_or_many::OneOrMany;
use crate::report::Started;
use crate::rules::RulesInForce;
use crate::waiting::OwnedPart;

/// Returns whether a call may wait. A shadow does not wait, unless a rule ends the shadow.
pub(super) fn may_wait(parts: &[AnyPart<'_>], rules: &RulesInForce) -> bool {
    let waits = |part: &AnyPart<'_>| {
        part.limit.policy().wait().is_some()
            && (part.limit.max_wait().is_some() || may_be_ruled(parts, rules))
    };
    parts.first().is_some_and(waits)
}

impl Checker {
    /// Starts a call that may wait.
    pub(super) fn start_waiting(&self, parts: &[AnyPart<'_>], options: CallOptions) -> StartedCall {
        let parts = parts.iter().map(owned).collect();
        let (backend, checker) = (Arc::clone(&self.backend), self.clone());
        let wait = move || checker.wait(parts, options);
        StartedCall::Pending(Box::pin(backend.run_with_timers(wait)))
    }

    /// Decides a call that may wait. Rules can change meanwhile: its line follows them.
    async fn wait(self, parts: OneOrMany<OwnedPart>, options: CallOptions) -> CallResult {
        let (started, start) = (Started::now(), Instant::now());
        let wait = parts.first().and_then(|part| part.limit.policy().wait()).unwrap_or_default();
        // Not beside the call: it must neither end later nor lose a grant that it has taken.
        let trials = {
            let parts = borrowed(&parts);
            self.trials(&parts, &self.ruled(&parts))
        };
        for trial in trials {
            self.backend.background().spawn(async { drop(trial.await) });
        }
        let (ticket, reply) = self.waiting.admit(parts, options.settles).await;
        let late = start.elapsed().saturating_sub(wait);
        let by = Instant::now() + self.backend.deadline().saturating_sub(late);
        let reply = reply.map(|reply| (started, reply));
        let decision = {
            let (parts, ruled) = (borrowed(&ticket.parts), ticket.ruled());
            self.decide_enforced(&parts, &ruled, options, reply, by)
        };
        decision.result().await
    }
}

pub(super) fn owned(part: &AnyPart<'_>) -> OwnedPart {
    let Part { limit, key, cost, access } = *part;
    OwnedPart { limit: *limit, key: OwnedKey::of(key), cost, access }
}

pub(super) fn borrowed(parts: &[OwnedPart]) -> Vec<AnyPart<'_>> {
    fn borrow(OwnedPart { limit, key, cost, access }: &OwnedPart) -> AnyPart<'_> {
        Part { limit, key, cost: *cost, access: *access }
    }
    parts.iter().map(borrow).collect()
}
