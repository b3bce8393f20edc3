//! Token bucket and leaky bucket: units that were taken drain at a steady rate. Twin of `lua/bucket.lua`.
//!
//! The state is the level: the units that were taken and have not refilled yet. The units are so small that a
//! token and the refill of a microsecond are both whole numbers of units, so only a change of the rate rounds.
//! The level can be above the capacity, after reservations or after the capacity was lowered. Then no call is
//! admitted before the level has drained to the capacity. (This is the generic cell rate algorithm of ITU-T
//! I.371 in its leaky-bucket form, with the level scaled to integers.)
//!
//! The embedded store has no leases, so the reserve that the script keeps for leased units is not here.

mod decided;
mod ledger;
mod unpacked;

pub(crate) use self::decided::DecidedBucket;
use self::ledger::Ledger;
use self::unpacked::UnpackedBucket;
use super::{BucketOp, LastReservations, Op, Outcome, Receipt, Settlement, State};
use crate::limit::{Rate, Terms};

/// The highest level and the latest time.
const MOST: u64 = (1 << WIDTH) - 1;

/// The width of the integers that an `f64` holds exactly.
const WIDTH: u32 = 53;

/// The highest bit of the third word: set while there is a ledger. `drain` does not need it.
const HAS_LEDGER: u64 = 1 << 63;

/// The longest time in which a debt drains: 100 years, as the longest period.
const LONGEST_DEBT: u64 = 36_525 * 86_400_000_000;

/// The state of a bucket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bucket {
    /// The low 53 bits of a word hold one number. The high 11 bits hold a part of `drain`, which is below 2³².
    words: [u64; 3],
    /// The charges that can be settled; `None` until a call acquires units.
    ledger: Option<Box<Ledger>>,
}

impl Bucket {
    fn unpack(&self) -> UnpackedBucket {
        let [at, level, token] = self.words;
        let drain = at >> WIDTH | level >> WIDTH << 11 | (token & !HAS_LEDGER) >> WIDTH << 22;
        UnpackedBucket { at: at & MOST, level: level & MOST, token: token & MOST, drain }
    }
}

impl State for Bucket {
    fn expires(&self) -> u64 {
        self.unpack().full_at()
    }

    #[inline]
    fn apply(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> Outcome {
        if op == Op::Decide
            && let Some(decided) = self.decide_at_rate(terms, clock, cost)
        {
            return decided.outcome(terms, clock, cost);
        }
        if op.is_limited() {
            return self.decide_any(op, terms, clock, cost).outcome(terms, clock, cost);
        }
        let own_terms = self.own_terms(terms, clock);
        match op {
            Op::Measure => self.measure(&own_terms, clock),
            // How much has drained since the charge is known at one rate only.
            Op::Return { .. } if own_terms.rate() != terms.rate() => {
                self.decide_any(op, &own_terms, clock, 0).outcome(&own_terms, clock, 0)
            }
            _ => self.decide_any(op, &own_terms, clock, cost).outcome(&own_terms, clock, cost),
        }
    }

    fn acquire(&mut self, birth: u64, terms: &Terms, clock: u64, cost: u32) -> (Outcome, Receipt) {
        let outcome = self.apply(Op::Decide, terms, clock, cost);
        if !outcome.is_allowed() || cost == 0 {
            return (outcome, Receipt::default());
        }
        (outcome, self.mark(birth, 0))
    }

    fn settle(&mut self, settlement: Settlement, terms: &Terms, clock: u64) -> Outcome {
        let terms = &self.own_terms(terms, clock);
        let BucketAtCall { now, level, full, .. } = self.at(terms, clock, 0);
        let Rate { token, drain } = terms.rate();
        let in_units = |tokens: u32| u64::from(tokens).saturating_mul(token);
        let mut changed = None;
        if settlement.more() > 0 {
            let most = MOST.min(LONGEST_DEBT.saturating_mul(drain)).max(level);
            changed = Some(level.saturating_add(in_units(settlement.more())).min(most));
        } else if settlement.less() > 0
            && let Some(ledger) = &mut self.ledger
        {
            ledger.bring_to(level, full);
            let given_back = ledger.give_back(settlement.receipt, in_units(settlement.less()));
            changed = (given_back > 0).then(|| level - given_back);
        }
        self.keep(terms, clock, now, changed, (level, full)).outcome(terms, clock, 0)
    }
}

impl Bucket {
    /// Decides a call whose rate is the rate of the state, as it is for nearly all calls; `None` for any other
    /// call. Saves unpacking the state (`benches/all -- instructions`).
    #[inline(always)]
    fn decide_at_rate(&mut self, terms: &Terms, clock: u64, cost: u32) -> Option<DecidedBucket> {
        let Rate { token, drain } = terms.rate();
        let empty: [u64; 3] = UnpackedBucket { at: 0, level: 0, token, drain }.into();
        // A ledger makes the third word differ.
        let [at, level, other] = [0, 1, 2].map(|word| self.words[word] ^ empty[word]);
        if other != 0 || (at | level) > MOST || cost == 0 {
            return None;
        }
        let (now, charge) = (clock.max(at), u64::from(cost) * token);
        let before = level.saturating_sub((now - at).saturating_mul(drain));
        let level = before + charge;
        let lag = now - clock;
        if level > capacity_of(terms) {
            return Some(DecidedBucket { allowed: false, level: before, lag, full: u64::MAX });
        }
        self.words = UnpackedBucket { at: now, level, token, drain }.into();
        Some(DecidedBucket { allowed: true, level, lag, full: u64::MAX })
    }

    /// Applies any operation to any state.
    #[inline(never)]
    fn decide_any(&mut self, op: Op, terms: &Terms, clock: u64, cost: u32) -> DecidedBucket {
        let BucketAtCall { now, lag, level, full, capacity, charge, .. } =
            self.at(terms, clock, cost);
        let allowed = !op.is_limited() || level + charge <= capacity;
        if !allowed {
            return DecidedBucket { allowed, level, lag, full };
        }
        let changed = match op {
            Op::Peek | Op::Measure => None,
            Op::Decide => Some(level + charge),
            Op::Refund => Some(level.saturating_sub(charge)),
            // While a moment is reserved, less than all may be left for it.
            Op::Return { .. } if level > capacity || self.is_ahead(now) => None,
            // Units that may have drained since the charge are not given back a second time.
            Op::Return { at: charged_at } => {
                let drained = now.saturating_sub(charged_at).saturating_mul(terms.rate().drain);
                Some(level.saturating_sub(charge.min(capacity).saturating_sub(drained)))
            }
        };
        self.keep(terms, clock, now, changed.filter(|_| cost > 0), (level, full))
    }

    /// Returns the terms with the rate of the state, which only calls change. A full bucket has no rate, so it takes
    /// the rate of the limit.
    fn own_terms(&self, terms: &Terms, clock: u64) -> Terms {
        let own = self.unpack();
        let keeps = !own.has_rate(terms.rate()) && own.full_in(clock.max(own.at)) > 0;
        if keeps { terms.with_rate(Rate { token: own.token, drain: own.drain }) } else { *terms }
    }

    /// Applies [`Op::Measure`].
    fn measure(&self, terms: &Terms, clock: u64) -> Outcome {
        let BucketAtCall { lag, level, full, .. } = self.at(terms, clock, 0);
        let used = level.div_ceil(terms.rate().token);
        let outcome = DecidedBucket { allowed: true, level, lag, full }.outcome(terms, clock, 0);
        Outcome { remaining: u32::try_from(used).unwrap_or(u32::MAX), ..outcome }
    }

    /// Returns whether a call has acquired units since the bucket was full.
    pub(crate) fn has_birth(&self) -> bool {
        self.ledger.is_some()
    }

    /// Returns whether a reserved moment is after `now`, as far as the ledger knows. Without a ledger, the level is
    /// then above the capacity.
    fn is_ahead(&self, now: u64) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.is_ahead(now))
    }

    /// Returns the receipt of the last charge, which was made at the same time, for the moment `reserved`. A state
    /// without a birth gets `birth`.
    pub(crate) fn mark(&mut self, birth: u64, reserved: u64) -> Receipt {
        let level = self.unpack().level;
        let ledger = self.ledger.get_or_insert_with(|| Box::new(Ledger::new(birth)));
        let receipt = ledger.charge(level, reserved);
        self.words[2] |= HAS_LEDGER;
        receipt
    }

    /// Reserves a moment, or cancels a reservation.
    pub(crate) fn apply_ahead(
        &mut self,
        op: BucketOp,
        terms: &Terms,
        clock: u64,
        cost: u32,
    ) -> Outcome {
        let own_terms;
        let terms = match op {
            BucketOp::Cancel(_) => {
                own_terms = self.own_terms(terms, clock);
                &own_terms
            }
            BucketOp::Reserve { .. } => terms,
        };
        let BucketAtCall { before, now, lag, level, full, capacity, charge } =
            self.at(terms, clock, cost);
        let rejected = DecidedBucket { allowed: false, level, lag, full };
        let changed = match op {
            BucketOp::Cancel(last) => {
                if let Some(units) = self.cancelled(last, terms, now, charge) {
                    Some(level.saturating_sub(units))
                } else if last.end > before.full_at() && level <= capacity {
                    // The bucket is full earlier, because the count was reset or refunded. No reservation holds up
                    // calls.
                    None
                } else {
                    return Outcome { retry_us: 0, ..rejected.outcome(terms, clock, cost) };
                }
            }
            BucketOp::Reserve { wait: longest_wait } => {
                let rejection = rejected.outcome(terms, clock, cost);
                let is_now = level + charge <= capacity;
                let retry = if is_now { 0 } else { rejection.retry_us };
                if retry > longest_wait || level + charge > MOST {
                    return rejection;
                }
                let changed = (cost > 0).then_some(level + charge);
                let reserved = self.keep(terms, clock, now, changed, (level, full));
                if retry > 0
                    && let Some(ledger) = &mut self.ledger
                {
                    // The call starts at its moment, whatever is given back until then. So the charges before it can
                    // give back the level right before that moment, and no more.
                    let until_moment = retry - (now - clock);
                    let drained = until_moment.saturating_mul(terms.rate().drain);
                    let level_at_moment = level.saturating_sub(drained);
                    ledger.bring_to(level_at_moment, u64::MAX);
                }
                return Outcome { retry_us: retry, ..reserved.outcome(terms, clock, cost) };
            }
        };
        let changed = changed.filter(|_| cost > 0);
        self.keep(terms, clock, now, changed, (level, full)).outcome(terms, clock, cost)
    }

    /// Returns the units of the last reservations that are given back; `None` if another charge came after these.
    fn cancelled(
        &mut self,
        last: LastReservations,
        terms: &Terms,
        now: u64,
        charge: u64,
    ) -> Option<u64> {
        let (before, receipt) = (self.unpack(), last.receipt);
        let is_last = match &mut self.ledger {
            None => receipt == Receipt::default() && last.end == before.full_at(),
            Some(ledger) => ledger.take_back(receipt, last.count.into()),
        };
        // What has drained since the first moment may have been given back, or counts for a later charge that ends
        // at the same time.
        let drained = now.saturating_sub(last.moment).saturating_mul(terms.rate().drain);
        is_last.then(|| charge.saturating_sub(drained))
    }

    fn write(&mut self, bucket: UnpackedBucket) {
        if bucket.level == 0 {
            *self = Self::default();
            return;
        }
        self.words = bucket.into();
        if let Some(ledger) = &mut self.ledger {
            ledger.lower(bucket.level);
            self.words[2] |= HAS_LEDGER;
        }
    }

    fn at(&self, terms: &Terms, clock: u64, cost: u32) -> BucketAtCall {
        let before = self.unpack();
        let now = clock.max(before.at);
        // At an unchanged rate, the level gives the time until the bucket is full.
        let full = if before.has_rate(terms.rate()) { u64::MAX } else { before.full_in(now) };
        BucketAtCall {
            before,
            now,
            lag: now - clock,
            level: before.level_at(now, terms.rate(), full),
            full,
            capacity: u64::from(terms.capacity()) * terms.rate().token,
            charge: u64::from(cost).saturating_mul(terms.rate().token),
        }
    }

    /// Stores a changed level. If the level did not change, `full` is the time until the bucket is full.
    fn keep(
        &mut self,
        terms: &Terms,
        clock: u64,
        now: u64,
        changed: Option<u64>,
        (level, full): (u64, u64),
    ) -> DecidedBucket {
        let Rate { token, drain } = terms.rate();
        if changed.is_some()
            && let Some(ledger) = &mut self.ledger
        {
            ledger.bring_to(level, full);
        }
        let (level, full) = changed.map_or((level, full), |level| (level, u64::MAX));
        if changed.is_some() {
            self.write(UnpackedBucket { at: now, level, token, drain });
        }
        DecidedBucket { allowed: true, level, lag: now - clock, full }
    }
}

/// A bucket at the time of a call.
struct BucketAtCall {
    before: UnpackedBucket,
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

/// Returns by how many units the time until the bucket is full is rounded up.
#[cfg(feature = "redis")]
pub(crate) fn slack(level: u64, rate: Rate) -> u32 {
    // Below the drain, which is a `u32`.
    (level.next_multiple_of(rate.drain) - level) as u32
}

fn capacity_of(terms: &Terms) -> u64 {
    u64::from(terms.capacity()) * terms.rate().token
}

/// Divides and rounds up. For a drain of 1, saves the division, the slowest instruction of a decision
/// (`benches/all -- embedded`).
fn ceil(units: u64, drain: u64) -> u64 {
    if drain == 1 { units } else { units.div_ceil(drain) }
}
