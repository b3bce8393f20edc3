//! Waiting for a permit: first come, first served, in time or not at all, and nothing taken by those
//! who leave.
//!
//! A bucket knows when it will admit a call, so a call books that moment and sleeps until then:
//! `slots`. For the other algorithms, and for several limits together, calls stand in line within
//! this process, and the first asks: `line`.

mod line;
mod slots;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::algorithm::Op;
use crate::clock::Clock;
use crate::decision::Source;
use crate::error::StoreError;
use crate::key::{KeyWriter, Written};
use crate::limit::{BucketLimit, Limit};
use crate::limiter::RateLimiter;
use crate::part::Charge;
use crate::question::{Finding, Question};
use crate::rejection::Rejection;

/// The calls of a limiter that wait.
#[derive(Default)]
pub(crate) struct Waiters {
    lines: line::Lines,
    slots: slots::Slots,
}

/// A call that waits: everything needed to ask for it again.
#[derive(Clone)]
pub(crate) struct Wanted {
    limiter: RateLimiter,
    parts: Vec<(Limit, Written, u32)>,
    place: u128,
    wait: Duration,
}

impl Wanted {
    pub(crate) fn new(limiter: &RateLimiter, parts: &[Charge<'_>], wait: Duration) -> Self {
        let place = |part: &Charge<'_>| limiter.local().place(part.limit, part.key);
        Self {
            limiter: limiter.clone(),
            parts: parts
                .iter()
                .map(|part| (part.limit.patient(None), KeyWriter::written(part.key), part.cost))
                .collect(),
            place: parts.iter().map(place).fold(0, |all, one| all.rotate_left(1) ^ one),
            wait,
        }
    }

    /// Waits until the call is admitted, or it is clear that it will not be in time.
    pub(crate) async fn admitted(self) -> Finding {
        if !self.clock().can_sleep() {
            let name = self.parts.first().map_or("", |(limit, ..)| limit.name());
            return Err(Rejection::Unavailable { name, error: StoreError::NoRuntime });
        }
        let wait = u64::try_from(self.wait.as_micros()).unwrap_or(u64::MAX);
        let deadline = self.clock().local().saturating_add(wait);
        match &self.parts[..] {
            [(limit, key, cost)] => match BucketLimit::of(limit) {
                Some(limit) => slots::admitted(&self, &limit, key, *cost, deadline).await,
                None => line::admitted(&self, limit, *cost, deadline).await,
            },
            [(limit, _, cost), ..] => line::admitted(&self, limit, *cost, deadline).await,
            [] => self.ask().await,
        }
    }

    fn clock(&self) -> &Clock {
        self.limiter.local().clock()
    }

    fn ask(&self) -> Question {
        let parts = self.parts();
        match &parts[..] {
            [part] => self.limiter.ask(Op::Decide, part.limit, part.key, part.cost),
            parts => self.limiter.ask_all(parts),
        }
    }

    fn parts(&self) -> Vec<Charge<'_>> {
        self.parts.iter().map(|(limit, key, cost)| Charge::new(limit, key, *cost)).collect()
    }

    /// Gives back what `source` charged, and nobody used.
    async fn refund(self, source: Source) {
        for (limit, key, cost) in &self.parts {
            // Nobody is left to hear of a failure.
            let _ = self.limiter.give_back(source, Op::Refund, limit, key, *cost).await;
        }
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A question whose answer is undone if nobody waits for it any more.
struct InFlight<T: Send + 'static> {
    answer: Option<Boxed<T>>,
    undo: Option<Box<dyn FnOnce(T) -> Boxed<()> + Send>>,
}

impl<T: Send + 'static> InFlight<T> {
    fn new<D: Future<Output = ()> + Send + 'static>(
        answer: impl Future<Output = T> + Send + 'static,
        undo: impl FnOnce(T) -> D + Send + 'static,
    ) -> Self {
        let undo = Box::new(|answer| Box::pin(undo(answer)) as Boxed<()>);
        Self { answer: Some(Box::pin(answer)), undo: Some(undo) }
    }
}

impl<T: Send + 'static> Future for InFlight<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let answer = self.answer.as_mut().expect("polled after it was ready");
        let answer = std::task::ready!(answer.as_mut().poll(context));
        self.answer = None;
        Poll::Ready(answer)
    }
}

impl<T: Send + 'static> Drop for InFlight<T> {
    fn drop(&mut self) {
        if let (Some(answer), Some(undo)) = (self.answer.take(), self.undo.take())
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async { undo(answer.await).await });
        }
    }
}

/// What `work` gives, if that is before `end`.
pub(crate) async fn before<T>(
    end: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let (mut end, mut work) = (pin!(end), pin!(work));
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        end.as_mut().poll(context).map(|()| None)
    })
    .await
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
