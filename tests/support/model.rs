//! The reference model: the semantics of the five algorithms, written as plainly as possible. Tests compare
//! each decision of the embedded store and of Redis with the decision of the model.
//!
//! The model shares no code with the stores, and is slow on purpose. It keeps each admitted call or an exact
//! fraction. It has one rule for each algorithm, `Model::admits`, and derives the rest by search:
//! `remaining` is the largest cost that the rule admits now, `retry_after` the shortest wait after which the
//! rule admits the call, and `reset_after` the shortest wait after which no earlier call counts.
//!
//! To add an algorithm:
//!
//! 1. Add a variant to `State`: the data that the algorithm keeps about the admitted calls of a key.
//! 2. Add the variant to `State::unused`, `State::is_unused` and `State::newest`.
//! 3. In `Model::state_at`, drop the data that no longer counts at a moment.
//! 4. In `Model::admits`, write the rule.
//! 5. In [`Model::charge`], [`Model::refund`] and [`Model::return_units`], take and give back units.
//! 6. Add a test to `tests/stores/traces.rs`.
//!
//! Times are microseconds since the epoch. A parameter named `clock` is the time of the limiter's clock, which
//! can step back; a variable named `now` is the time of the key, which cannot.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Decision, Limit};

use crate::search::{first, last};

/// The decision that a store has to make: the fields of a [`Decision`] that do not depend on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedDecision {
    /// Whether the call is admitted.
    pub allowed: bool,
    /// The units that are left.
    pub remaining: u32,
    /// The shortest wait after which the same call is admitted.
    pub retry_after: Duration,
    /// The shortest wait after which the key is as if it had never been used.
    pub reset_after: Duration,
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
}

/// The data about the admitted calls of a key.
#[derive(Clone, Debug)]
enum State {
    Sliding {
        /// The time and the cost of each admitted call.
        log: Vec<(u64, u64)>,
    },
    Fixed {
        /// The start of the window.
        start: u64,
        /// The admitted cost in the window.
        count: u64,
    },
    SlidingCounter {
        /// The start of the current window.
        start: u64,
        /// The admitted cost in the window before it.
        previous: u64,
        /// The admitted cost in the current window.
        current: u64,
    },
    /// A token bucket or a leaky bucket: both fill with each call and drain at the rate of the limit.
    Bucket {
        /// The time to which the level belongs.
        at: u64,
        /// The units in the bucket, times the period in microseconds.
        level: u128,
        /// The threshold under which the level was last changed.
        threshold: u64,
        lease: BucketLease,
    },
}

/// Units of a bucket that a process charged in advance and spends until a moment. They count as if they were
/// spent at the last possible moment, so the level does not drain below them before.
#[derive(Clone, Copy, Debug, Default)]
struct BucketLease {
    /// The moment until which the units may be spent.
    until: u64,
    /// The units below which the level does not drain before that moment.
    kept: u128,
}

impl State {
    /// The state of a key that was never used.
    fn unused(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sliding => Self::Sliding { log: Vec::new() },
            Algorithm::Fixed => Self::Fixed { start: 0, count: 0 },
            Algorithm::SlidingCounter => Self::SlidingCounter { start: 0, previous: 0, current: 0 },
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                Self::Bucket { at: 0, level: 0, threshold: 1, lease: BucketLease::default() }
            }
            other => panic!("the model has no rule for {other}"),
        }
    }

    /// Returns whether nothing counts, so that the state can be dropped.
    fn is_unused(&self) -> bool {
        match self {
            Self::Sliding { log } => log.is_empty(),
            Self::Fixed { count, .. } => *count == 0,
            Self::SlidingCounter { previous, current, .. } => *previous == 0 && *current == 0,
            Self::Bucket { level, .. } => *level == 0,
        }
    }

    /// Returns the newest time in the state.
    fn newest(&self) -> u64 {
        match self {
            Self::Sliding { log } => log.last().map_or(0, |(at, _)| *at),
            Self::Fixed { start, .. } | Self::SlidingCounter { start, .. } => *start,
            Self::Bucket { at, .. } => *at,
        }
    }
}

impl Model {
    /// The count of a key that was never used. `align` is the offset of aligned windows from UTC in minutes.
    #[must_use]
    pub fn new(limit: &Limit, align: Option<i64>) -> Self {
        Self { limit: *limit, align, state: State::unused(limit.algorithm()) }
    }

    /// Decides a call, and charges it if it is admitted.
    pub fn check(&mut self, limit: &Limit, clock: u64, cost: u32) -> ExpectedDecision {
        let before = self.peek(limit, clock, cost);
        if !before.allowed || cost == 0 {
            return before;
        }
        self.charge(limit, clock, cost);
        ExpectedDecision {
            allowed: true,
            retry_after: Duration::ZERO,
            ..self.peek(limit, clock, 0)
        }
    }

    /// Charges a call without computing the decision, which is slow for a long log.
    ///
    /// # Panics
    ///
    /// If the call is not admitted.
    pub fn charge(&mut self, limit: &Limit, clock: u64, cost: u32) {
        self.limit = *limit;
        assert!(self.admits(clock, cost), "the call is not admitted");
        let now = self.now(clock);
        self.state = self.state_at(now);
        let cost = u64::from(cost);
        match &mut self.state {
            State::Sliding { log } => log.push((now, cost)),
            State::Fixed { count, .. } => *count += cost,
            State::SlidingCounter { current, .. } => *current += cost,
            State::Bucket { level, .. } => *level += u128::from(cost) * limit.period().as_micros(),
        }
    }

    /// Decides a call without charging it.
    pub fn peek(&mut self, limit: &Limit, clock: u64, cost: u32) -> ExpectedDecision {
        self.limit = *limit;
        let allowed = self.admits(clock, cost);
        let remaining = last(limit.capacity().into(), |cost| self.admits(clock, cost as u32));
        let retry_after = if allowed { 0 } else { first(|wait| self.admits(clock + wait, cost)) };
        let reset_after = first(|wait| self.is_unused(clock + wait));
        ExpectedDecision {
            allowed,
            remaining: remaining as u32,
            retry_after: Duration::from_micros(retry_after),
            reset_after: Duration::from_micros(reset_after),
        }
    }

    /// Decides whether a process can charge units of a bucket in advance and spend them within `term`, in which
    /// at most `kept` units refill. Charges them if so.
    pub fn lease(
        &mut self,
        limit: &Limit,
        clock: u64,
        cost: u32,
        kept: u32,
        term: u64,
    ) -> ExpectedDecision {
        let now = self.now(clock);
        let mut leased = self.clone();
        leased.state = self.with_kept(limit, now, kept);
        let decision = leased.check(limit, clock, cost);
        if decision.allowed && cost > 0 {
            self.limit = *limit;
            self.state = leased.state;
            if let State::Bucket { lease, .. } = &mut self.state {
                lease.until = lease.until.max(now + term);
                lease.kept = lease.kept.max(kept.into());
            }
            return ExpectedDecision {
                allowed: true,
                retry_after: Duration::ZERO,
                ..self.peek(limit, clock, 0)
            };
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
    #[must_use]
    pub fn charged_at(&self) -> Vec<u64> {
        match &self.state {
            State::Sliding { log } => log.iter().map(|(at, _)| *at).collect(),
            _ => Vec::new(),
        }
    }

    /// Gives units back, the newest first. They need not belong to one charge.
    pub fn refund(&mut self, limit: &Limit, clock: u64, cost: u32) -> ExpectedDecision {
        self.limit = *limit;
        if cost > 0 {
            self.state = self.state_at(self.now(clock));
            let period = limit.period().as_micros();
            let mut cost = u64::from(cost);
            let mut give = |units: &mut u64| {
                let given = cost.min(*units);
                *units -= given;
                cost -= given;
            };
            match &mut self.state {
                State::Sliding { log } => {
                    log.iter_mut().rev().for_each(|(_, units)| give(units));
                    log.retain(|(_, units)| *units > 0);
                }
                State::Fixed { count, .. } => give(count),
                State::SlidingCounter { previous, current, .. } => {
                    give(current);
                    give(previous);
                }
                State::Bucket { level, .. } => {
                    *level = level.saturating_sub(u128::from(cost) * period);
                }
            }
            self.drop_unused(clock);
        }
        ExpectedDecision { allowed: true, ..self.peek(limit, clock, 0) }
    }

    /// Gives back units that were charged at `charged_at` and never spent. The model gives back as much as it
    /// can without admitting more than if the units had never been charged.
    pub fn return_units(
        &mut self,
        limit: &Limit,
        clock: u64,
        cost: u32,
        charged_at: u64,
    ) -> ExpectedDecision {
        self.lower(limit, clock, cost, charged_at);
        ExpectedDecision { allowed: true, ..self.peek(limit, clock, 0) }
    }

    /// Gives back units without computing the decision, which is slow for a long log.
    pub fn lower(&mut self, limit: &Limit, clock: u64, cost: u32, charged_at: u64) {
        self.limit = *limit;
        if cost > 0 {
            let now = self.now(clock);
            let is_same_rate = match self.state {
                State::Bucket { threshold, .. } => threshold == u64::from(limit.threshold()),
                _ => false,
            };
            self.state = self.state_at(now);
            let period = limit.period().as_micros();
            let window = period as u64;
            let mut cost = u64::from(cost);
            match &mut self.state {
                State::Sliding { log } => {
                    for (_, units) in log.iter_mut().filter(|(at, _)| *at == charged_at) {
                        let given = cost.min(*units);
                        *units -= given;
                        cost -= given;
                    }
                    log.retain(|(_, units)| *units > 0);
                }
                State::Fixed { start, count }
                    if (*start..*start + window).contains(&charged_at) =>
                {
                    *count = count.saturating_sub(cost);
                }
                State::SlidingCounter { start, previous, current } => match charged_at / window {
                    then if then >= *start / window => *current = current.saturating_sub(cost),
                    then if then + 1 == *start / window => {
                        *previous = previous.saturating_sub(cost);
                    }
                    _ => {}
                },
                // Some of the units have drained since. The units of a lease that may still be spent stay.
                State::Bucket { level, threshold, lease, .. }
                    if is_same_rate && *level <= u128::from(limit.capacity()) * period =>
                {
                    let charged = u128::from(cost).min(limit.capacity().into()) * period;
                    let elapsed = now.saturating_sub(charged_at);
                    let drained = u128::from(elapsed) * u128::from(*threshold);
                    let floor = if lease.until > now { lease.kept * period } else { 0 };
                    let floor = floor.min(*level);
                    *level = level.saturating_sub(charged.saturating_sub(drained)).max(floor);
                }
                _ => {}
            }
            self.drop_unused(clock);
        }
    }

    /// Drops the count.
    pub fn reset(&mut self) {
        self.state = State::unused(self.limit.algorithm());
    }

    /// The rule of each algorithm: returns whether a call is admitted under the limit of the latest call.
    fn admits(&self, clock: u64, cost: u32) -> bool {
        let period = self.limit.period().as_micros();
        let threshold = u64::from(self.limit.threshold());
        let capacity = u128::from(self.limit.capacity());
        let now = self.now(clock);
        let cost = u64::from(cost);
        cost == 0
            || match self.state_at(now) {
                State::Sliding { log } => {
                    log.iter().map(|(_, units)| units).sum::<u64>() + cost <= threshold
                }
                State::Fixed { count, .. } => count + cost <= threshold,
                // Of the previous window, the part that the trailing window overlaps counts.
                State::SlidingCounter { start, previous, current } => {
                    let overlap = period - u128::from(now - start);
                    u128::from(previous) * overlap + u128::from(current + cost) * period
                        <= u128::from(threshold) * period
                }
                State::Bucket { level, .. } => {
                    level + u128::from(cost) * period <= capacity * period
                }
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
            self.reset();
        }
    }

    /// Returns the part of the state that still counts at `now`, under the limit of the latest call.
    fn state_at(&self, now: u64) -> State {
        let period = self.limit.period().as_micros() as u64;
        match &self.state {
            State::Sliding { log } => {
                let counts = |(at, _): &(u64, u64)| at + period > now;
                State::Sliding { log: log.iter().copied().filter(counts).collect() }
            }
            State::Fixed { start, count } => {
                let boundary = self.align.map(|minutes| window_start(now, period, minutes));
                match boundary {
                    Some(boundary) if *start < boundary => {
                        State::Fixed { start: boundary, count: 0 }
                    }
                    None if *count == 0 || now >= start + period => {
                        State::Fixed { start: now, count: 0 }
                    }
                    _ => State::Fixed { start: *start, count: *count },
                }
            }
            State::SlidingCounter { start, previous, current } => {
                let window = now / period;
                let (previous, current) = match window - start / period {
                    0 => (*previous, *current),
                    1 => (*current, 0),
                    _ => (0, 0),
                };
                State::SlidingCounter { start: window * period, previous, current }
            }
            State::Bucket { at, level, threshold, lease } => {
                self.bucket_at(now, *at, *level, *threshold, *lease)
            }
        }
    }

    /// Returns a bucket as it is at `now`: its level drains, but not below the units of a lease that may still
    /// be spent. A level that was charged under another threshold is converted, rounded up.
    fn bucket_at(
        &self,
        now: u64,
        at: u64,
        mut level: u128,
        charged_under: u64,
        lease: BucketLease,
    ) -> State {
        let period = self.limit.period().as_micros();
        let threshold = u64::from(self.limit.threshold());
        let is_leased = lease.until > at;
        // Under the threshold of the charge, the bucket is empty from here on.
        let empties =
            |from: u64, level: u128| u128::from(from) + level.div_ceil(charged_under.into());
        let mut empty = empties(at, level);
        if is_leased {
            let kept = (lease.kept * period).min(level);
            empty = empty.max(empties(lease.until, kept));
        }
        if u128::from(now) >= empty {
            return State::Bucket { at: now, level: 0, threshold, lease: BucketLease::default() };
        }
        if charged_under != threshold {
            level = convert(level, period, charged_under, threshold);
        }
        let drained = |from: u64, to: u64| u128::from(to - from) * u128::from(threshold);
        if is_leased {
            let end = lease.until.min(now);
            let floor = (lease.kept * period).min(level);
            level = level.saturating_sub(drained(at, end)).max(floor);
            level = level.saturating_sub(drained(end, now));
        } else {
            level = level.saturating_sub(drained(at, now));
        }
        let lease = if lease.until > now { lease } else { BucketLease::default() };
        State::Bucket { at: now, level, threshold, lease }
    }

    /// Returns the state with at least `kept` units in the bucket.
    fn with_kept(&self, limit: &Limit, now: u64, kept: u32) -> State {
        let mut model = self.clone();
        model.limit = *limit;
        let mut state = model.state_at(now);
        if let State::Bucket { level, .. } = &mut state {
            *level = (*level).max(u128::from(kept) * limit.period().as_micros());
        }
        state
    }
}

/// Returns the start of the calendar window that contains `now`. Windows of a week are counted from Monday,
/// 1969-12-29 local time, other windows from 1970-01-01 local time.
fn window_start(now: u64, period: u64, minutes: i64) -> u64 {
    let week = 7 * 86_400_000_000;
    let origin = if period == week { -3 * 86_400_000_000_i64 } else { 0 } - minutes * 60_000_000;
    let windows = (now as i64 - origin).div_euclid(period as i64);
    (origin + windows * period as i64) as u64
}

/// Converts a level to the finest units in which another threshold is counted, rounded up. The stores convert
/// in `f64`, so the rounding of `f64` is a part of the semantics.
fn convert(level: u128, period: u128, from: u64, to: u64) -> u128 {
    let unit = |threshold: u64| greatest_common_divisor(period, threshold.into());
    if unit(from) == unit(to) {
        return level;
    }
    let old = (level / unit(from)) as f64;
    let (old_token, token) = ((period / unit(from)) as f64, (period / unit(to)) as f64);
    (old * token / old_token).ceil() as u128 * unit(to)
}

fn greatest_common_divisor(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
