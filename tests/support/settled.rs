//! The reference model of settled charges: a list of all charges of a key, each with the units that its call has really
//! used, as far as they are known. It decides as if each call had been charged these units at first.
//!
//! A key that is blocked admits nothing. Everything else goes on.
//!
//! It shares no code with the stores or with [`model`](crate::model), and is slow on purpose. The clock of a trace must
//! not step back.

use ratelimit_runtime::{Algorithm, Limit};

use crate::limits::is_bucket;
use crate::model::ExpectedDecision;

/// The charges of a key, oldest first.
#[derive(Clone, Debug, Default)]
pub struct SettledModel {
    charges: Vec<ModelCharge>,
    /// The level of a bucket before the first charge in the list, times the period, and its time.
    level: (u64, u128),
    /// The threshold and the time of the last change.
    changed: (u64, u64),
    /// How often the key was as if it had never been used. A charge of another time cannot be settled.
    births: u64,
    charged: u64,
    /// When the key was blocked, and when it opens or has opened.
    blocks: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct ModelCharge {
    at: u64,
    start: u64,
    units: u64,
    number: u64,
}

/// A charge that can be settled.
#[derive(Clone, Copy, Debug)]
pub struct ModelReceipt {
    birth: u64,
    number: u64,
    cost: u64,
}

impl SettledModel {
    /// Decides a call, and charges it if it is admitted.
    pub fn acquire(
        &mut self,
        limit: &Limit,
        now: u64,
        cost: u64,
    ) -> (ExpectedDecision, Option<ModelReceipt>) {
        if !self.admits(limit, now, cost) {
            return (self.peek(limit, now, cost), None);
        }
        let receipt = self.charge(limit, now, cost);
        (self.peek(limit, now, 0), Some(receipt))
    }

    /// Charges a call, whether or not it is admitted.
    pub fn charge(&mut self, limit: &Limit, now: u64, cost: u64) -> ModelReceipt {
        if cost > 0 {
            self.forget(limit, now);
            self.charged += 1;
            let start = self.window_start(limit, now);
            let (units, number) = (cost, self.charged);
            self.charges.push(ModelCharge { at: now, start, units, number });
        }
        ModelReceipt { birth: self.births, number: self.charged, cost }
    }

    /// Replaces a charge by the units that its call has used. What it has used beyond is charged now. While something
    /// counts, the threshold of the last call stays in force.
    pub fn settle(&mut self, limit: &Limit, now: u64, receipt: ModelReceipt, used: u64) {
        let ModelReceipt { birth, number, cost } = receipt;
        let threshold = self.changed.0.max(1);
        let in_force = Limit::new("settled", limit.algorithm(), threshold, limit.period())
            .expect("a limit of a trace");
        let limit = if self.is_unused(&in_force, now) {
            self.restart();
            limit
        } else {
            &in_force
        };
        if used >= cost {
            self.charge(limit, now, used - cost);
            return;
        }
        if self.births == birth {
            let (counted, changed) = (self.counted(limit, now), self.changed);
            self.forget(limit, now);
            if let Some(charge) = self.charges.iter_mut().find(|it| it.number == number) {
                charge.units -= cost - used;
            }
            // A bucket that has drained what the charge was settled by does not change.
            if self.counted(limit, now) == counted {
                self.changed = changed;
            }
        }
        if self.is_unused(limit, now) {
            self.restart();
        }
    }

    pub fn block(&mut self, now: u64, time: u64) {
        match self.blocks.last_mut() {
            Some((_, until)) if now < *until => *until = (*until).max(now + time),
            _ => self.blocks.push((now, now + time)),
        }
    }

    pub fn unblock(&mut self, now: u64) -> bool {
        let is_blocked = self.is_blocked(now);
        if let Some((_, until)) = self.blocks.last_mut() {
            *until = now.min(*until);
        }
        is_blocked
    }

    pub fn is_blocked(&self, now: u64) -> bool {
        self.blocks.iter().any(|(from, until)| (*from..*until).contains(&now))
    }

    pub fn peek(&self, limit: &Limit, now: u64, cost: u64) -> ExpectedDecision {
        ExpectedDecision::derive(
            limit.capacity(),
            cost,
            |wait, cost| self.admits(limit, now + wait, cost),
            |wait| !self.is_blocked(now + wait) && self.is_unused(limit, now + wait),
        )
    }

    pub fn reset(&mut self) {
        self.blocks.clear();
        self.restart();
    }

    fn restart(&mut self) {
        let (births, blocks) = (self.births + 1, std::mem::take(&mut self.blocks));
        *self = Self { births, charged: self.charged, blocks, ..Self::default() };
    }

    /// Returns how many charges could still be settled.
    pub fn charges(&self) -> usize {
        self.charges.len()
    }

    fn admits(&self, limit: &Limit, now: u64, cost: u64) -> bool {
        if self.is_blocked(now) {
            return false;
        }
        let (period, threshold) = (limit.period().as_micros(), u128::from(limit.threshold()));
        let counted = self.counted(limit, now);
        match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                counted + u128::from(cost) * period <= u128::from(limit.capacity()) * period
            }
            Algorithm::SlidingCounter => counted + u128::from(cost) * period <= threshold * period,
            _ => counted + u128::from(cost) <= threshold,
        }
    }

    /// Returns what counts at a time: units, or for a counter and a bucket units times the period.
    fn counted(&self, limit: &Limit, now: u64) -> u128 {
        let period = limit.period().as_micros() as u64;
        let sum = |counts: &dyn Fn(&ModelCharge) -> bool| -> u128 {
            self.charges.iter().filter(|it| counts(it)).map(|it| u128::from(it.units)).sum()
        };
        match limit.algorithm() {
            Algorithm::Sliding => sum(&|charge| charge.at + period > now),
            Algorithm::Fixed => {
                let open = self.charges.last().map_or(0, |charge| charge.start);
                sum(&|charge| charge.start == open && open + period > now)
            }
            Algorithm::SlidingCounter => {
                let start = now - now % period;
                let overlap = u128::from(start + period - now);
                sum(&|charge| charge.start == start) * u128::from(period)
                    + sum(&|charge| charge.start + period == start) * overlap
            }
            _ => self.level_at(limit, now),
        }
    }

    /// Returns the level of a bucket, times the period.
    fn level_at(&self, limit: &Limit, now: u64) -> u128 {
        let (threshold, changed) = self.changed;
        let ((mut since, mut level), old) = (self.level, u128::from(threshold));
        for charge in &self.charges {
            level = level.saturating_sub(u128::from(charge.at - since) * old);
            level += u128::from(charge.units) * limit.period().as_micros();
            since = charge.at;
        }
        // Another threshold is in force from the last change on. A bucket that has drained at the old one is full.
        let at_change = level.saturating_sub(u128::from(changed.max(since) - since) * old);
        let later = u128::from(now - changed.max(since));
        if at_change <= later * old {
            return 0;
        }
        at_change.saturating_sub(later * u128::from(limit.threshold()))
    }

    fn is_unused(&self, limit: &Limit, now: u64) -> bool {
        let period = limit.period().as_micros() as u64;
        let counts = |charge: &ModelCharge| match limit.algorithm() {
            Algorithm::SlidingCounter => now < charge.start + 2 * period,
            _ => true,
        };
        match limit.algorithm() {
            Algorithm::SlidingCounter => {
                !self.charges.iter().any(|charge| charge.units > 0 && counts(charge))
            }
            _ => self.counted(limit, now) == 0,
        }
    }

    /// Forgets what no longer counts, before a change. After a change of the threshold of a bucket, earlier charges are
    /// only a level.
    fn forget(&mut self, limit: &Limit, now: u64) {
        if self.is_unused(limit, now) {
            self.restart();
        }
        let threshold = limit.threshold();
        if is_bucket(limit.algorithm()) && self.changed.0 != threshold {
            self.level = (now, self.level_at(limit, now));
            self.charges.clear();
        }
        self.changed = (threshold, now);
    }

    fn window_start(&self, limit: &Limit, now: u64) -> u64 {
        let period = limit.period().as_micros() as u64;
        match (limit.algorithm(), self.charges.last()) {
            (Algorithm::SlidingCounter, _) => now - now % period,
            (Algorithm::Fixed, Some(last)) if last.start + period > now => last.start,
            _ => now,
        }
    }
}
