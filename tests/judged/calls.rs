//! The calls of a trace, and the verdict about them.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use ratelimit_runtime::{Decision, Limit, Permit, Rejection};
use support::judge::{Breach, CallId, Moment};
use tokio::task::JoinHandle;

use crate::exceptions::Excepted;

/// What the judge says of a trace.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The operations that were played.
    pub(crate) operations: usize,
    /// The calls that were admitted.
    pub(crate) admitted: usize,
    pub(crate) breaches: Vec<Breach>,
    /// Other promises that were broken.
    pub(crate) faults: Vec<String>,
    /// What was played, for a trace that fails.
    pub(crate) story: Vec<String>,
}

/// A call that waits.
pub(crate) struct Waiting {
    pub(crate) process: usize,
    pub(crate) cost: u64,
    /// The limit, with the amounts since the call waits.
    pub(crate) limits: Vec<Limit>,
    pub(crate) decided: u64,
    pub(crate) excepted: Excepted,
    /// Since when the call is not polled.
    pub(crate) paused: Option<Moment>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) task: JoinHandle<(u64, Result<Admitted, Rejection>)>,
    pub(crate) is_free: bool,
    /// Whether the reply to a request of its line may be lost.
    pub(crate) may_fail: bool,
}

/// An admitted call, and its permit if its charge can be settled.
pub(crate) type Admitted = (Decision, Option<Permit>);

/// An admitted call whose charge is not settled.
pub(crate) struct Open {
    pub(crate) process: usize,
    pub(crate) permit: Permit,
    pub(crate) cost: u64,
    pub(crate) call: CallId,
    /// Whether the judge does not count the call.
    pub(crate) is_excepted: bool,
}

/// Decides whether a call is polled.
#[derive(Default)]
pub(crate) struct Gate(Mutex<GateState>);

#[derive(Default)]
struct GateState {
    is_shut: bool,
    waker: Option<Waker>,
}

impl Gate {
    pub(crate) fn shut(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_shut = true;
    }

    pub(crate) fn open(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_shut = false;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_shut
    }

    /// Returns whether the gate is shut. If it is, the task is woken once it opens.
    fn stops(&self, waker: &Waker) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_shut {
            state.waker = Some(waker.clone());
        }
        state.is_shut
    }
}

/// A future that is not polled while its gate is shut.
pub(crate) struct Gated<F> {
    gate: Arc<Gate>,
    future: Pin<Box<F>>,
}

impl<F> Gated<F> {
    pub(crate) fn new(gate: &Arc<Gate>, future: F) -> Self {
        Self { gate: Arc::clone(gate), future: Box::pin(future) }
    }
}

impl<F: Future> Future for Gated<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.gate.stops(context.waker()) {
            return Poll::Pending;
        }
        self.future.as_mut().poll(context)
    }
}
