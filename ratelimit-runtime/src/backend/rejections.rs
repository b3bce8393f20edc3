//! The rejection cache: rejections of the shared store that still hold. A client that retries too early is
//! rejected from the cache, without a request.
//!
//! A rejected call of cost 1 stays rejected until its `retry_after` has passed, whatever other calls do,
//! unless units are given back. The cache observes at once what this limiter gives back. What another
//! process gives back or deletes takes effect here when the entry expires, after a second at most.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::algorithm::Outcome;
use crate::key::KeyId;
use crate::limit::Terms;
use crate::reply::Source;
use crate::store::{Charge, Reply};

/// The number of entries; a power of two. An entry replaces the one before it in its slot.
const SLOTS: usize = 1024;

/// How long an entry is kept at most, in microseconds.
const LIFETIME: u64 = 1_000_000;

pub(crate) struct RejectionCache {
    slots: Box<[Mutex<Option<CachedRejection>>]>,
    /// Counts the give-backs.
    returns: AtomicU64,
}

struct CachedRejection {
    key_id: KeyId,
    terms: Terms,
    outcome: Outcome,
    /// When the reply came, by the clock of this process.
    received: u64,
    /// Until when the rejection certainly holds.
    until: u64,
}

/// The time of a request, by the clock of this process, and the give-backs before it.
#[derive(Clone, Copy)]
pub(super) struct RequestStamp {
    sent: u64,
    returns: u64,
}

impl RejectionCache {
    pub(super) fn new(is_enabled: bool) -> Self {
        let slots = if is_enabled { SLOTS } else { 0 };
        Self { slots: (0..slots).map(|_| Mutex::new(None)).collect(), returns: AtomicU64::new(0) }
    }

    /// Returns the rejection of a call of cost 1 if one is cached at the time `now`.
    pub(super) fn get(&self, terms: &Terms, key_id: KeyId, now: u64) -> Option<Reply> {
        let slot = self.slot(key_id)?.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = slot.as_ref()?;
        let holds = (cached.received..cached.until).contains(&now)
            && cached.key_id == key_id
            && cached.terms == *terms;
        holds.then(|| {
            let passed = now - cached.received;
            let outcome = Outcome {
                retry_us: cached.outcome.retry_us - passed,
                reset_us: cached.outcome.reset_us.saturating_sub(passed),
                ..cached.outcome
            };
            Reply::one(outcome, Source::Cache)
        })
    }

    /// Marks the time just before a request is sent.
    pub(super) fn stamp(&self, now: u64) -> RequestStamp {
        RequestStamp { sent: now, returns: self.returns.load(Ordering::SeqCst) }
    }

    /// Caches the outcome of a decision if it is a rejection that Redis made.
    pub(super) fn record(
        &self,
        charge: &Charge,
        stamp: RequestStamp,
        now: u64,
        outcome: &Outcome,
        source: Source,
    ) {
        let Some(slot) = self.slot(charge.key_id) else { return };
        if outcome.allowed {
            // An entry can exist only if the clock stepped back: other calls wait longer now.
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
            return;
        }
        if charge.cost != 1 || source != Source::Redis {
            return;
        }
        // The store decided between `sent` and now, by a clock that may run a little faster.
        let certain = outcome.retry_us - outcome.retry_us / 1_000;
        let until = (stamp.sent + certain).min(now + LIFETIME);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        // A give-back since the request may have come after the decision.
        if stamp.returns == self.returns.load(Ordering::SeqCst) && until > now {
            *slot = Some(CachedRejection {
                key_id: charge.key_id,
                terms: charge.terms.clone(),
                outcome: *outcome,
                received: now,
                until,
            });
        }
    }

    /// Removes the rejection of a count that was given units back.
    pub(crate) fn forget(&self, key_id: KeyId) {
        self.returns.fetch_add(1, Ordering::SeqCst);
        if let Some(slot) = self.slot(key_id) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    fn slot(&self, key_id: KeyId) -> Option<&Mutex<Option<CachedRejection>>> {
        self.slots.get((key_id.bits() >> 64) as usize % SLOTS)
    }
}
