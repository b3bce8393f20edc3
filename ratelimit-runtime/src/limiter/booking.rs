//! Books moments of buckets ahead for waiting calls, and gives back the moments of calls that leave.

use super::RateLimiter;
use crate::algorithm::BucketOp;
use crate::check::Answer;
use crate::decision::{Answered, Source};
use crate::key::Key;
use crate::limit::{BucketLimit, OnError};

impl RateLimiter {
    /// Books a moment at most `wait` microseconds ahead. Where the shared store fails, does what the limit
    /// says about that.
    pub(crate) fn book(
        &self,
        limit: &BucketLimit,
        key: &dyn Key,
        cost: u32,
        wait: u64,
    ) -> Answer<Answered> {
        let (place, op) = (self.inner.local.place(limit, key), BucketOp::Book { wait });
        let Some(shared) = self.shared(limit) else {
            return Answer::ready(Ok(self.inner.local.apply_ahead(place, op, limit, cost)));
        };
        let answer = shared.apply_ahead(op, limit, key, cost);
        let (limiter, limit) = (self.clone(), *limit);
        Answer::later(async move {
            let answer = answer.await;
            let on_error = limiter.on_error(&limit);
            limiter.inner.note(&limit, on_error, &answer);
            answer.or_else(|error| match on_error {
                OnError::Local => {
                    let limit = limit.share(limiter.inner.instances);
                    let cost = cost.min(limit.capacity());
                    let answered = limiter.inner.local.apply_ahead(place, op, &limit, cost);
                    Ok(Answered { source: Source::Fallback, ..answered })
                }
                OnError::Allow => Ok(Answered::undecided()),
                OnError::Deny => Err(error),
            })
        })
    }

    /// Gives back to `source` the moment `slot`, which was booked and is not needed.
    pub(crate) fn unbook(
        &self,
        source: Source,
        limit: &BucketLimit,
        key: &dyn Key,
        cost: u32,
        slot: u64,
    ) -> Answer<Answered> {
        let op = BucketOp::Unbook { slot };
        let local = |limit: &BucketLimit, cost| {
            let place = self.inner.local.place(limit, key);
            Answer::ready(Ok(self.inner.local.apply_ahead(place, op, limit, cost)))
        };
        match self.shared(limit) {
            Some(shared) if source == shared.source() => {
                self.and_forget(limit, key, shared.apply_ahead(op, limit, key, cost))
            }
            // As it was booked.
            Some(_) => {
                let limit = limit.share(self.inner.instances);
                local(&limit, cost.min(limit.capacity()))
            }
            None => local(limit, cost),
        }
    }
}
