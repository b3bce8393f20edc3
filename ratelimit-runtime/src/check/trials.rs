//! Trials of rules: shadows that decide each call beside its limits, at the same time.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::call::{BoxedCall, StartedCall};
use crate::backend::Backend;

impl StartedCall {
    /// Lets trials decide beside this call. They do not change its result.
    pub(super) fn beside(self, backend: &Arc<Backend>, mut trials: Vec<BoxedCall>) -> Self {
        if trials.is_empty() {
            return self;
        }
        Self::boxed(backend, || async move {
            let (mut call, mut result) = (pin!(self.result()), None);
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
