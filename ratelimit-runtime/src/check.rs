//! The futures of a limiter. They own what they need, are `Send`, and are ready at once when the
//! embedded store decided.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::decision::{Answered, Decision, Source, Verdict};
use crate::error::StoreError;
use crate::limit::{Limit, Quota};
use crate::question::{Finding, Question};
use crate::rejection::Rejection;
use crate::report::Report;

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
pub struct Check(Stage);

/// A call being checked by who does not ask for more than whether it goes on.
#[must_use = "futures do nothing unless polled"]
pub struct Pass(Check);

enum Stage {
    /// Admitted at once, as the embedded store does.
    Admitted(Admitted),
    /// Decided at once.
    Told(Told),
    Asked(Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send>>),
}

/// A call that was admitted, in as few words as there are. The durations of a [`Decision`] are made
/// when it is asked for, so that whoever does not look at them does not pay for them.
#[derive(Clone, Copy)]
struct Admitted {
    source: Source,
    capacity: u32,
    remaining: u32,
    reset_us: u64,
}

/// What a store told about a limit.
#[derive(Clone, Copy)]
struct Told {
    /// Whether that is a rejection.
    refused: bool,
    allowed: bool,
    source: Source,
    capacity: u32,
    remaining: u32,
    retry_us: u64,
    reset_us: u64,
    name: &'static str,
    quota: Quota,
}

struct Asked {
    question: Question,
    capacity: u32,
    /// Every call goes on.
    shadow: bool,
    /// Told of the end; nobody hears of a peek.
    report: Option<Report>,
}

impl Check {
    /// A call under `limit` that was decided.
    #[inline]
    pub(crate) fn decided(report: Report, limit: &Limit, answered: Answered) -> Self {
        let told = Told::new(limit, answered);
        report.end_if_heard(limit.is_shadow(), || told.finding());
        Self::told(limit, told)
    }

    /// A call under `limit` that was admitted, of which nobody hears.
    #[inline]
    pub(crate) fn admitted_unheard(
        limit: &Limit,
        remaining: u32,
        reset_us: u64,
        source: Source,
    ) -> Self {
        Self(Stage::Admitted(Admitted { source, capacity: limit.capacity(), remaining, reset_us }))
    }

    /// A call under `limit` that was decided, of which nobody hears.
    #[inline]
    pub(crate) fn unheard(limit: &Limit, answered: Answered) -> Self {
        Self::told(limit, Told::new(limit, answered))
    }

    #[inline]
    fn told(limit: &Limit, told: Told) -> Self {
        Self(Stage::Told(Told { refused: told.refused && !limit.is_shadow(), ..told }))
    }

    /// A call under `limit` that was admitted.
    pub(crate) fn admitted(report: Report, limit: &Limit, decision: Decision) -> Self {
        report.end(&Ok(Verdict::new(limit, decision)), limit.is_shadow());
        let Decision { source, limit: capacity, remaining, reset_after, .. } = decision;
        let reset_us = reset_after.as_micros() as u64;
        Self(Stage::Admitted(Admitted { source, capacity, remaining, reset_us }))
    }

    /// A call under `limit`, reported once it is answered.
    pub(crate) fn new(report: Report, limit: &Limit, question: Question) -> Self {
        Self::asked(limit, question, Some(report))
    }

    /// A look at `limit`.
    pub(crate) fn peek(limit: &Limit, question: Question) -> Self {
        Self::asked(limit, question, None)
    }

    /// A look at `limit` that was answered.
    pub(crate) fn peeked(limit: &Limit, answered: Answered) -> Self {
        Self(Stage::Told(Told { refused: false, ..Told::new(limit, answered) }))
    }

    fn asked(limit: &Limit, question: Question, report: Option<Report>) -> Self {
        let (capacity, shadow) = (limit.capacity(), limit.is_shadow());
        Self(Stage::Asked(Box::pin(Asked { question, capacity, shadow, report })))
    }

    #[inline]
    pub(crate) fn pass(self) -> Pass {
        Pass(self)
    }

    /// A call under `limit` that nobody can decide.
    pub(crate) fn undecided(limit: &Limit, error: StoreError) -> Self {
        let question = Question::failed(limit.name(), error);
        Self::new(Report::begin(), limit, question)
    }

    /// A call that cannot be asked about, whatever its limits say.
    pub(crate) fn failed(name: &'static str, error: StoreError) -> Self {
        let (question, report) = (Question::failed(name, error), Some(Report::begin()));
        Self(Stage::Asked(Box::pin(Asked { question, capacity: 0, shadow: false, report })))
    }
}

impl Future for Check {
    type Output = Result<Decision, Rejection>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Stage::Admitted(admitted) => Poll::Ready(Ok(admitted.decision())),
            Stage::Told(told) => Poll::Ready(told.answer()),
            Stage::Asked(asked) => {
                // A place of its own, or the answers above would go through memory as well.
                let mut answer = Poll::Pending;
                poll_into(asked.as_mut(), context, &mut answer);
                answer
            }
        }
    }
}

impl Future for Pass {
    type Output = Result<(), Rejection>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self(check) = &mut *self;
        Pin::new(check).poll(context).map_ok(drop)
    }
}

#[inline(never)]
fn poll_into<F: Future + ?Sized>(
    future: Pin<&mut F>,
    context: &mut Context<'_>,
    answer: &mut Poll<F::Output>,
) {
    *answer = future.poll(context);
}

impl Admitted {
    #[inline]
    fn decision(&self) -> Decision {
        Decision {
            allowed: true,
            limit: self.capacity,
            remaining: self.remaining,
            retry_after: Duration::ZERO,
            reset_after: Duration::from_micros(self.reset_us),
            source: self.source,
        }
    }
}

impl Told {
    #[inline]
    fn new(limit: &Limit, Answered { outcome, source }: Answered) -> Self {
        Self {
            refused: !outcome.allowed,
            allowed: outcome.allowed,
            source,
            capacity: limit.capacity(),
            remaining: outcome.remaining,
            retry_us: outcome.retry_us,
            reset_us: outcome.reset_us,
            name: limit.name(),
            quota: limit.quota(),
        }
    }

    #[inline]
    fn decision(&self) -> Decision {
        Decision {
            allowed: self.allowed,
            limit: self.capacity,
            remaining: self.remaining,
            retry_after: Duration::from_micros(self.retry_us),
            reset_after: Duration::from_micros(self.reset_us),
            source: self.source,
        }
    }

    #[inline]
    fn answer(&self) -> Result<Decision, Rejection> {
        if self.refused { Err(self.rejection()) } else { Ok(self.decision()) }
    }

    #[inline]
    fn rejection(&self) -> Rejection {
        Rejection::Limited { name: self.name, quota: self.quota, decision: self.decision() }
    }

    fn finding(&self) -> Finding {
        let Self { name, quota, .. } = *self;
        if self.refused {
            return Err(self.rejection());
        }
        Ok(Verdict { name, quota, decision: self.decision() })
    }
}

impl Future for Asked {
    type Output = Result<Decision, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let finding = ready!(Pin::new(&mut self.question).poll(context));
        let is_peek = self.report.is_none();
        if let Some(report) = self.report.take() {
            report.end(&finding, self.shadow);
        }
        Poll::Ready(match finding {
            Ok(verdict) => Ok(verdict.decision),
            Err(rejection) if !self.shadow => Err(rejection),
            Err(Rejection::Limited { decision, .. }) => Ok(decision),
            Err(Rejection::CostExceedsCapacity { capacity, .. }) => Ok(Decision::never(capacity)),
            Err(unavailable) if is_peek => Err(unavailable),
            Err(Rejection::Unavailable { .. }) => Ok(Decision::undecided(self.capacity)),
        })
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").finish_non_exhaustive()
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").finish_non_exhaustive()
    }
}
