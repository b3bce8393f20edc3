//! Calls that may wait: the setting of a limit, and what decides its calls.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::call::{CallOptions, CallResult, StartedCall};
use super::ruled::may_be_ruled;
use super::{AnyPart, Checker, Part};
use crate::key::OwnedKey;
use crate::limit::{Capability, Limit};
use crate::one_or_many::OneOrMany;
use crate::report::Started;
use crate::rules::RulesInForce;
use crate::waiting::{OwnedPart, WaitingCalls};

/// Decides calls that may wait. Only a limit with a `wait` refers to it (see [`Capability`]).
#[derive(Clone, Copy)]
pub(super) struct DecideWaiting(
    pub(super) fn(&Checker, &[AnyPart<'_>], CallOptions) -> StartedCall,
);

impl DecideWaiting {
    /// Returns what decides a call that may wait. A shadow does not wait, unless a rule ends the shadow.
    pub(super) fn of(
        parts: &[AnyPart<'_>],
        options: CallOptions,
        rules: &RulesInForce,
    ) -> Option<Self> {
        let limit = parts.first()?.limit;
        let by = limit.policy().waits_by().filter(|_| options.can_wait)?;
        let may_wait = limit.max_wait().is_some() || may_be_ruled(parts, rules);
        if may_wait { by.functions().copied() } else { None }
    }
}

fn decide_waiting() -> &'static (dyn Any + Send + Sync) {
    static DECIDE: DecideWaiting = DecideWaiting(|checker, parts, options| {
        let waiting = checker.waiting.get_or_start(&checker.backend, &checker.rules);
        let parts = OneOrMany::of(parts, owned);
        StartedCall::boxed(checker.clone().wait(waiting, parts, options))
    });
    &DECIDE
}

impl Limit {
    /// Lets a call wait up to `wait` to be admitted, instead of being rejected at once.
    ///
    /// In a process, calls with the same limits and keys are admitted first come, first served. With a single limit
    /// that is a bucket, a process reserves moments for its calls, up to a second ahead, so the order also holds across
    /// processes as long as no call waits longer than that. A call that cannot be admitted in time is rejected as soon
    /// as that is known. A call that is dropped while it waits takes nothing. The documentation of
    /// [`rate_limit`](crate::rate_limit#wait) says what is promised, and what is not.
    ///
    /// Waiting needs a tokio runtime with time enabled. To wait in a stream, see `stream`: there, a limit without
    /// `wait` waits as long as it takes.
    #[must_use]
    pub const fn wait(self, wait: Duration) -> Self {
        self.with_wait(wait, Capability::new(decide_waiting))
    }
}

impl Checker {
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
