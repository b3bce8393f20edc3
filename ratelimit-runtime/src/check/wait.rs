//! Calls that may wait.

use std::sync::Arc;

use super::call::{CallOptions, CallResult, StartedCall};
use super::ruled::may_be_ruled;
use super::{AnyPart, Checker, Part};
use crate::key::OwnedKey;
use crate::one_or_many::OneOrMany;
use crate::report::Started;
use crate::rules::RulesInForce;
use crate::waiting::{OwnedPart, Waiting};

/// Returns whether a call may wait. A shadow does not wait, unless a rule ends the shadow.
pub(super) fn may_wait(parts: &[AnyPart<'_>], options: CallOptions, rules: &RulesInForce) -> bool {
    let waits = |part: &AnyPart<'_>| {
        part.limit.policy().wait().is_some()
            && (part.limit.max_wait().is_some() || may_be_ruled(parts, rules))
    };
    options.can_wait && parts.first().is_some_and(waits)
}

impl Checker {
    /// Starts a call that may wait.
    pub(super) fn start_waiting(&self, parts: &[AnyPart<'_>], options: CallOptions) -> StartedCall {
        let waiting = self.waiting.get_or_start(&self.backend, &self.rules);
        let parts = OneOrMany::of(parts, owned);
        StartedCall::boxed(self.clone().wait(waiting, parts, options))
    }

    /// Decides a call that may wait. Rules can change meanwhile: its line follows them.
    async fn wait(
        self,
        waiting: Arc<Waiting>,
        parts: OneOrMany<OwnedPart>,
        options: CallOptions,
    ) -> CallResult {
        let started = Started::now();
        let (ticket, reply) = waiting.admit(parts, options.settles).await;
        let reply = reply.map(|reply| (started, reply));
        let decision = self.decide_ruled(&borrowed(&ticket.parts), &ticket.ruled(), options, reply);
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
