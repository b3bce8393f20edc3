//! What receives a reply.

use tokio::sync::oneshot;

/// What receives the reply to a call. In `models/`, a plain value.
pub(crate) trait Caller {
    /// Returns whether the call still waits for its reply.
    fn is_present(&self) -> bool;
}

impl<T> Caller for oneshot::Sender<T> {
    fn is_present(&self) -> bool {
        !self.is_closed()
    }
}
