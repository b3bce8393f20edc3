//! The futures of a limiter. They own what they need, are `Send`, and are ready at once when the
//! embedded store decided.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::algorithm::Op;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::rejection::Rejection;

/// The answer of a store, now or later: `Result<T, StoreError>`.
#[must_use = "futures do nothing unless polled"]
pub struct Answer<T>(Inner<T>);

enum Inner<T> {
    Ready(Option<Result<T, StoreError>>),
    #[cfg(feature = "redis")]
    Later(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>),
}

impl<T> Answer<T> {
    pub(crate) fn ready(answer: Result<T, StoreError>) -> Self {
        Self(Inner::Ready(Some(answer)))
    }

    #[cfg(feature = "redis")]
    pub(crate) fn later(
        answer: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Self {
        Self(Inner::Later(Box::pin(answer)))
    }
}

impl<T> Future for Answer<T>
where
    Self: Unpin,
{
    type Output = Result<T, StoreError>;

    #[cfg_attr(not(feature = "redis"), allow(unused_variables, reason = "nothing is waited for"))]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Ready(answer) => Poll::Ready(answer.take().expect("polled after it was ready")),
            #[cfg(feature = "redis")]
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
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Check(State);

#[derive(Debug)]
enum State {
    Refused(Option<Rejection>),
    Asked { op: Op, name: &'static str, answer: Answer<Decision> },
}

impl Check {
    pub(crate) fn refused(rejection: Rejection) -> Self {
        Self(State::Refused(Some(rejection)))
    }

    pub(crate) fn asked(op: Op, name: &'static str, answer: Answer<Decision>) -> Self {
        Self(State::Asked { op, name, answer })
    }
}

impl Future for Check {
    type Output = Result<Decision, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match &mut self.0 {
            State::Refused(rejection) => Err(rejection.take().expect("polled after it was ready")),
            State::Asked { op, name, answer } => match ready!(Pin::new(answer).poll(context)) {
                Ok(decision) if decision.allowed || *op == Op::Peek => Ok(decision),
                Ok(decision) => Err(Rejection::Limited { name, decision }),
                Err(error) => Err(Rejection::Unavailable { name, error }),
            },
        })
    }
}
