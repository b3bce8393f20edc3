//! The waiting calls of a limiter, as the rooms above use them.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use once_cell::sync::OnceCell;

use super::{OwnedPart, Ticket, Waiting};
use crate::backend::Backend;
use crate::limit::{Capability, Limit};
use crate::reply::StoreError;
use crate::rules::RulesInForce;
use crate::store::{OneOrMany, Reply};

pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The reply to a call that has waited in a line; `None` if it is decided without a line.
pub(super) type WaitReply = Option<Result<Reply, StoreError>>;

/// The waiting calls of a limiter. A trait, so that only a limit with a `wait` refers to its functions (see
/// [`Capability`]).
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

/// Creates the [`WaitingCalls`] of a limiter. The number is the most calls that wait at a time.
#[derive(Clone, Copy)]
pub(crate) struct StartWaiting(fn(Arc<Backend>, Arc<RulesInForce>, usize) -> Arc<dyn WaitingCalls>);

impl StartWaiting {
    /// Returns what creates the waiting calls, if calls of the limit may wait.
    pub(crate) fn of(limit: &Limit) -> Option<Self> {
        limit.policy().waits_by()?.functions().copied()
    }
}

fn start_waiting() -> &'static (dyn Any + Send + Sync) {
    static START: StartWaiting =
        StartWaiting(|backend, rules, most| Waiting::new(backend, rules, most));
    &START
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
        self.with_wait(wait, Capability::new(start_waiting))
    }
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

    /// Returns the waiting calls. The first call creates them by `start`.
    pub(crate) fn get_or_start(
        &self,
        StartWaiting(start): StartWaiting,
        backend: &Arc<Backend>,
        rules: &Arc<RulesInForce>,
    ) -> Arc<dyn WaitingCalls> {
        let create = || start(Arc::clone(backend), Arc::clone(rules), self.max_calls);
        let calls = Arc::clone(self.calls.get_or_init(create));
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
