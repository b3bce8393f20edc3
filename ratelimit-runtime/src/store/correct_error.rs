//! Why a store has not made a correction: whether it can be sent again depends on it.

use crate::reply::StoreError;

/// Why a correction was not made.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "the embedded store does not fail"))]
pub(crate) enum CorrectError {
    /// The store has certainly not executed the request, so the request can be sent again.
    NotExecuted(StoreError),
    /// The store has not replied, so it may have executed the request.
    NoReply(StoreError),
    /// The store has replied with an error.
    Replied(StoreError),
}

impl CorrectError {
    /// Returns the error for a caller of the limiter.
    pub(crate) fn error(&self) -> &StoreError {
        let (Self::NotExecuted(error) | Self::NoReply(error) | Self::Replied(error)) = self;
        error
    }
}
