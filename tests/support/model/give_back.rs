//! Units that the model gives back.

use ratelimit_runtime::Limit;

use super::state::{Bucket, State};
use super::{ExpectedDecision, Model, ModelReceipt};

impl Model {
    /// Gives units back, the newest first. They need not belong to one charge.
    pub fn refund(&mut self, limit: &Limit, clock: u64, cost: u64) -> ExpectedDecision {
        let limit = &self.own_limit(limit, clock);
        self.limit = *limit;
        if cost > 0 {
            let counted = self.state_at(self.now(clock));
            let before = self.before(&counted);
            let mut after = before.clone();
            let period = limit.period().as_micros();
            let mut cost = cost;
            let mut give = |units: &mut u64| {
                let given = cost.min(*units);
                *units -= given;
                cost -= given;
            };
            match &mut after {
                State::Sliding { log, .. } => {
                    let State::Sliding { log: counted, .. } = &counted else { unreachable!() };
                    let newest = log.iter_mut().rev().take(counted.len());
                    newest.for_each(|(_, units)| give(units));
                    log.retain(|(_, units)| *units > 0);
                }
                State::Fixed { count, .. } => give(count),
                State::SlidingCounter { previous, current, .. } => {
                    give(current);
                    give(previous);
                }
                State::Bucket(Bucket { at, level, threshold, lease, .. }) => {
                    let level = level.saturating_sub(u128::from(cost) * period);
                    after = State::bucket(*at, level, *threshold, *lease);
                }
            }
            self.replace(&before, after, clock);
        }
        self.charged(limit, clock)
    }

    /// Gives back units that were charged at `charged_at` and never spent. The model gives back as much as it
    /// can without admitting more than if the units had never been charged.
    pub fn return_units(
        &mut self,
        limit: &Limit,
        clock: u64,
        cost: u64,
        charged_at: u64,
    ) -> ExpectedDecision {
        let own = self.own_limit(limit, clock);
        self.lower(limit, clock, cost, charged_at);
        self.charged(&own, clock)
    }

    /// Gives back units without computing the decision, which is slow for a long log.
    pub fn lower(&mut self, limit: &Limit, clock: u64, cost: u64, charged_at: u64) {
        let own = self.own_limit(limit, clock);
        // How much a bucket has drained since the charge is known at one rate only.
        let is_known = own.threshold() == limit.threshold();
        let limit = &own;
        self.limit = *limit;
        if cost > 0 && is_known {
            let now = self.now(clock);
            let (ticks, before) = (self.ticks(), self.before(&self.state_at(now)));
            let mut after = before.clone();
            let period = limit.period().as_micros();
            let capacity = u128::from(limit.capacity()) * period;
            let window = period as u64;
            match &mut after {
                State::Sliding { log, joined } if now < charged_at + window => {
                    let charged = ticks.of(charged_at);
                    let record = log.iter_mut().find(|(at, _)| ticks.of(*at) >= charged);
                    let is_its = |at: u64| {
                        ticks.of(at) == charged
                            || ticks.of(at) <= ticks.of(*joined)
                                && ticks.is_one_cell(at, charged_at)
                    };
                    if let Some((_, units)) = record.filter(|(at, _)| is_its(*at)) {
                        *units = units.saturating_sub(cost);
                    }
                    log.retain(|(_, units)| *units > 0);
                }
                State::Fixed { start, count }
                    if (*start..self.end_of(*start)).contains(&charged_at) =>
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
                State::Bucket(Bucket { at, level, threshold, lease, .. }) if *level <= capacity => {
                    let charged = u128::from(cost).min(limit.capacity().into()) * period;
                    let elapsed = now.saturating_sub(charged_at);
                    let drained = u128::from(elapsed) * u128::from(*threshold);
                    let floor = if lease.until > now { lease.kept * period } else { 0 };
                    let floor = floor.min(*level);
                    let level = level.saturating_sub(charged.saturating_sub(drained)).max(floor);
                    after = State::bucket(*at, level, *threshold, *lease);
                }
                _ => {}
            }
            self.replace(&before, after, clock);
        }
    }

    /// Replaces a charge by the units that its call has used: less goes back to the charge, as if the call had been
    /// charged no more at first, and more is charged now.
    pub fn settle(&mut self, limit: &Limit, clock: u64, receipt: ModelReceipt, used: u64) {
        let ModelReceipt { birth, number, at, cost } = receipt;
        let own = self.own_limit(limit, clock);
        self.limit = own;
        if used >= cost {
            self.charge(&own, clock, used - cost);
            return;
        }
        self.drop_unused(clock);
        if self.births != birth {
            return;
        }
        let now = self.now(clock);
        let counted = self.state_at(now);
        let State::Bucket(Bucket { charges, .. }) = &mut self.state else {
            return self.lower(&own, clock, cost - used, at);
        };
        let Some(charge) = charges.iter_mut().find(|charge| charge.number == number) else {
            return;
        };
        charge.units -= cost - used;
        let mut settled = self.state_at(now);
        if let State::Bucket(bucket) = &mut settled {
            bucket.settle(own.period().as_micros());
        }
        self.replace(&counted, settled, clock);
    }

    /// Returns the state that a correction changes. Records of a sliding window that do not count now stay: they count
    /// again if the clock steps back.
    fn before(&self, counted: &State) -> State {
        if matches!(counted, State::Sliding { .. }) { self.state.clone() } else { counted.clone() }
    }

    /// Stores the state after a correction. What gives nothing back changes nothing: a bucket can have drained it.
    fn replace(&mut self, before: &State, after: State, clock: u64) {
        let is_same = match (before, &after) {
            (State::Bucket(before), State::Bucket(after)) => before.level == after.level,
            _ => *before == after,
        };
        if !is_same {
            self.state = after;
            self.drop_unused(clock);
        }
    }

    /// Returns the limit at the rate of a bucket, which only calls change. An empty bucket has no rate.
    fn own_limit(&self, limit: &Limit, clock: u64) -> Limit {
        let State::Bucket(Bucket { threshold, .. }) = self.state else { return *limit };
        // The largest burst that refills in 100 years.
        let mut burst = limit.capacity();
        let most = 36_525 * 86_400_000_000 * u128::from(threshold) / limit.period().as_micros();
        burst = burst.min(u64::try_from(most).unwrap_or(u64::MAX)).max(1);
        let own = limit.try_amounts(threshold, Some(burst)).expect("valid");
        let mut model = self.clone();
        model.limit = own;
        if model.is_unused(clock) { *limit } else { own }
    }
}
