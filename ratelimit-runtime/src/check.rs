//! The futures of a limiter. They own what they need, are `Send`, and are ready at once when the
//! embedded store decided.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::algorithm::Op;
use crate::decision::{Answered, Decision, Verdict};
use crate::error::StoreError;
use crate::limit::Limit;
use crate::rejection::Rejection;

/// The answer of a store, now or later: `Result<T, StoreError>`.
#[must_use = "futures do nothing unless polled"]
pub struct Answer<T>(Inner<T>);

enum Inner<T> {
    Ready(Option<Result<T, StoreError>>),
    Later(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>),
}

impl<T> Answer<T> {
    pub(crate) fn ready(answer: Result<T, StoreError>) -> Self {
        Self(Inner::Ready(Some(answer)))
    }

    pub(crate) fn later(
        answer: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Self {
        Self(Inner::Later(Box::pin(answer)))
    }
}

impl<T: Send + 'static> Answer<T> {
    pub(crate) fn map<U: 'static>(self, change: impl FnOnce(T) -> U + Send + 'static) -> Answer<U> {
        match self.0 {
            Inner::Ready(answer) => Answer(Inner::Ready(answer.map(|answer| answer.map(change)))),
            Inner::Later(answer) => Answer::later(async { answer.await.map(change) }),
        }
    }
}

impl<T: Unpin> Future for Answer<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Ready(answer) => Poll::Ready(answer.take().expect("polled after it was ready")),
            Inner::Later(answer) => answer.as_mut().poll(context),
        }
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

/// A call being checked: `Result<Decision, Rejection>`.
#[must_use = "futures do nothing unless polled"]
pub struct Check(State);

enum State {
    Known(Option<Result<Decision, Rejection>>),
    Asked { op: Op, name: &'static str, capacity: u32, shadow: bool, answer: Answer<Answered> },
    Waits(Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send>>),
    AskedAll { capacity: u32, shadow: bool, name: &'static str, answer: Answer<Verdict> },
}

impl Check {
    /// The answer of a store, as the limit has it understood.
    pub(crate) fn new(op: Op, limit: &Limit, answer: Answer<Answered>) -> Self {
        let (name, capacity, shadow) = (limit.name(), limit.capacity(), limit.is_shadow());
        Self(State::Asked { op, name, capacity, shadow, answer })
    }

    /// The answer of a store about several limits, of which `first` says how it is understood.
    pub(crate) fn all(first: &Limit, answer: Answer<Verdict>) -> Self {
        let (name, capacity, shadow) = (first.name(), first.capacity(), first.is_shadow());
        Self(State::AskedAll { capacity, shadow, name, answer })
    }

    /// An answer that is waited for.
    pub(crate) fn waits(
        answer: impl Future<Output = Result<Decision, Rejection>> + Send + 'static,
    ) -> Self {
        Self(State::Waits(Box::pin(answer)))
    }

    /// The answer to a call that cannot be asked.
    pub(crate) fn failed(name: &'static str, error: StoreError) -> Self {
        Self(State::Known(Some(Err(Rejection::Unavailable { name, error }))))
    }

    /// The answer to a cost that is above the capacity.
    pub(crate) fn never(limit: &Limit, cost: u32) -> Self {
        let (name, capacity) = (limit.name(), limit.capacity());
        Self(State::Known(Some(if limit.is_shadow() {
            Ok(Decision::never(capacity))
        } else {
            Err(Rejection::CostExceedsCapacity { name, cost, capacity })
        })))
    }
}

impl Future for Check {
    type Output = Result<Decision, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (name, refuses, undecided, answer) = match &mut self.0 {
            State::Known(answer) => {
                return Poll::Ready(answer.take().expect("polled after it was ready"));
            }
            State::Waits(answer) => return answer.as_mut().poll(context),
            State::Asked { op, name, capacity, shadow, answer } => {
                let answer = ready!(Pin::new(answer).poll(context));
                let answer = answer.map(|answered| Decision::new(*capacity, answered));
                let refuses = *op == Op::Decide && !*shadow;
                let undecided = (*op == Op::Decide && *shadow).then_some(*capacity);
                (*name, refuses, undecided, answer)
            }
            State::AskedAll { name, capacity, shadow, answer } => {
                match ready!(Pin::new(answer).poll(context)) {
                    Ok(Verdict { name, decision }) => (name, !*shadow, None, Ok(decision)),
                    Err(error) => (*name, true, shadow.then_some(*capacity), Err(error)),
                }
            }
        };
        Poll::Ready(match (answer, undecided) {
            (Ok(decision), _) if decision.allowed || !refuses => Ok(decision),
            (Ok(decision), _) => Err(Rejection::Limited { name, decision }),
            (Err(_), Some(capacity)) => Ok(Decision::undecided(capacity)),
            (Err(error), None) => Err(Rejection::Unavailable { name, error }),
        })
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").finish_non_exhaustive()
    }
}
