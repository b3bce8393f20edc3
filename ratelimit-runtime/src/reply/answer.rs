//! The future of an operation that is not a check. It is ready at once on the embedded store.

use std::future::ready;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::StoreError;
use crate::printing::debug_by_name;

/// The future of a request to a store. Resolves to `Result<T, StoreError>`.
///
/// It borrows nothing and is `Send`. On the embedded store, it is ready at once.
#[must_use = "futures do nothing unless polled"]
pub struct Answer<T>(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>);

impl<T: Send + 'static> Answer<T> {
    pub(crate) fn ready(answer: Result<T, StoreError>) -> Self {
        Self::pending(ready(answer))
    }

    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'static) -> Answer<U> {
        Answer(Box::pin(async move { self.await.map(change) }))
    }

    pub(crate) fn pending(
        answer: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Self {
        Self(Box::pin(answer))
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

debug_by_name!("Answer" [T] Answer<T>);
