//! The deadline of a call that waits for something in this process before its request: both together take one deadline
//! at most.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::Backend;
use crate::clock::complete_by;
use crate::reply::StoreError;

/// When a call must end. `None` until it waits: a request ends by its own deadline, and needs no second timer.
#[derive(Default)]
pub(super) struct CallDeadline(Option<Instant>);

impl Backend {
    /// Completes what a call needs before its request, within the first half of its deadline.
    pub(super) async fn prepare<T>(
        &self,
        end: &mut CallDeadline,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut work = pin!(work);
        let polled = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        if let Poll::Ready(result) = polled {
            return result;
        }
        if Handle::try_current().is_err() {
            return Err(StoreError::NoRuntime);
        }
        let deadline = self.deadline();
        let end = *end.0.get_or_insert_with(|| Instant::now() + deadline);
        // Boxed, because nearly no call waits.
        let waited = Box::pin(timeout_at(end - deadline / 2, work)).await;
        waited.unwrap_or(Err(StoreError::Timeout { deadline }))
    }

    /// Completes the request of a call by the end of the call.
    // The request is pinned by the caller: as an argument, its future would be here several times.
    pub(super) async fn complete<T>(
        &self,
        end: &CallDeadline,
        request: Pin<&mut impl Future<Output = Result<T, StoreError>>>,
    ) -> Result<T, StoreError> {
        let Some(end) = end.0 else { return request.await };
        let deadline = self.deadline();
        let completed = Box::pin(complete_by(end, request)).await;
        completed.unwrap_or(Err(StoreError::Timeout { deadline }))
    }
}
