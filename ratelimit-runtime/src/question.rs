//! A question to a store, and what its answer means for the call. Whoever asks on behalf of a call
//! that waits asks several of these; the [`Check`](crate::Check) of the call is one.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::algorithm::Op;
use crate::check::Answer;
use crate::decision::{Answered, Decision, Verdict};
use crate::error::StoreError;
use crate::limit::{Limit, Quota};
use crate::rejection::Rejection;

/// The answer to a call, with the name of the limit that spoke; of a shadow as of any other limit.
pub(crate) type Finding = Result<Verdict, Rejection>;

/// A call being asked about: [`Finding`].
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Question(State);

enum State {
    Known(Option<Finding>),
    Asked {
        refuses: bool,
        name: &'static str,
        quota: Quota,
        capacity: u32,
        answer: Answer<Answered>,
    },
    AskedAll {
        name: &'static str,
        answer: Answer<Verdict>,
    },
    Waits(Pin<Box<dyn Future<Output = Finding> + Send>>),
}

impl Question {
    /// The answer of a store about `limit`.
    pub(crate) fn new(op: Op, limit: &Limit, answer: Answer<Answered>) -> Self {
        let (name, quota, capacity) = (limit.name(), limit.quota(), limit.capacity());
        Self(State::Asked { refuses: op == Op::Decide, name, quota, capacity, answer })
    }

    /// What a store has answered about `limit`: no.
    pub(crate) fn refused(limit: &Limit, answer: Answered) -> Self {
        let decision = Decision::new(limit.capacity(), answer);
        Self(State::Known(Some(Err(Rejection::limited(limit, decision)))))
    }

    /// The answer of a store about several limits, of which `first` is named when there is none.
    pub(crate) fn all(first: &Limit, answer: Answer<Verdict>) -> Self {
        Self(State::AskedAll { name: first.name(), answer })
    }

    /// An answer that is waited for.
    pub(crate) fn waits(answer: impl Future<Output = Finding> + Send + 'static) -> Self {
        Self(State::Waits(Box::pin(answer)))
    }

    /// The answer to a call that cannot be asked.
    pub(crate) fn failed(name: &'static str, error: StoreError) -> Self {
        Self(State::Known(Some(Err(Rejection::Unavailable { name, error }))))
    }

    /// The answer to a cost that is above the capacity.
    pub(crate) fn never(limit: &Limit, cost: u32) -> Self {
        let (name, capacity) = (limit.name(), limit.capacity());
        Self(State::Known(Some(Err(Rejection::CostExceedsCapacity { name, cost, capacity }))))
    }
}

impl Future for Question {
    type Output = Finding;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Finding> {
        let (name, refuses, answer) = match &mut self.0 {
            State::Known(finding) => {
                return Poll::Ready(finding.take().expect("polled after it was ready"));
            }
            State::Waits(answer) => return answer.as_mut().poll(context),
            State::Asked { refuses, name, quota, capacity, answer } => {
                let (name, quota, capacity) = (*name, *quota, *capacity);
                let answer = ready!(Pin::new(answer).poll(context));
                let verdict = |it| Verdict { name, quota, decision: Decision::new(capacity, it) };
                (name, *refuses, answer.map(verdict))
            }
            State::AskedAll { name, answer } => {
                (*name, true, ready!(Pin::new(answer).poll(context)))
            }
        };
        Poll::Ready(match answer {
            Ok(Verdict { name, quota, decision }) if refuses && !decision.allowed => {
                Err(Rejection::Limited { name, quota, decision })
            }
            Ok(verdict) => Ok(verdict),
            Err(error) => Err(Rejection::Unavailable { name, error }),
        })
    }
}
