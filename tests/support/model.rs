//! The reference model: the semantics of every algorithm written down as plainly as possible, to
//! be compared with the stores. It keeps every admitted unit or an exact fraction, and finds waits
//! by searching for the first moment at which its own rule says yes.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit};

/// What the model says about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Whether the call is admitted.
    pub allowed: bool,
    /// What is left.
    pub remaining: u32,
    /// The smallest wait that helps.
    pub retry_after: Duration,
    /// How long until the key is as new.
    pub reset_after: Duration,
}

/// One key under limits of one name, algorithm and period.
#[derive(Clone, Debug)]
pub struct Model {
    limit: Limit,
    /// For aligned windows: the offset from UTC in minutes.
    align: Option<i64>,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Time and cost of each admitted call.
    Sliding(Vec<(u64, u64)>),
    /// Start and admitted cost.
    Fixed(u64, u64),
    /// Start of the current window, admitted cost of the previous one and of this one.
    SlidingCounter(u64, u64, u64),
    /// When it was last charged, what was taken in tokens × period, and the threshold then.
    Bucket(u64, u128, u64, Leased),
}

/// Units of a bucket that were charged in advance.
#[derive(Clone, Copy, Debug, Default)]
struct Leased {
    /// Until when they may be spent.
    until: u64,
    /// The tokens below which the level does not fall before.
    kept: u128,
}

impl Model {
    /// An unused key.
    #[must_use]
    pub fn new(limit: &Limit, align: Option<i64>) -> Self {
        let state = match limit.algorithm() {
            Algorithm::Sliding => State::Sliding(Vec::new()),
            Algorithm::Fixed => State::Fixed(0, 0),
            Algorithm::SlidingCounter => State::SlidingCounter(0, 0, 0),
            _ => State::Bucket(0, 0, 1, Leased::default()),
        };
        Self { limit: limit.clone(), align, state }
    }

    /// Admits and charges, or refuses.
    pub fn check(&mut self, limit: &Limit, clock: u64, cost: u32) -> Expected {
        let before = self.peek(limit, clock, cost);
        if !before.allowed || cost == 0 {
            return before;
        }
        let now = self.now(clock);
        self.state = self.at(now);
        let cost = u64::from(cost);
        match &mut self.state {
            State::Sliding(log) => log.push((now, cost)),
            State::Fixed(_, count) => *count += cost,
            State::SlidingCounter(_, _, current) => *current += cost,
            State::Bucket(_, level, ..) => {
                *level += u128::from(cost) * self.limit.period().as_micros();
            }
        }
        Expected { allowed: true, retry_after: Duration::ZERO, ..self.peek(limit, clock, 0) }
    }

    /// Charges a bucket for units that may be spent within a `term`, in which `kept` tokens refill.
    pub fn lease(
        &mut self,
        limit: &Limit,
        clock: u64,
        cost: u32,
        kept: u32,
        term: u64,
    ) -> Expected {
        let now = self.now(clock);
        let raised = self.raised(limit, now, kept);
        let mut leased = self.clone();
        leased.state = raised.clone();
        let answer = leased.check(limit, clock, cost);
        if answer.allowed && cost > 0 {
            self.limit = limit.clone();
            self.state = leased.state;
            if let State::Bucket(.., leased) = &mut self.state {
                leased.until = leased.until.max(now + term);
                leased.kept = leased.kept.max(kept.into());
            }
            return Expected {
                allowed: true,
                retry_after: Duration::ZERO,
                ..self.peek(limit, clock, 0)
            };
        }
        // A call that is refused raises nothing: it waits for the level as it drains.
        let wait = |wait| {
            let mut later = self.clone();
            later.limit = limit.clone();
            later.state = later.raised(limit, later.now(clock + wait), kept);
            later.admits(clock + wait, cost)
        };
        let retry_after = if answer.allowed { 0 } else { first(wait) };
        let reset_after = self.peek(limit, clock, 0).reset_after;
        Expected { retry_after: Duration::from_micros(retry_after), reset_after, ..answer }
    }

    /// The state with at least so many tokens taken.
    fn raised(&self, limit: &Limit, now: u64, kept: u32) -> State {
        let mut model = self.clone();
        model.limit = limit.clone();
        let mut state = model.at(now);
        if let State::Bucket(_, level, ..) = &mut state {
            *level = (*level).max(u128::from(kept) * limit.period().as_micros());
        }
        state
    }

    /// Charges a call that is admitted, without an answer: what is left of a long log is slow to find.
    ///
    /// # Panics
    ///
    /// When the call is not admitted.
    pub fn charge(&mut self, limit: &Limit, clock: u64, cost: u32) {
        self.limit = limit.clone();
        assert!(self.admits(clock, cost), "not admitted");
        let now = self.now(clock);
        self.state = self.at(now);
        if let State::Sliding(log) = &mut self.state {
            log.push((now, cost.into()));
        }
    }

    /// What `check` would say.
    pub fn peek(&mut self, limit: &Limit, clock: u64, cost: u32) -> Expected {
        self.limit = limit.clone();
        let allowed = self.admits(clock, cost);
        let remaining = last(limit.capacity().into(), |cost| self.admits(clock, cost as u32));
        Expected {
            allowed,
            remaining: remaining as u32,
            retry_after: Duration::from_micros(if allowed {
                0
            } else {
                first(|wait| self.admits(clock + wait, cost))
            }),
            reset_after: Duration::from_micros(first(|wait| self.is_new(clock + wait))),
        }
    }

    /// Gives units back, the newest first.
    pub fn refund(&mut self, limit: &Limit, clock: u64, cost: u32) -> Expected {
        self.limit = limit.clone();
        if cost > 0 {
            self.state = self.at(self.now(clock));
            let period = limit.period().as_micros();
            let mut cost = u64::from(cost);
            let mut give = |units: &mut u64| {
                let given = cost.min(*units);
                *units -= given;
                cost -= given;
            };
            match &mut self.state {
                State::Sliding(log) => {
                    log.iter_mut().rev().for_each(|(_, units)| give(units));
                    log.retain(|(_, units)| *units > 0);
                }
                State::Fixed(_, count) => give(count),
                State::SlidingCounter(_, previous, current) => {
                    give(current);
                    give(previous);
                }
                // More than fits is booked ahead, or was taken while more did.
                State::Bucket(_, level, ..) if *level > u128::from(limit.capacity()) * period => {}
                State::Bucket(_, level, ..) => {
                    *level = level.saturating_sub(u128::from(cost) * period);
                }
            }
            if self.is_new(clock) {
                self.state = Self::new(limit, self.align).state;
            }
        }
        Expected { allowed: true, ..self.peek(limit, clock, 0) }
    }

    /// Gives back units that were charged at `at` and never used: the most that can be said not to
    /// count without forgetting anything that does.
    pub fn give_back(&mut self, limit: &Limit, clock: u64, cost: u32, at: u64) -> Expected {
        self.limit = limit.clone();
        if cost > 0 {
            let now = self.now(clock);
            let (before, after) = (self.rate_of_state(), u64::from(limit.threshold()));
            self.state = self.at(now);
            let period = limit.period().as_micros();
            let window = period as u64;
            let mut cost = u64::from(cost);
            match &mut self.state {
                State::Sliding(log) if at + window > now => {
                    for (_, units) in log.iter_mut() {
                        let given = cost.min(*units);
                        *units -= given;
                        cost -= given;
                    }
                    log.retain(|(_, units)| *units > 0);
                }
                State::Fixed(start, count) if (*start..*start + window).contains(&at) => {
                    *count = count.saturating_sub(cost);
                }
                State::SlidingCounter(start, previous, current) => match at / window {
                    then if then >= *start / window => *current = current.saturating_sub(cost),
                    then if then + 1 == *start / window => {
                        *previous = previous.saturating_sub(cost);
                    }
                    _ => {}
                },
                State::Bucket(_, level, _, leased)
                    if before == after && *level <= u128::from(limit.capacity()) * period =>
                {
                    let charged = u128::from(cost).min(limit.capacity().into()) * period;
                    let drained = u128::from(now.saturating_sub(at)) * u128::from(after);
                    let floor = if leased.until > now { leased.kept * period } else { 0 };
                    let floor = floor.min(*level);
                    *level = level.saturating_sub(charged.saturating_sub(drained)).max(floor);
                }
                _ => {}
            }
            if self.is_new(clock) {
                self.state = Self::new(limit, self.align).state;
            }
        }
        Expected { allowed: true, ..self.peek(limit, clock, 0) }
    }

    /// The threshold that a bucket was charged under.
    fn rate_of_state(&self) -> u64 {
        match self.state {
            State::Bucket(_, _, threshold, _) => threshold,
            _ => 0,
        }
    }

    /// Forgets the key.
    pub fn reset(&mut self) {
        self.state = Self::new(&self.limit, self.align).state;
    }

    /// Time never moves backwards for a key.
    fn now(&self, clock: u64) -> u64 {
        let newest = match &self.state {
            State::Sliding(log) => log.last().map_or(0, |(at, _)| *at),
            State::Fixed(start, _) | State::SlidingCounter(start, ..) => *start,
            State::Bucket(at, ..) => *at,
        };
        clock.max(newest)
    }

    /// What of the state still counts at `now`, under the present limit.
    fn at(&self, now: u64) -> State {
        let period = self.limit.period().as_micros() as u64;
        let threshold = u64::from(self.limit.threshold());
        match &self.state {
            State::Sliding(log) => {
                State::Sliding(log.iter().copied().filter(|(at, _)| at + period > now).collect())
            }
            State::Fixed(start, count) => {
                let boundary = self.align.map(|minutes| calendar(now, period, minutes));
                match boundary {
                    Some(boundary) if *start < boundary => State::Fixed(boundary, 0),
                    None if *count == 0 || now >= start + period => State::Fixed(now, 0),
                    _ => State::Fixed(*start, *count),
                }
            }
            State::SlidingCounter(start, previous, current) => {
                let window = now / period;
                match window - start / period {
                    0 => State::SlidingCounter(window * period, *previous, *current),
                    1 => State::SlidingCounter(window * period, *current, 0),
                    _ => State::SlidingCounter(window * period, 0, 0),
                }
            }
            State::Bucket(at, level, charged_under, leased) => {
                let period = u128::from(period);
                let elapsed = u128::from(now - at);
                let mut level = *level;
                let is_alive = leased.until > *at;
                let full = |from: u64, level: u128, rate: u64| {
                    u128::from(from) + level.div_ceil(rate.into())
                };
                let mut empty = full(*at, level, *charged_under);
                if is_alive {
                    let kept = (leased.kept * period).min(level);
                    empty = empty.max(full(leased.until, kept, *charged_under));
                }
                if u128::from(now) >= empty {
                    return State::Bucket(now, 0, threshold, Leased::default());
                }
                if *charged_under != threshold {
                    level = convert(level, period, *charged_under, threshold);
                }
                let drained = |from: u64, to: u64| u128::from(to - from) * u128::from(threshold);
                if is_alive {
                    let till = leased.until.min(now);
                    let floor = (leased.kept * period).min(level);
                    level = level.saturating_sub(drained(*at, till)).max(floor);
                    level = level.saturating_sub(drained(till, now));
                } else {
                    level = level.saturating_sub(elapsed * u128::from(threshold));
                }
                let leased = if leased.until > now { *leased } else { Leased::default() };
                State::Bucket(now, level, threshold, leased)
            }
        }
    }

    fn admits(&self, clock: u64, cost: u32) -> bool {
        let period = self.limit.period().as_micros();
        let (threshold, capacity) =
            (u64::from(self.limit.threshold()), u128::from(self.limit.capacity()));
        let now = self.now(clock);
        let cost = u64::from(cost);
        cost == 0
            || match self.at(now) {
                State::Sliding(log) => {
                    log.iter().map(|(_, units)| units).sum::<u64>() + cost <= threshold
                }
                State::Fixed(_, count) => count + cost <= threshold,
                State::SlidingCounter(start, previous, current) => {
                    let overlap = period - u128::from(now - start);
                    u128::from(previous) * overlap + u128::from(current + cost) * period
                        <= u128::from(threshold) * period
                }
                State::Bucket(_, level, ..) => {
                    level + u128::from(cost) * period <= capacity * period
                }
            }
    }

    fn is_new(&self, clock: u64) -> bool {
        match self.at(self.now(clock)) {
            State::Sliding(log) => log.is_empty(),
            State::Fixed(_, count) => count == 0,
            State::SlidingCounter(_, previous, current) => previous == 0 && current == 0,
            State::Bucket(_, level, ..) => level == 0,
        }
    }
}

/// The start of the calendar window around `now`: counted from Monday, 1969-12-29 local time for
/// weeks, from 1970-01-01 local time otherwise.
fn calendar(now: u64, period: u64, minutes: i64) -> u64 {
    let week = 7 * 86_400_000_000;
    let origin = if period == week { -3 * 86_400_000_000_i64 } else { 0 } - minutes * 60_000_000;
    let mut start = origin;
    start += (now as i64 - origin).div_euclid(period as i64) * period as i64;
    start as u64
}

/// The same tokens in the finest units that another rate is counted in, rounded up. This is the one
/// step that the design does in `f64`, so its rounding is part of the semantics.
fn convert(level: u128, period: u128, from: u64, to: u64) -> u128 {
    let unit = |threshold: u64| gcd(period, threshold.into());
    if unit(from) == unit(to) {
        return level;
    }
    let old = (level / unit(from)) as f64;
    let (old_token, token) = ((period / unit(from)) as f64, (period / unit(to)) as f64);
    (old * token / old_token).ceil() as u128 * unit(to)
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The first number for which `holds`, given that it holds from there on.
fn first(holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0_u64, 1 << 52);
    while low < high {
        let middle = low.midpoint(high);
        (low, high) = if holds(middle) { (low, middle) } else { (middle + 1, high) };
    }
    low
}

/// The last number up to `most` for which `holds`, given that it holds up to there.
fn last(most: u64, holds: impl Fn(u64) -> bool) -> u64 {
    first(|number| number >= most || !holds(number + 1))
}
