//! Refusals of a shared store that still hold: a caller who hammers is refused here, without asking.
//!
//! A call that costs 1 is refused until the wait of its refusal is over, whatever others do, unless
//! somebody gives units back. What is given back through this limiter is seen at once; what is given
//! back elsewhere, or deleted, when the memory of the refusal ends, which is after a second at most.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::algorithm::Outcome;
use crate::decision::{Answered, Source};
use crate::limit::Limit;

/// How many are remembered at most; a power of two. Another one in its place ends one.
const PLACES: usize = 1024;

/// How long one is remembered at most, in microseconds.
const MEMORY: u64 = 1_000_000;

pub(crate) struct Refusals {
    places: Box<[Mutex<Option<Refusal>>]>,
    /// How often units were given back.
    returns: AtomicU64,
}

struct Refusal {
    place: u128,
    limit: Limit,
    outcome: Outcome,
    /// When it was told, by the clock of this process.
    told: u64,
    /// Until when it surely holds.
    until: u64,
}

/// A question that was sent.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    at: u64,
    returns: u64,
}

impl Refusals {
    /// Remembers refusals, or none.
    pub(crate) fn new(remembers: bool) -> Self {
        let places = if remembers { PLACES } else { 0 };
        Self { places: (0..places).map(|_| Mutex::new(None)).collect(), returns: AtomicU64::new(0) }
    }

    /// What a call of cost 1 is told if it need not ask.
    pub(crate) fn of(&self, place: u128, limit: &Limit, now: u64) -> Option<Answered> {
        let slot = self.places.get((place >> 64) as usize % PLACES)?;
        let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let refusal = slot.as_ref()?;
        let holds = (refusal.told..refusal.until).contains(&now)
            && refusal.place == place
            && refusal.limit == *limit;
        holds.then(|| {
            let passed = now - refusal.told;
            let outcome = Outcome {
                retry_us: refusal.outcome.retry_us - passed,
                reset_us: refusal.outcome.reset_us.saturating_sub(passed),
                ..refusal.outcome
            };
            Answered { outcome, source: Source::Cache }
        })
    }

    /// A question is about to be sent.
    pub(crate) fn send(&self, now: u64) -> Sent {
        Sent { at: now, returns: self.returns.load(Ordering::SeqCst) }
    }

    /// The answer to a call came.
    pub(crate) fn told(
        &self,
        place: u128,
        limit: &Limit,
        cost: u32,
        sent: Sent,
        now: u64,
        Answered { outcome, source }: Answered,
    ) {
        let Some(slot) = self.places.get((place >> 64) as usize % PLACES) else { return };
        if outcome.allowed {
            // Only after a clock that steps back is there anything to forget: others wait longer now.
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
            return;
        }
        if cost != 1 || source != Source::Redis {
            return;
        }
        // The store decided between the two moments, by a clock that may run a little faster.
        let surely = outcome.retry_us - outcome.retry_us / 1_000;
        let until = (sent.at + surely).min(now + MEMORY);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        // What was given back meanwhile may have been given back after the answer.
        if sent.returns == self.returns.load(Ordering::SeqCst) && until > now {
            *slot = Some(Refusal { place, limit: *limit, outcome, told: now, until });
        }
    }

    /// Units of the key at `place` are given back.
    pub(crate) fn forget(&self, place: u128) {
        self.returns.fetch_add(1, Ordering::SeqCst);
        if let Some(slot) = self.places.get((place >> 64) as usize % PLACES) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}
