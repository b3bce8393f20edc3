//! Token bucket and leaky bucket: units that were taken drain at a steady rate. Twin of `lua/bucket.lua`.
//!
//! The state is the level: the units that were taken and have not refilled yet. The units are so small that a
//! token and the refill of a microsecond are both whole numbers of units, so only a change of the rate rounds.
//! The level can be above the capacity, after reservations or after the capacity was lowered. Then no call is
//! admitted before the level has drained to the capacity. (This is the generic cell rate algorithm of ITU-T
//! I.371 in its leaky-bucket form, with the level scaled to integers.)
//!
//! The embedded store has no leases, so the reserve that the script keeps for leased units is not here.

mod contents;
mod decided;
mod ledger;

use self::contents::Contents;
pub(crate) use self::decided::DecidedBucket;
use self::ledger::Ledger;
use super::{Applied, Charged, Correction, MOST, Op, Receipt, Reservation, State};
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
        Self::Plain(Contents::EMPTY)
    }
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
    ) -> Option<DecidedBucket> {
        let Self::Plain(contents) = self else { return None };
        if !contents.has_rate(terms.rate) || cost == 0 {
            return None;
        }
        let Contents { at, level, token, drain } = *contents;
        let now = clock.max(at);
        let before = level.saturating_sub((now - at).saturating_mul(drain));
        let charged = before + cost * token;
        let allowed = charged <= capacity_of(terms);
        let level = if allowed && takes { charged } else { before };
        if allowed && takes {
            (contents.at, contents.level) = (now, level);
        }
        Some(DecidedBucket { allowed, level, lag: now - clock, full: u64::MAX })
    }

    /// Applies any operation to any state.
    #[inline(never)]
    fn apply_any(&mut self, op: Op, birth: u64, terms: &Terms, clock: u64, cost: u64) -> Applied {
        // Only takes change the rate.
        let own_terms = if op.is_take() { *terms } else { self.own_terms(terms, clock) };
        let has_rate = own_terms.rate == terms.rate;
        let (terms, before) = (&own_terms, self.at(&own_terms, clock, cost));
        let BucketAtCall { level, capacity, charge, .. } = before;
        let fits = level + charge <= capacity;
        let mut decided = before.decided(fits || !op.is_take());
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
                    if wait_us > 0 {
                        self.reserve(terms, &before, wait_us);
                    }
                    if needs_receipt {
                        receipt = self.mark(birth, if wait_us > 0 { clock + wait_us } else { 0 });
                    } else if let Some(ledger) = self.ledger() {
                        ledger.pass();
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
        let keeps = !own.has_rate(terms.rate) && own.full_in(clock.max(own.at)) > 0;
        if keeps { terms.with_rate(Rate { token: own.token, drain: own.drain }) } else { *terms }
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
        let BucketAtCall { now, level, full, capacity, .. } = *before;
        let Rate { token, drain } = terms.rate;
        let in_units = |tokens: u64| tokens.saturating_mul(token);
        let less = in_units(correction.less());
        if correction.change > 0 {
            let most = MOST.min(LONGEST_DEBT.saturating_mul(drain)).max(level);
            return Some(level.saturating_add(in_units(correction.more())).min(most));
        }
        let left = match correction.charged {
            Charged::Newest => level.saturating_sub(less),
            // How much has drained since the charge is known at one rate only. While a moment is reserved, less than
            // all may be left for it.
            Charged::At(_) if !has_rate || level > capacity || self.is_ahead(now) => level,
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
                let ledger = self.ledger().filter(|ledger| ledger.has_birth(receipt));
                // A count that was reset has no such charge, so nothing is left to give back.
                let Some(ledger) = ledger else { return Some(level) };
                ledger.bring_to(level, full);
                let given = ledger.take_back(receipt, less)?;
                // The charges before it were recorded with this moment after them. Without it, they can give back what
                // has not drained since.
                let drained = now.saturating_sub(moment).saturating_mul(drain);
                level.saturating_sub(given.max(less.saturating_sub(drained)))
            }
        };
        Some(left)
    }

    /// Returns whether a reserved moment is after `now`, as far as the ledger knows. Without a ledger, the level is
    /// then above the capacity.
    fn is_ahead(&mut self, now: u64) -> bool {
        self.ledger().is_some_and(|ledger| ledger.is_ahead(now))
    }

    /// Returns the receipt of the last charge, which was made at the same time, for the moment `reserved`. A state
    /// without a birth gets `birth`.
    fn mark(&mut self, birth: u64, reserved: u64) -> Receipt {
        let contents = *self.contents();
        if let Self::Plain(_) = self {
            *self = Self::Receipted(Box::new((contents, Ledger::new(birth))));
        }
        let charged = self.ledger().map(|ledger| ledger.charge(contents.level, reserved));
        charged.unwrap_or_default()
    }

    /// Records that a call was charged which starts in `wait_us`. It starts at that moment, whatever is given back
    /// until then: so the charges before it can give back the level right before that moment, and no more.
    fn reserve(&mut self, terms: &Terms, before: &BucketAtCall, wait_us: u64) {
        if let Some(ledger) = self.ledger() {
            let drained = (wait_us - before.lag).saturating_mul(terms.rate.drain);
            ledger.bring_to(before.level.saturating_sub(drained), u64::MAX);
        }
    }

    fn at(&self, terms: &Terms, clock: u64, cost: u64) -> BucketAtCall {
        let before = self.contents();
        let now = clock.max(before.at);
        // At an unchanged rate, the level gives the time until the bucket is full.
        let full = if before.has_rate(terms.rate) { u64::MAX } else { before.full_in(now) };
        BucketAtCall {
            now,
            lag: now - clock,
            level: before.level_at(now, terms.rate, full),
            full,
            capacity: capacity_of(terms),
            charge: cost.saturating_mul(terms.rate.token),
        }
    }

    /// Stores a changed level.
    fn keep(&mut self, terms: &Terms, before: &BucketAtCall, level: u64) -> DecidedBucket {
        let Rate { token, drain } = terms.rate;
        if let Some(ledger) = self.ledger() {
            ledger.bring_to(before.level, before.full);
            ledger.lower(level);
        }
        let changed = Contents { at: before.now, level, token, drain };
        match self {
            _ if level == 0 => *self = Self::default(),
            Self::Plain(contents) => *contents = changed,
            Self::Receipted(receipted) => receipted.0 = changed,
        }
        DecidedBucket { allowed: true, level, lag: before.lag, full: u64::MAX }
    }
}

/// A bucket at the time of a call.
struct BucketAtCall {
    /// The later of the clock and the last change; `lag` is its difference to the clock.
    now: u64,
    lag: u64,
    level: u64,
    /// The time until the bucket is full at the rate of its last charge, if the rate has changed since;
    /// otherwise `u64::MAX`.
    full: u64,
    capacity: u64,
    charge: u64,
}

impl BucketAtCall {
    /// Returns the bucket after a call that has changed nothing.
    fn decided(&self, allowed: bool) -> DecidedBucket {
        DecidedBucket { allowed, level: self.level, lag: self.lag, full: self.full }
    }
}

/// Returns by how many units the time until the bucket is full is rounded up.
#[cfg(feature = "redis")]
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
