//! Trials of rules: shadows that decide each call beside its limits, at the same time.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use super::call::{BoxedCall, CallOptions, StartedCall};
use super::{AnyPart, Checker, Part};
use crate::limit::Access;
use crate::rules::Ruled;

impl Checker {
    /// Decides the trials of a call. They do not change its result.
    pub(super) fn with_trials(
        &self,
        call: StartedCall,
        parts: &[AnyPart<'_>],
        ruled: &[Ruled],
        options: CallOptions,
    ) -> StartedCall {
        if ruled.iter().all(|ruled| ruled.trial.is_none()) {
            return call;
        }
        let trials = parts.iter().zip(ruled).filter_map(|(part, ruled)| {
            let trial = ruled.trial.as_deref()?;
            // No request decides a call that is decided at once.
            let is_decided = options.can_wait || !self.backend.is_shared(trial.policy().scope());
            if ruled.access != Access::Limited || !is_decided {
                return None;
            }
            let part: AnyPart<'_> = Part::of(trial, part.key, part.cost);
            match self.decide_as_written(&[part], CallOptions::CHECK, None) {
                StartedCall::Decided(_) => None,
                StartedCall::Pending(trial) => Some(trial),
            }
        });
        let trials: Vec<BoxedCall> = trials.collect();
        if trials.is_empty() {
            return call;
        }
        StartedCall::boxed(async move {
            let (mut call, mut trials, mut result) = (pin!(call.result()), trials, None);
            // Polled in one turn, so the requests leave together, and one batch can have them.
            poll_fn(|context| {
                if result.is_none()
                    && let Poll::Ready(decided) = call.as_mut().poll(context)
                {
                    result = Some(decided);
                }
                trials.retain_mut(|trial| trial.as_mut().poll(context).is_pending());
                match result.take() {
                    Some(decided) if trials.is_empty() => Poll::Ready(decided),
                    decided => {
                        result = decided;
                        Poll::Pending
                    }
                }
            })
            .await
        })
    }
}
