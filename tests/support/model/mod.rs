//! The reference model: the semantics of the five algorithms, written as plainly as possible. Tests compare
//! each decision of the embedded store and of Redis with the decision of the model.
//!
//! The model shares no code with the stores, and is slow on purpose. It keeps each admitted call, as far as it counts
//! or can be settled, or an exact fraction. It has one rule for each algorithm, `Model::admits`, and derives the rest
//! by search: `remaining` is the largest cost that the rule admits now, `retry_after` the shortest wait after which
//! the rule admits the call, and `reset_after` the shortest wait after which no earlier call counts.
//!
//! A new algorithm is a variant of `State` and a rule in `Model::admits`; `tests/stores/decisions/parity/` plays it.
//!
//! Times are microseconds since the epoch. A parameter named `clock` is the time of the limiter's clock, which
//! can step back; a variable named `now` is the time of the key, which cannot.

mod give_back;
mod state;

use std::time::Duration;

use ratelimit_runtime::{Decision, Limit};

use self::state::{Bucket, BucketCharge, State};

/// The largest threshold under which a sliding window has a record for each time.
const EXACT: u64 = 1_000;

/// The decision that a store has to make: the fields of a [`Decision`] that do not depend on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedDecision {
    pub allowed: bool,
    pub remaining: u64,
    pub retry_after: Duration,
    pub reset_after: Duration,
}

impl ExpectedDecision {
    /// Derives a decision by search. `admits` says after a wait whether a cost is admitted, and `is_unused` whether
    /// nothing counts.
    pub(crate) fn derive(
        capacity: u64,
        cost: u64,
        admits: impl Fn(u64, u64) -> bool,
        is_unused: impl Fn(u64) -> bool,
    ) -> Self {
        let allowed = admits(0, cost);
        let retry_after = if allowed { 0 } else { first(|wait| admits(wait, cost)) };
        Self {
            allowed,
            remaining: first(|cost| cost >= capacity || !admits(0, cost + 1)),
            retry_after: Duration::from_micros(retry_after),
            reset_after: Duration::from_micros(first(is_unused)),
        }
    }
}

/// Returns the first number for which `holds`, given that it holds for all greater numbers.
fn first(holds: impl Fn(u64) -> bool) -> u64 {
    // No wait is longer: 2^52 microseconds are more than 140 years.
    let (mut low, mut high) = (0_u64, 1_u64 << 52);
    while low < high {
        let middle = low.midpoint(high);
        (low, high) = if holds(middle) { (low, middle) } else { (middle + 1, high) };
    }
    low
}

impl From<Decision> for ExpectedDecision {
    fn from(decision: Decision) -> Self {
        let Decision { allowed, remaining, retry_after, reset_after, .. } = decision;
        Self { allowed, remaining, retry_after, reset_after }
    }
}

/// The count of one key under the limits of one name, algorithm, period and align. Their threshold and burst
/// may differ from call to call.
#[derive(Clone, Debug)]
pub struct Model {
    /// The limit of the latest call.
    limit: Limit,
    /// The offset of aligned windows from UTC, in minutes.
    align: Option<i64>,
    state: State,
    /// How often the key was as if it had never been used. A charge of another time cannot be settled.
    births: u64,
    charged: u64,
    /// When the key was blocked, and when it opens or has opened. A blocked key admits nothing; all else goes on.
    blocks: Vec<(u64, u64)>,
}

/// A charge that can be settled.
#[derive(Clone, Copy, Debug)]
pub struct ModelReceipt {
    birth: u64,
    number: u64,
    /// The time of the key.
    at: u64,
    cost: u64,
}

impl Model {
    /// The count of a key that was never used. `align` is the offset of aligned windows from UTC in minutes.
    pub fn new(limit: &Limit, align: Option<i64>) -> Self {
        let state = State::unused(limit.algorithm());
        Self { limit: *limit, align, state, births: 0, charged: 0, blocks: Vec::new() }
    }

    /// Decides a call, and charges it if it is admitted.
    pub fn check(&mut self, limit: &Limit, clock: u64, cost: u64) -> ExpectedDecision {
        let before = self.peek(limit, clock, cost);
        if !before.allowed || cost == 0 {
            return before;
        }
        self.charge(limit, clock, cost);
        self.charged(limit, clock)
    }

    /// Returns the decision of a call that was charged or corrected.
    fn charged(&mut self, limit: &Limit, clock: u64) -> ExpectedDecision {
        let left = self.peek(limit, clock, 0);
        ExpectedDecision { allowed: true, retry_after: Duration::ZERO, ..left }
    }

    /// Charges a call, whether or not it is admitted.
    pub fn charge(&mut self, limit: &Limit, clock: u64, cost: u64) -> ModelReceipt {
        self.limit = *limit;
        if cost > 0 {
            self.drop_unused(clock);
            self.take(limit, clock, cost);
        }
        ModelReceipt { birth: self.births, number: self.charged, at: self.now(clock), cost }
    }

    fn take(&mut self, limit: &Limit, clock: u64, cost: u64) {
        let now = self.now(clock);
        self.state = self.state_at(now);
        self.charged += 1;
        let (number, ticks) = (self.charged, self.ticks());
        match &mut self.state {
            State::Sliding { log, joined } => match log.last_mut() {
                Some((last, units)) if ticks.of(now) == ticks.of(*last) => {
                    (*last, *units) = (now, *units + cost);
                }
                Some((last, units))
                    if limit.threshold() > EXACT && ticks.is_one_cell(*last, now) =>
                {
                    (*last, *units, *joined) = (now, *units + cost, now);
                }
                last => {
                    if let Some((last, _)) = last {
                        *last = ticks.end(*last);
                    }
                    log.push((now, cost));
                }
            },
            State::Fixed { count, .. } => *count += cost,
            State::SlidingCounter { current, .. } => *current += cost,
            State::Bucket(bucket) => {
                bucket.level += u128::from(cost) * limit.period().as_micros();
                bucket.charges.push(BucketCharge { number, at: now, units: cost });
            }
        }
    }

    pub fn peek(&mut self, limit: &Limit, clock: u64, cost: u64) -> ExpectedDecision {
        self.limit = *limit;
        ExpectedDecision::derive(
            limit.capacity(),
            cost,
            |wait, cost| !self.is_blocked(clock + wait) && self.admits(clock + wait, cost),
            |wait| !self.is_blocked(clock + wait) && self.is_unused(clock + wait),
        )
    }

    pub fn block(&mut self, clock: u64, time: u64) {
        match self.blocks.last_mut() {
            Some((_, until)) if clock < *until => *until = (*until).max(clock + time),
            _ => self.blocks.push((clock, clock + time)),
        }
    }

    /// Returns whether the key was blocked.
    pub fn unblock(&mut self, clock: u64) -> bool {
        let was_blocked = self.is_blocked(clock);
        if let Some((_, until)) = self.blocks.last_mut() {
            *until = clock.min(*until);
        }
        was_blocked
    }

    pub fn is_blocked(&self, clock: u64) -> bool {
        self.blocks.iter().any(|(from, until)| (*from..*until).contains(&clock))
    }

    /// Decides whether a process can charge units of a bucket in advance and spend them within `term`, in which
    /// at most `kept` units refill. Charges them if so.
    pub fn lease(
        &mut self,
        limit: &Limit,
        clock: u64,
        cost: u64,
        kept: u64,
        term: u64,
    ) -> ExpectedDecision {
        let now = self.now(clock);
        let mut leased = self.clone();
        leased.state = self.with_kept(limit, now, kept);
        let decision = leased.check(limit, clock, cost);
        if decision.allowed && cost > 0 {
            self.limit = *limit;
            self.state = leased.state;
            if let State::Bucket(Bucket { lease, .. }) = &mut self.state {
                lease.until = lease.until.max(now + term);
                lease.kept = lease.kept.max(kept.into());
            }
            return self.charged(limit, clock);
        }
        // A rejected call does not change the level: the wait follows from the level as it drains.
        let is_admitted_after = |wait| {
            let mut later = self.clone();
            later.limit = *limit;
            later.state = later.with_kept(limit, later.now(clock + wait), kept);
            later.admits(clock + wait, cost)
        };
        let retry_after = if decision.allowed { 0 } else { first(is_admitted_after) };
        let reset_after = self.peek(limit, clock, 0).reset_after;
        let retry_after = Duration::from_micros(retry_after);
        ExpectedDecision { retry_after, reset_after, ..decision }
    }

    /// Returns the moments whose charges a sliding log still has.
    pub fn charged_at(&self) -> Vec<u64> {
        match &self.state {
            State::Sliding { log, .. } => log.iter().map(|(at, _)| *at).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns how many charges of a bucket can be settled.
    pub fn charges(&self) -> usize {
        match &self.state {
            State::Bucket(bucket) => bucket.charges.len(),
            _ => 0,
        }
    }

    pub fn reset(&mut self) {
        self.blocks.clear();
        self.restart();
    }

    fn restart(&mut self) {
        self.births += 1;
        self.state = State::unused(self.limit.algorithm());
    }

    /// The rule of each algorithm: returns whether a call is admitted under the limit of the latest call.
    fn admits(&self, clock: u64, cost: u64) -> bool {
        let period = self.limit.period().as_micros();
        let threshold = self.limit.threshold();
        let capacity = u128::from(self.limit.capacity());
        let now = self.now(clock);
        match self.state_at(now) {
            State::Sliding { log, .. } => {
                log.iter().map(|(_, units)| units).sum::<u64>() + cost <= threshold
            }
            State::Fixed { count, .. } => count + cost <= threshold,
            // Of the previous window, the part that the trailing window overlaps counts.
            State::SlidingCounter { start, previous, current } => {
                let overlap = period - u128::from(now - start);
                u128::from(previous) * overlap + u128::from(current + cost) * period
                    <= u128::from(threshold) * period
            }
            State::Bucket(bucket) => bucket.level + u128::from(cost) * period <= capacity * period,
        }
    }

    /// Returns the time of the key, which never moves backwards.
    fn now(&self, clock: u64) -> u64 {
        clock.max(self.state.newest())
    }

    fn is_unused(&self, clock: u64) -> bool {
        self.state_at(self.now(clock)).is_unused()
    }

    /// Replaces a state in which nothing counts by the state of a new key.
    fn drop_unused(&mut self, clock: u64) {
        if self.is_unused(clock) {
            self.restart();
        }
    }

    /// Returns the state with at least `kept` units in the bucket.
    fn with_kept(&self, limit: &Limit, now: u64, kept: u64) -> State {
        let mut model = self.clone();
        model.limit = *limit;
        let mut state = model.state_at(now);
        if let State::Bucket(Bucket { level, .. }) = &mut state {
            *level = (*level).max(u128::from(kept) * limit.period().as_micros());
        }
        state
    }
}
