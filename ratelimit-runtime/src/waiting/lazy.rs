//! The waiting calls of a limiter, as the rooms above use them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use once_cell::sync::OnceCell;

use super::{OwnedPart, Ticket, Waiting};
use crate::backend::Backend;
use crate::one_or_many::OneOrMany;
use crate::reply::StoreError;
use crate::rules::RulesInForce;
use crate::store::Reply;

pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The reply to a call that has waited in a line; `None` if it is decided without a line.
pub(super) type WaitReply = Option<Result<Reply, StoreError>>;

/// The waiting calls of a limiter. A trait, so that a program without a limit that waits does not contain its
/// functions.
pub(crate) trait WaitingCalls: Send + Sync {
    /// Waits until the call is admitted, or until it is known that it cannot be admitted within its wait. Returns no
    /// reply if the call is decided without a line, under the rules that its ticket then has. `settles` says whether
    /// its charges can be settled.
    fn admit(
        self: Arc<Self>,
        parts: OneOrMany<OwnedPart>,
        settles: bool,
    ) -> Boxed<(Arc<Ticket>, WaitReply)>;

    /// Rejects the calls that wait, and gives their units back. Later calls do not wait.
    fn shut_down(self: Arc<Self>);

    /// Completes once no line of Redis holds units of a call, after [`shut_down`](Self::shut_down). Returns why units
    /// could not be given back.
    fn rested(self: Arc<Self>) -> Boxed<Result<(), StoreError>>;

    /// Returns whether all lines would do nothing before the clock of the limiter moves; for tests.
    fn is_idle(&self) -> bool;

    /// Returns the number of lines; for tests.
    fn lines(&self) -> usize;
}

/// The waiting calls of a limiter, once a call waits.
pub(crate) struct LazyWaiting {
    calls: OnceCell<Arc<dyn WaitingCalls>>,
    max_calls: usize,
    is_shut_down: AtomicBool,
}

impl LazyWaiting {
    pub(crate) fn new(max_calls: usize) -> Self {
        Self { calls: OnceCell::new(), max_calls, is_shut_down: AtomicBool::new(false) }
    }

    /// Returns the waiting calls, if a call has waited.
    pub(crate) fn started(&self) -> Option<Arc<dyn WaitingCalls>> {
        self.calls.get().cloned()
    }

    /// Returns the waiting calls. The first call creates them.
    pub(crate) fn get_or_start(
        &self,
        backend: &Arc<Backend>,
        rules: &Arc<RulesInForce>,
    ) -> Arc<dyn WaitingCalls> {
        let create = || -> Arc<dyn WaitingCalls> {
            Waiting::new(Arc::clone(backend), Arc::clone(rules), self.max_calls)
        };
        let is_first = self.calls.get().is_none();
        let calls = Arc::clone(self.calls.get_or_init(create));
        // A shutdown may have come before the first call. The fences here and there: the first call sees the flag, or
        // the shutdown sees the calls.
        if is_first {
            fence(Ordering::SeqCst);
        }
        if self.is_shut_down.load(Ordering::SeqCst) {
            Arc::clone(&calls).shut_down();
        }
        calls
    }

    /// Rejects the calls that wait, and gives their units back. Later calls do not wait.
    pub(crate) fn shut_down(&self) {
        self.is_shut_down.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if let Some(calls) = self.started() {
            calls.shut_down();
        }
    }

    /// Completes once no line of Redis holds units of a call, after [`shut_down`](Self::shut_down). Returns why units
    /// could not be given back.
    pub(crate) async fn rested(&self) -> Result<(), StoreError> {
        match self.started() {
            Some(calls) => calls.rested().await,
            None => Ok(()),
        }
    }
}
