//! Calls that wait and follow the rules meanwhile.

use std::any::Any;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::call::{CallOptions, CallResult, StartedCall};
use super::ruled::{OwnedPart, RuledCall, borrowed};
use super::{AnyPart, Checker};
use crate::backend::Backend;
use crate::clock::{Clock, before};
use crate::limit::{Access, Capability, Limit};
use crate::report;
use crate::rules::Ruled;
use crate::store::OneOrMany;
use crate::waiting::{Waiting, WaitingCalls};

/// The functions of calls that wait.
pub(super) struct WaitFunctions {
    pub(super) call: fn(&Checker, &[AnyPart<'_>], CallOptions) -> StartedCall,
    pub(super) start: fn(Arc<Backend>, usize) -> Arc<dyn WaitingCalls>,
}

impl WaitFunctions {
    /// Returns the functions for calls of a limit that may wait.
    pub(super) fn of(limit: &Limit) -> Option<&'static Self> {
        limit.policy().waits_by()?.functions()
    }
}

fn wait_functions() -> &'static (dyn Any + Send + Sync) {
    static FUNCTIONS: WaitFunctions = WaitFunctions {
        call: |checker, parts, options| {
            StartedCall::boxed(WaitingParts::new(checker, parts, options).decide())
        },
        start: |backend, max_calls| Waiting::new(backend, max_calls),
    };
    &FUNCTIONS
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
        self.with_wait(wait, Capability::new(wait_functions))
    }
}

/// The parts of a call that waits.
pub(super) struct WaitingParts {
    checker: Checker,
    parts: OneOrMany<OwnedPart>,
    options: CallOptions,
}

impl WaitingParts {
    pub(super) fn new(checker: &Checker, parts: &[AnyPart<'_>], options: CallOptions) -> Self {
        let parts = match parts {
            [part] => OneOrMany::One(OwnedPart::of(part)),
            parts => OneOrMany::Many(parts.iter().map(OwnedPart::of).collect()),
        };
        Self { checker: checker.clone(), parts, options }
    }

    /// Decides the call. If the rules change while it waits, it is started again under the new ones, with the rest of
    /// its wait. What was decided stays decided.
    pub(super) async fn decide(self) -> CallResult {
        let Self { checker, parts, options } = &self;
        let clock = checker.backend.clock();
        let began = clock.steady();
        let mut changed = pin!(checker.rules.changed());
        loop {
            // Before the rules are read, so that no change is missed.
            changed.as_mut().enable();
            let ruled = checker.all_under_rules(&borrowed(parts));
            let waited = Duration::from_micros(clock.steady().saturating_sub(began));
            if opens_within(checker, &ruled, waited) {
                rules_change(clock, &ruled, changed.as_mut()).await;
                changed.set(checker.rules.changed());
                continue;
            }
            let rest = ruled.map(|ruled| {
                let wait = ruled.limit.policy().wait().unwrap_or_default();
                let limit = ruled.limit.wait(wait.saturating_sub(waited));
                Ruled { limit, ..ruled.clone() }
            });
            let RuledCall { decision, is_waiting, trailing } =
                checker.decide_ruled(&borrowed(parts), &rest, *options);
            let mut decision = pin!(decision.result());
            let mut present = ruled.clone();
            while is_same(&present, &ruled) {
                let change = async {
                    if is_waiting {
                        rules_change(clock, &present, changed.as_mut()).await;
                    } else {
                        pending::<()>().await;
                    }
                };
                if let Some(result) = before(change, decision.as_mut()).await {
                    return match trailing {
                        None => result,
                        Some(trailing) => trailing.decide(result?).await,
                    };
                }
                changed.set(checker.rules.changed());
                changed.as_mut().enable();
                present = checker.all_under_rules(&borrowed(parts));
            }
            // Before the decision is dropped: all calls of its line leave with it.
            leave_lines(checker, &borrowed(parts), &ruled);
            for Ruled { limit, .. } in ruled.iter().filter(|_| ruled.len() > 1) {
                report::expect_no_longer(limit);
            }
        }
    }
}

/// Returns whether a call is treated in the same way. The rules can end at other times.
fn is_same(one: &[Ruled], other: &[Ruled]) -> bool {
    let treatment = |ruled: &Ruled| Ruled { changes_at: None, ..ruled.clone() };
    one.iter().map(treatment).eq(other.iter().map(treatment))
}

/// Cancels what calls under superseded rules hold.
fn leave_lines(checker: &Checker, parts: &[AnyPart<'_>], superseded: &[Ruled]) {
    for (part, Ruled { limit, .. }) in parts.iter().zip(superseded) {
        let charge = checker.backend.charge(checker.counted(limit), part.key, part.cost);
        if let Some(waiting) = checker.waiting.started() {
            waiting.dissolve(&charge);
        }
    }
}

/// Returns whether rules close a call, and open it before its wait ends.
fn opens_within(checker: &Checker, ruled: &[Ruled], waited: Duration) -> bool {
    let closed = ruled.iter().filter(|it| it.access == Access::Closed && !it.limit.is_shadow());
    let closed_for = closed.map(|ruled| checker.closed_for(ruled)).max();
    let wait = ruled[0].limit.policy().wait().unwrap_or_default();
    checker.backend.clock().can_sleep()
        && closed_for.is_some_and(|closed_for| closed_for <= wait.saturating_sub(waited))
}

/// Completes when the rules were replaced, or one of those in force ends.
async fn rules_change(clock: &Clock, present: &[Ruled], replaced: impl Future<Output = ()>) {
    match present.iter().filter_map(|ruled| ruled.changes_at).min() {
        Some(at) if clock.can_sleep() => {
            let at = clock.steady().saturating_add(at.saturating_sub(clock.local()));
            before(clock.sleep_until_steady(at), replaced).await;
        }
        _ => replaced.await,
    }
}
