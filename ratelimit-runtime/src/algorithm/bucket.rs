//! Token bucket and leaky bucket: units that were taken drain at a steady rate. Twin of `lua/bucket.lua`.
//!
//! The state is the level: the units that were taken and have not refilled yet. The units are so small that a
//! token and the refill of a microsecond are both whole numbers of units, so only a change of the rate rounds.
//! The level can be above the capacity, after reservations or after the capacity was lowered. Then no call is
//! admitted before the level has drained to the capacity. (This is the generic cell rate algorithm of ITU-T
//! I.371 in its leaky-bucket form, with the level scaled to integers.)
//!
//! The embedded store has no leases, so the reserve that the script keeps for leased units is not here.

use super::least_levels::LeastLevels;
use super::{Applied, Charged, Correction, MOST, Op, Outcome, Receipt, Reservation, State};
use crate::limit::{Rate, Terms};

/// The longest time in which a debt drains: 100 years, as the longest period.
const LONGEST_DEBT: u64 = 36_525 * 86_400_000_000;

/// The state of a bucket.
#[derive(Clone, Debug)]
pub(crate) enum Bucket {
    Plain(Contents),
    /// Charges have receipts. In a box, because few buckets have such charges.
    Receipted(Box<(Contents, Ledger)>),
}

impl Default for Bucket {
    fn default() -> Self {
        Self::Plain(Contents::default())
    }
}

/// How full a bucket was at its last change, and the rate of that time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Contents {
    /// The time of the last change.
    at: u64,
    /// The level at that time, in units of the rate of that time.
    level: u64,
    rate: Rate,
}

/// What a bucket knows about the charges that can be settled, and about the reserved moments.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    birth: u64,
    /// In units of the rate of the last change.
    levels: LeastLevels,
    /// The latest moment that was reserved.
    reserved: u64,
}

impl State for Bucket {
    fn expires(&self) -> u64 {
        self.contents().full_at()
    }

    #[inline]
    fn apply(&mut self, op: Op, birth: u64, terms: &Terms, clock: u64, cost: u64) -> Applied {
        if let Op::Take { wait: 0, receipt: false } | Op::Peek = op
            && let Some(decided) = self.decide_at_rate(op != Op::Peek, terms, clock, cost)
        {
            return (decided.outcome(terms, clock, cost), Receipt::default());
        }
        self.apply_any(op, birth, terms, clock, cost)
    }
}

impl Bucket {
    /// Decides about a take from a bucket whose rate is the one of the limit and whose charges have no receipts, as
    /// nearly all calls are; `None` for any other take (`benches/all -- embedded`).
    #[inline(always)]
    fn decide_at_rate(
        &mut self,
        takes: bool,
        terms: &Terms,
        clock: u64,
        cost: u64,
    ) -> Option<BucketAtCall> {
        let Self::Plain(contents) = self else { return None };
        if contents.rate != terms.rate || cost == 0 {
            return None;
        }
        let Contents { at, level, rate: Rate { token, drain } } = *contents;
        let now = clock.max(at);
        let before = level.saturating_sub((now - at).saturating_mul(drain));
        let charged = before + cost * token;
        let allowed = charged <= capacity_of(terms);
        let level = if allowed && takes { charged } else { before };
        if allowed && takes {
            (contents.at, contents.level) = (now, level);
        }
        Some(BucketAtCall { allowed, now, level, full: u64::MAX })
    }

    /// Applies any operation to any state.
    #[inline(never)]
    fn apply_any(&mut self, op: Op, birth: u64, terms: &Terms, clock: u64, cost: u64) -> Applied {
        // Only takes change the rate.
        let own_terms = if op.is_take() { *terms } else { self.own_terms(terms, clock) };
        let has_rate = own_terms.rate == terms.rate;
        let (terms, before) = (&own_terms, self.at(&own_terms, clock));
        let (level, charge) = (before.level, cost.saturating_mul(terms.rate.token));
        let fits = level + charge <= capacity_of(terms);
        let mut decided = BucketAtCall { allowed: fits || !op.is_take(), ..before };
        let (mut wait_us, mut receipt) = (0, Receipt::default());
        match op {
            Op::Take { wait: longest_wait, receipt: needs_receipt } => {
                let rejection = decided.outcome(terms, clock, cost);
                wait_us = rejection.retry_us;
                if wait_us > longest_wait || level + charge > MOST {
                    return (rejection, receipt);
                }
                decided.allowed = true;
                if cost > 0 {
                    decided = self.keep(terms, &before, level + charge);
                    let moment = if wait_us > 0 { clock + wait_us } else { 0 };
                    if wait_us > 0
                        && let Some(ledger) = self.ledger()
                    {
                        // The call starts at that moment, whatever is given back until then: so the charges before it
                        // can give back the level right before that moment, and no more.
                        let drained = (moment - before.now).saturating_mul(terms.rate.drain);
                        ledger.bring_to(level.saturating_sub(drained), u64::MAX);
                    }
                    if needs_receipt {
                        receipt = self.mark(birth, moment);
                    } else if let Some(ledger) = self.ledger() {
                        ledger.levels.pass();
                    }
                }
            }
            Op::Correct(correction) => match self.corrected(correction, terms, &before, has_rate) {
                None => decided.allowed = false,
                Some(changed) if changed != level => decided = self.keep(terms, &before, changed),
                Some(_) => {}
            },
            Op::Peek | Op::Measure => {}
        }
        let mut outcome = decided.outcome(terms, clock, cost);
        match op {
            Op::Take { .. } => outcome.retry_us = wait_us,
            Op::Correct(_) => outcome.retry_us = 0,
            Op::Measure => outcome.remaining = level.div_ceil(terms.rate.token),
            Op::Peek => {}
        }
        (outcome, receipt)
    }

    fn contents(&self) -> &Contents {
        match self {
            Self::Plain(contents) => contents,
            Self::Receipted(receipted) => &receipted.0,
        }
    }

    fn ledger(&mut self) -> Option<&mut Ledger> {
        match self {
            Self::Plain(_) => None,
            Self::Receipted(receipted) => Some(&mut receipted.1),
        }
    }

    /// Returns the terms with the rate of the state. A full bucket has no rate, so it takes the rate of the limit.
    fn own_terms(&self, terms: &Terms, clock: u64) -> Terms {
        let own = self.contents();
        let keeps = own.rate != terms.rate && own.full_in(clock.max(own.at)) > 0;
        if keeps { terms.with_rate(own.rate) } else { *terms }
    }

    /// Returns the level after a correction; `None` if a later charge forbids it. `has_rate` says whether the limit has
    /// the rate of the state.
    fn corrected(
        &mut self,
        correction: Correction,
        terms: &Terms,
        before: &BucketAtCall,
        has_rate: bool,
    ) -> Option<u64> {
        let (BucketAtCall { now, level, full, .. }, capacity) = (*before, capacity_of(terms));
        let Rate { token, drain } = terms.rate;
        let in_units = |tokens: u64| tokens.saturating_mul(token);
        let less = in_units(correction.less());
        if correction.change > 0 {
            let most = MOST.min(LONGEST_DEBT.saturating_mul(drain)).max(level);
            return Some(level.saturating_add(in_units(correction.more())).min(most));
        }
        // As far as the ledger knows. Without a ledger, the level is above the capacity while a moment is reserved.
        let is_ahead = self.ledger().is_some_and(|ledger| ledger.reserved > now);
        let left = match correction.charged {
            Charged::Newest => level.saturating_sub(less),
            // How much has drained since the charge is known at one rate only. While a moment is reserved, less than
            // all may be left for it.
            Charged::At(_) if !has_rate || level > capacity || is_ahead => level,
            // Units that may have drained since the charge are not given back a second time.
            Charged::At(charged_at) => {
                let drained = now.saturating_sub(charged_at).saturating_mul(drain);
                level.saturating_sub(less.min(capacity).saturating_sub(drained))
            }
            Charged::By(receipt) => {
                let Some(ledger) = self.ledger() else { return Some(level) };
                ledger.bring_to(level, full);
                level - ledger.give_back(receipt, less)
            }
            Charged::Reserved(Reservation { receipt, moment }) => {
                let ledger = self.ledger().filter(|ledger| ledger.birth == receipt.birth);
                // A count that was reset has no such charge, so nothing is left to give back.
                let Some(ledger) = ledger else { return Some(level) };
                ledger.bring_to(level, full);
                let given = ledger.levels.take_back(receipt.place, less)?;
                // The charges before it were recorded with this moment after them. Without it, they can give back what
                // has not drained since.
                let drained = now.saturating_sub(moment).saturating_mul(drain);
                level.saturating_sub(given.max(less.saturating_sub(drained)))
            }
        };
        Some(left)
    }

    /// Returns the receipt of the last charge, which was made at the same time, for the moment `reserved`. A state
    /// without a birth gets `birth`.
    fn mark(&mut self, birth: u64, reserved: u64) -> Receipt {
        let contents = *self.contents();
        if let Self::Plain(_) = self {
            let ledger = Ledger { birth, levels: LeastLevels::default(), reserved: 0 };
            *self = Self::Receipted(Box::new((contents, ledger)));
        }
        let charged = self.ledger().map(|ledger| ledger.charge(contents.level, reserved));
        charged.unwrap_or_default()
    }

    fn at(&self, terms: &Terms, clock: u64) -> BucketAtCall {
        let before = self.contents();
        let now = clock.max(before.at);
        // At an unchanged rate, the level gives the time until the bucket is full.
        let full = if before.rate == terms.rate { u64::MAX } else { before.full_in(now) };
        BucketAtCall { allowed: true, now, level: before.level_at(now, terms.rate, full), full }
    }

    /// Stores a changed level.
    fn keep(&mut self, terms: &Terms, before: &BucketAtCall, level: u64) -> BucketAtCall {
        if let Some(ledger) = self.ledger() {
            ledger.bring_to(before.level, before.full);
            ledger.levels.lower(level);
        }
        let changed = Contents { at: before.now, level, rate: terms.rate };
        match self {
            _ if level == 0 => *self = Self::default(),
            Self::Plain(contents) => *contents = changed,
            Self::Receipted(receipted) => receipted.0 = changed,
        }
        BucketAtCall { allowed: true, now: before.now, level, full: u64::MAX }
    }
}

impl Contents {
    /// Returns the time until the level has drained at the rate of its last charge. Then the bucket is full
    /// at any new rate as well, because its key in Redis may have expired.
    fn full_in(&self, now: u64) -> u64 {
        self.full_at().saturating_sub(now)
    }

    /// Returns the time at which the bucket is full again.
    fn full_at(&self) -> u64 {
        self.at + self.level.div_ceil(self.rate.drain.max(1))
    }

    /// Returns the level at `now`, as if `rate` had been in force since the last change.
    fn level_at(&self, now: u64, rate: Rate, full: u64) -> u64 {
        if full == 0 {
            return 0;
        }
        let level = if self.rate.token == rate.token {
            self.level
        } else {
            // The only step that rounds: converts the tokens to the units of another rate.
            (self.level as f64 * rate.token as f64 / self.rate.token as f64).ceil() as u64
        };
        level.min(MOST).saturating_sub((now - self.at).saturating_mul(rate.drain))
    }
}

impl Ledger {
    /// Records the level at the time of a change; `full` is the time until the bucket is full at the rate of its last
    /// charge, if the rate has changed since, and otherwise `u64::MAX`.
    fn bring_to(&mut self, level: u64, full: u64) {
        // In a full bucket, and after a change of the rate, nothing can be given back to the charges before.
        if level == 0 || full != u64::MAX {
            self.levels.forget();
        }
        if full != u64::MAX {
            // The moment of the last charge was reserved at another rate.
            self.levels.pass();
        }
        self.levels.lower(level);
    }

    /// Records a charge for the moment `reserved`, after which the bucket has this level.
    fn charge(&mut self, level: u64, reserved: u64) -> Receipt {
        self.reserved = self.reserved.max(reserved);
        Receipt { birth: self.birth, place: self.levels.charge(level) }
    }

    /// Gives back up to `units` of a charge. Returns how many.
    fn give_back(&mut self, receipt: Receipt, units: u64) -> u64 {
        if receipt.birth == self.birth { self.levels.give_back(receipt.place, units) } else { 0 }
    }
}

/// A bucket at the time of a call, before or after it.
#[derive(Clone, Copy)]
pub(crate) struct BucketAtCall {
    allowed: bool,
    /// The later of the clock and the last change.
    now: u64,
    level: u64,
    /// The time until the bucket is full at the rate of its last charge, if the rate has changed since;
    /// otherwise `u64::MAX`.
    full: u64,
}

impl BucketAtCall {
    /// Returns a bucket that was changed by its last call, or would have been.
    pub(crate) fn at_level(level: u64, allowed: bool, now: u64) -> Self {
        Self { allowed, now, level, full: u64::MAX }
    }

    /// Returns the outcome of the last call.
    #[inline(always)]
    pub(crate) fn outcome(self, terms: &Terms, clock: u64, cost: u64) -> Outcome {
        let Self { allowed, now, level, full } = self;
        let (Rate { token, drain }, capacity) = (terms.rate, capacity_of(terms));
        // The time from the clock to the last change, if that is later.
        let lag = now - clock;
        let retry = || {
            let charge = cost.saturating_mul(token);
            ceil((level + charge).saturating_sub(capacity), drain).min(full) + lag
        };
        Outcome {
            clock,
            verdict: allowed.into(),
            remaining: capacity.saturating_sub(level) / token,
            retry_us: if allowed { 0 } else { retry() },
            reset_us: if level == 0 { 0 } else { ceil(level, drain).min(full) + lag },
        }
    }
}

/// Returns by how many units the time until the bucket is full is rounded up.
pub(crate) fn slack(level: u64, rate: Rate) -> u64 {
    level.next_multiple_of(rate.drain) - level
}

fn capacity_of(terms: &Terms) -> u64 {
    terms.capacity * terms.rate.token
}

/// Divides and rounds up. For a drain of 1, saves the division, the slowest instruction of a decision
/// (`benches/all -- embedded`).
fn ceil(units: u64, drain: u64) -> u64 {
    if drain == 1 { units } else { units.div_ceil(drain) }
}
