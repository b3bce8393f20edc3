//! How a limiter asks the store of a limit, and what it does when that fails.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{Inner, RateLimiter};
use crate::algorithm::Op;
use crate::check::Answer;
use crate::decision::{Answered, Decision, Source, Verdict};
use crate::error::StoreError;
use crate::key::{Key, Written};
use crate::limit::{Limit, OnError};
use crate::part::Charge;
use crate::question::Question;
use crate::report;
use crate::store::Store;

/// How long failures go on without being said again.
const QUIET: Duration = Duration::from_secs(10);

impl RateLimiter {
    /// Asks once, whether the limit would have the call wait or not.
    pub(crate) fn ask(&self, op: Op, limit: &Limit, key: &dyn Key, cost: u32) -> Question {
        if cost > limit.capacity() {
            return Question::never(limit, cost);
        }
        Question::new(op, limit, self.decide(op, limit, key, cost))
    }

    /// Asks once about several limits, of which no two have one count.
    pub(crate) fn ask_all(&self, parts: &[Charge<'_>]) -> Question {
        let Some(first) = parts.first().map(|part| part.limit) else {
            return Question::failed("", StoreError::NoLimits);
        };
        if let Some(part) = parts.iter().find(|part| part.cost > part.limit.capacity()) {
            return Question::never(part.limit, part.cost);
        }
        let mut asks = self.inner.local.asks(parts);
        let Some(shared) = self.shared(first) else {
            let verdict = self.inner.local.apply_all_at(&asks, Source::Embedded);
            return Question::all(first, Answer::ready(verdict.ok_or(StoreError::NoLimits)));
        };
        let answer = shared.apply_all(parts, &|| {
            let places: Vec<_> = asks.iter().map(|ask| ask.place).collect();
            let limiter = self.downgrade();
            Box::new(move || {
                if let Some(limiter) = limiter() {
                    for place in places {
                        limiter.inner.refusals.forget(place);
                    }
                }
            })
        });
        let on_error = self.on_error(first);
        for ask in &mut asks {
            ask.limit = ask.limit.share(self.inner.instances);
            ask.cost = ask.cost.min(ask.limit.capacity());
        }
        let (limiter, limit) = (self.clone(), *first);
        Question::all(
            first,
            Answer::later(async move {
                let answer = answer.await;
                limiter.inner.note(&limit, on_error, &answer);
                answer.or_else(|error| match on_error {
                    OnError::Local => {
                        limiter.inner.local.apply_all_at(&asks, Source::Fallback).ok_or(error)
                    }
                    OnError::Allow => {
                        Ok(Verdict::new(&limit, Decision::undecided(limit.capacity())))
                    }
                    OnError::Deny => Err(error),
                })
            }),
        )
    }

    /// The refusal of the shared store that still holds for this call.
    pub(crate) fn refused_before(&self, limit: &Limit, place: u128, cost: u32) -> Option<Answered> {
        if cost != 1 || limit.is_shadow() {
            return None;
        }
        self.inner.refusals.of(place, limit, self.inner.local.clock().local())
    }

    /// Asks the store of the limit; where that is the shared one and it fails, does what the limit
    /// says about that.
    pub(crate) fn decide(
        &self,
        op: Op,
        limit: &Limit,
        key: &dyn Key,
        cost: u32,
    ) -> Answer<Answered> {
        self.decide_at(self.inner.local.place(limit, key), op, limit, key, cost)
    }

    /// The same, with the place of the key looked up.
    pub(super) fn decide_at(
        &self,
        place: u128,
        op: Op,
        limit: &Limit,
        key: &dyn Key,
        cost: u32,
    ) -> Answer<Answered> {
        let Some(shared) = self.shared(limit) else {
            let outcome = self.inner.local.apply_at(place, op, limit, cost);
            return Answer::ready(Ok(Answered { outcome, source: self.inner.local.source() }));
        };
        let answer = shared.apply(op, limit, key, cost);
        // The key does not live as long as the answer takes; its place does.
        let (limiter, limit) = (self.clone(), *limit);
        Answer::later(async move {
            let answer = limiter.hear(place, op, &limit, cost, answer).await;
            answer.or_else(|error| limiter.fall_back(place, op, &limit, cost, error))
        })
    }

    /// Waits for the shared store, and keeps in mind what it says.
    async fn hear(
        &self,
        place: u128,
        op: Op,
        limit: &Limit,
        cost: u32,
        answer: Answer<Answered>,
    ) -> Result<Answered, StoreError> {
        let (clock, refusals) = (self.inner.local.clock(), &self.inner.refusals);
        let sent = refusals.send(clock.local());
        let answer = answer.await;
        match &answer {
            Ok(answer) if op == Op::Decide => {
                refusals.told(place, limit, cost, sent, clock.local(), *answer);
            }
            _ if op.gives_back() => refusals.forget(place),
            _ => {}
        }
        self.inner.note(limit, self.on_error(limit), &answer);
        answer
    }

    /// What the limit says about a shared store that has failed.
    pub(crate) fn fall_back(
        &self,
        place: u128,
        op: Op,
        limit: &Limit,
        cost: u32,
        error: StoreError,
    ) -> Result<Answered, StoreError> {
        match self.on_error(limit) {
            OnError::Local => {
                let limit = limit.share(self.inner.instances);
                // A call that costs more than the share takes all of it.
                let cost = cost.min(limit.capacity());
                let outcome = self.inner.local.apply_at(place, op, &limit, cost);
                Ok(Answered { outcome, source: Source::Fallback })
            }
            OnError::Allow if !op.gives_back() => Ok(Answered::undecided()),
            _ => Err(error),
        }
    }

    /// Asks the shared store for a lease, and nobody else when that fails.
    pub(crate) async fn ask_lease(
        &self,
        limit: &Limit,
        key: &Written,
        cost: u32,
    ) -> Result<Answered, StoreError> {
        let Some(shared) = self.shared(limit) else { return Err(StoreError::NoLimits) };
        let place = self.inner.local.place(limit, key);
        let answer = shared.apply(Op::Decide, limit, key, cost);
        self.hear(place, Op::Decide, limit, cost, answer).await
    }

    pub(super) fn on_error(&self, limit: &Limit) -> OnError {
        limit.policy().unwrap_or(self.inner.on_error)
    }

    #[inline]
    pub(super) fn shared(&self, limit: &Limit) -> Option<&dyn Store> {
        self.inner.shared.as_deref().filter(|_| !limit.counts_in_process())
    }
}

impl Inner {
    /// Says that the shared store does not decide, and that it decides again; each no more than once
    /// in [`QUIET`], however many calls fail.
    pub(super) fn note<T>(&self, limit: &Limit, on_error: OnError, answer: &Result<T, StoreError>) {
        let said = self.said.load(Relaxed);
        if said == 0 && answer.is_ok() {
            return;
        }
        let now = self.local.clock().local();
        match answer {
            Err(error) if Self::is_quiet(said, now) => {
                let exchange = self.said.compare_exchange(said, now.max(1), Relaxed, Relaxed);
                if exchange.is_ok() {
                    let error = report::Keyless(error);
                    tracing::warn!(limit = limit.name(), ?on_error, %error, "Redis does not decide");
                }
            }
            Ok(_)
                if Self::is_quiet(said, now)
                    && self.said.compare_exchange(said, 0, Relaxed, Relaxed).is_ok() =>
            {
                tracing::info!("Redis decides again");
            }
            _ => {}
        }
    }

    fn is_quiet(said: u64, now: u64) -> bool {
        said == 0 || now.saturating_sub(said) >= QUIET.as_micros() as u64
    }
}
