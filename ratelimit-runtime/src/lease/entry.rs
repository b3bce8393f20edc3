//! What is held of one key, and who waits for more of it.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::runtime::Id;
use tokio::sync::oneshot;

use super::Landed;
use crate::algorithm::Outcome;
use crate::decision::{Answered, Decision, Source};
use crate::error::StoreError;
use crate::key::Written;
use crate::limit::Limit;

/// What is leased: a key under the limit by which leases are charged.
pub(super) struct Target {
    pub(super) limit: Limit,
    pub(super) key: Written,
    /// How many units may be held.
    pub(super) permits: u32,
    pub(super) term_us: u64,
}

pub(super) struct Entry {
    pub(super) target: Arc<Target>,
    pub(super) held: Held,
    pub(super) waiting: VecDeque<Waiter>,
    /// How many calls have waited.
    pub(super) arrivals: u64,
    /// So many of those that wait were there when the store was asked.
    pub(super) boarded: usize,
    /// The runtime on which the store is being asked. It may stand still: those of others do not wait.
    pub(super) flying: Option<Id>,
    /// The key was reset while the store was asked.
    pub(super) reset: bool,
    /// Until when nothing is leased, because the store has refused.
    pub(super) paused: u64,
    /// Its end is waited for.
    pub(super) watched: bool,
}

/// What is left of a charge.
#[derive(Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) units: u32,
    /// How many were charged.
    pub(super) of: u32,
    /// When, by the clock of the store.
    pub(super) at: u64,
    /// When they were asked for, and when they must be spent, by the clock of this process.
    pub(super) sent: u64,
    pub(super) until: u64,
    /// What the store said.
    pub(super) remaining: u32,
    pub(super) reset_us: u64,
}

pub(super) struct Waiter {
    pub(super) arrival: u64,
    pub(super) cost: u32,
    pub(super) answer: oneshot::Sender<Landed>,
}

/// Units to give back.
pub(super) struct Rest {
    pub(super) target: Arc<Target>,
    pub(super) units: u32,
    pub(super) at: u64,
}

/// What the store is to be asked for.
pub(super) struct Ask {
    pub(super) target: Arc<Target>,
    pub(super) size: u32,
    /// What was held before.
    pub(super) rest: Option<Rest>,
}

/// What a caller gets, once the ledger is free again.
pub(super) struct Given {
    pub(super) to: oneshot::Sender<Landed>,
    pub(super) what: What,
}

pub(super) enum What {
    Units { decision: Decision, units: Rest },
    Refusal(Answered),
    Failure(StoreError),
    Nothing,
}

impl Entry {
    pub(super) fn new(target: Arc<Target>) -> Self {
        let (held, waiting) = (Held::default(), VecDeque::new());
        let (flying, reset, paused, watched) = (None, false, 0, false);
        Self { target, held, waiting, arrivals: 0, boarded: 0, flying, reset, paused, watched }
    }

    pub(super) fn take(&mut self, cost: u32, now: u64) -> Option<Decision> {
        if cost > self.held.spendable(now) {
            return None;
        }
        self.held.units -= cost;
        Some(self.decision(now, Source::Lease))
    }

    /// What is said of a unit that was spent.
    pub(super) fn decision(&self, now: u64, source: Source) -> Decision {
        let Held { units, at: clock, sent, remaining, reset_us, .. } = self.held;
        let capacity = self.target.limit.capacity();
        let outcome = Outcome {
            clock,
            allowed: true,
            remaining: remaining.saturating_add(units).min(capacity),
            retry_us: 0,
            reset_us: reset_us.saturating_sub(now.saturating_sub(sent)),
        };
        Decision::new(capacity, Answered { outcome, source })
    }

    pub(super) fn gives(&self, first: Waiter, decision: Decision) -> Given {
        let (target, units, at) = (Arc::clone(&self.target), first.cost, self.held.at);
        let units = Rest { target, units, at };
        Given { to: first.answer, what: What::Units { decision, units } }
    }

    pub(super) fn rest(&mut self) -> Option<Rest> {
        let Held { units, at, .. } = self.held;
        self.held.units = 0;
        Rest::of(Arc::clone(&self.target), units, at)
    }

    /// What to ask for: as much as those that wait need, and twice what was spent of the last.
    pub(super) fn ask(&mut self, now: u64) -> Option<Ask> {
        let own = self.waiting.front()?.cost;
        let Held { units, of, until, .. } = self.held;
        let spent = of.saturating_sub(units);
        let is_idle = of == 0 || now >= until && spent < of / 2;
        let ahead = if is_idle { own } else { spent.saturating_mul(2).min(self.target.permits) };
        let wanted = self.waiting.iter().filter(|it| it.is_there());
        let wanted = wanted.fold(0_u32, |sum, waiter| sum.saturating_add(waiter.cost));
        let size = wanted.max(ahead).min(self.target.limit.capacity()).max(own);
        self.boarded = self.waiting.len();
        // Only what is asked for from here on can be charged before a reset.
        self.reset = false;
        let rest = self.rest();
        self.held = Held { until, ..Held::default() };
        Some(Ask { target: Arc::clone(&self.target), size, rest })
    }
}

impl Held {
    pub(super) fn spendable(&self, now: u64) -> u32 {
        if (self.sent..self.until).contains(&now) { self.units } else { 0 }
    }
}

impl Rest {
    pub(super) fn of(target: Arc<Target>, units: u32, at: u64) -> Option<Self> {
        (units > 0).then_some(Self { target, units, at })
    }
}

impl Waiter {
    pub(super) fn is_there(&self) -> bool {
        !self.answer.is_closed()
    }
}
