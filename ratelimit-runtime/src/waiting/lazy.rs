//! The waiting calls of a limiter, which the first of them creates.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use once_cell::sync::OnceCell;

use super::Waiting;
use crate::backend::Backend;
use crate::reply::StoreError;
use crate::rules::RulesInForce;

/// The waiting calls of a limiter, once a call waits.
pub(crate) struct LazyWaiting {
    calls: OnceCell<Arc<Waiting>>,
    max_calls: usize,
    is_shut_down: AtomicBool,
}

impl LazyWaiting {
    pub(crate) fn new(max_calls: usize) -> Self {
        Self { calls: OnceCell::new(), max_calls, is_shut_down: AtomicBool::new(false) }
    }

    /// Returns the waiting calls, if a call has waited.
    pub(crate) fn started(&self) -> Option<Arc<Waiting>> {
        self.calls.get().cloned()
    }

    /// Returns the waiting calls. The first call creates them.
    pub(crate) fn get_or_start(
        &self,
        backend: &Arc<Backend>,
        rules: &Arc<RulesInForce>,
    ) -> Arc<Waiting> {
        let create = || Waiting::new(Arc::clone(backend), Arc::clone(rules), self.max_calls);
        let is_first = self.calls.get().is_none();
        let calls = Arc::clone(self.calls.get_or_init(create));
        // A shutdown may have come before the first call. The fences here and there: the first call sees the flag, or
        // the shutdown sees the calls.
        if is_first {
            fence(Ordering::SeqCst);
        }
        if self.is_shut_down.load(Ordering::SeqCst) {
            calls.shut_down();
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
