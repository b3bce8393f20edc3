//! The waiting calls of a limiter, as the rooms above use them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use once_cell::sync::OnceCell;

use crate::limit::Policy;
use crate::reply::StoreError;
use crate::store::{Charge, OneOrMany, Reply};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The waiting calls of a limiter. A trait, so that only a limit with a `wait` refers to its functions (see
/// [`Capability`](crate::limit::Capability)).
pub(crate) trait WaitingCalls: Send + Sync {
    /// Waits up to `wait` until the call is admitted. Returns a rejection once it is known that the call cannot be
    /// admitted in time. `settles` says whether its charges can be settled.
    fn admit(
        self: Arc<Self>,
        policy: Policy,
        charges: OneOrMany<Arc<Charge>>,
        wait: Duration,
        settles: bool,
    ) -> Boxed<Result<Reply, StoreError>>;

    /// Cancels the moments of all calls that wait with the amounts of `charge`, because a rule has changed these
    /// amounts. If each call cancelled its own moment, the first calls would reserve new moments behind the old ones of
    /// the others.
    fn dissolve(self: Arc<Self>, charge: &Charge);

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
pub(crate) struct WaitingSlot {
    calls: OnceCell<Arc<dyn WaitingCalls>>,
    max_calls: usize,
    is_shut_down: AtomicBool,
}

impl WaitingSlot {
    pub(crate) fn new(max_calls: usize) -> Self {
        Self { calls: OnceCell::new(), max_calls, is_shut_down: AtomicBool::new(false) }
    }

    /// Returns the waiting calls, if a call has waited.
    pub(crate) fn started(&self) -> Option<Arc<dyn WaitingCalls>> {
        self.calls.get().cloned()
    }

    /// Returns the waiting calls. The first call passes the most of them to `start`.
    pub(crate) fn get_or_start(
        &self,
        start: impl FnOnce(usize) -> Arc<dyn WaitingCalls>,
    ) -> Arc<dyn WaitingCalls> {
        let calls = Arc::clone(self.calls.get_or_init(|| start(self.max_calls)));
        // A shutdown may have come before the first call.
        if self.is_shut_down.load(Ordering::SeqCst) {
            Arc::clone(&calls).shut_down();
        }
        calls
    }

    /// Rejects the calls that wait, and gives their units back. Later calls do not wait.
    pub(crate) fn shut_down(&self) {
        self.is_shut_down.store(true, Ordering::SeqCst);
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
