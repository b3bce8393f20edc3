//! The request and the reply of a store.

use std::sync::Arc;

use super::{Stated, Statement};
use crate::algorithm::{Correction, LastReservations, Op, OpeningChange, Outcome, Receipt};
use crate::key::KeyId;
use crate::limit::Terms;
use crate::one_or_many::OneOrMany;
use crate::reply::Source;

/// The units that a call requests from one count. A charge owns its parts, so that it can wait, be sent by another
/// task, and be given back later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) terms: Terms,
    /// The id of the count.
    pub(crate) key_id: KeyId,
    /// The name of the count in the shared store, by [`Store::count_name`](super::Store::count_name); empty if
    /// only this process counts.
    pub(crate) count_name: Vec<u8>,
    pub(crate) cost: u64,
    /// What this process states about the count, if it is of calls in flight that the shared store counts. The owner
    /// fills it in when it sends the charge; before, it has the hold.
    pub(crate) statement: Option<Statement>,
}

impl Charge {
    /// Returns this charge for one of `instances` processes that decide without the shared store. A cost above the
    /// share of a process becomes the whole share.
    pub(crate) fn share(&self, instances: u32) -> Self {
        let terms = self.terms.share(instances);
        let cost = self.cost.min(terms.capacity());
        Self { terms, key_id: self.key_id, count_name: Vec::new(), cost, statement: None }
    }

    /// Returns a charge of `cost` units of the same count.
    pub(crate) fn with_cost(self: &Arc<Self>, cost: u64) -> Arc<Self> {
        if self.cost == cost {
            Arc::clone(self)
        } else {
            Arc::new(Self { cost, ..(**self).clone() })
        }
    }
}

/// A charge, and its correction once its call has ended.
#[derive(Clone, Debug)]
pub(crate) struct CorrectedCharge {
    pub(crate) charge: Arc<Charge>,
    pub(crate) correction: Correction,
    /// Whether the key is closed, opened or left alone.
    pub(crate) opening: OpeningChange,
}

/// The most charges that one request corrects, because Redis does nothing else while it runs a script.
pub(crate) const MAX_CORRECTED: usize = 64;

/// A charge of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct BucketCharge(Arc<Charge>);

impl BucketCharge {
    /// Creates the charge of a bucket; `None` if `charge` is of a window.
    pub(crate) fn new(charge: Arc<Charge>) -> Option<Self> {
        charge.terms.is_bucket().then_some(Self(charge))
    }

    pub(crate) fn charge(&self) -> &Arc<Charge> {
        &self.0
    }

    fn map(&self, change: impl FnOnce(&Charge) -> Charge) -> Self {
        Self(Arc::new(change(&self.0)))
    }
}

/// Calls of the same counts, which a store decides atomically and in their order, until one is rejected. All counts
/// admit a call and are charged, or no count is charged. If a cancellation is rejected, no call is decided. Charges are
/// behind an [`Arc`], so that a clone, a queue and the future of a check hold a pointer.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    /// A take without a wait; or a peek, or a measuring of one count: then nothing is charged, and no call after the
    /// first is decided.
    pub(crate) op: Op,
    pub(crate) counts: Counts,
    pub(crate) runs: OneOrMany<EqualCalls>,
    /// For how long calls of a line have waited for units in flight while none was admitted; 0 before they go first.
    pub(crate) waited_us: u64,
}

/// The counts of calls; no count occurs twice. The costs are in [`EqualCalls`].
#[derive(Clone, Debug)]
pub(crate) enum Counts {
    /// Calls are admitted now or not at all.
    Each(OneOrMany<Arc<Charge>>),
    /// Calls are admitted now, or at a moment ahead, which the bucket reserves for them.
    Bucket(BucketCharge, Reservations),
}

/// The reservations of a process in one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservations {
    /// The last reservations, which are cancelled before the calls are decided.
    pub(crate) cancelled: Option<CancelledUnits>,
    /// The units that are reserved, without the cancelled ones.
    pub(crate) held: u64,
    /// The most units that the process reserves. A call above it is reserved if no units are held.
    pub(crate) most: u64,
}

/// The last reservations of a bucket, and their units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CancelledUnits {
    pub(crate) units: u64,
    pub(crate) last: LastReservations,
}

/// Consecutive calls that take the same units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EqualCalls {
    /// The cost for each count, within its capacity.
    pub(crate) costs: OneOrMany<u64>,
    pub(crate) count: u32,
    /// The longest wait until the reserved moment of a call, in microseconds. Only buckets reserve.
    pub(crate) wait: u64,
}

/// The most calls that one request reserves, because Redis does nothing else while it runs a script. The calls after
/// them are not decided.
pub(crate) const MAX_RESERVED: usize = 64;

impl Counts {
    pub(crate) fn charges(&self) -> &[Arc<Charge>] {
        match self {
            Self::Each(charges) => charges,
            Self::Bucket(bucket, _) => std::slice::from_ref(bucket.charge()),
        }
    }

    /// Returns whether calls can be admitted at a moment ahead.
    pub(crate) fn may_reserve(&self) -> bool {
        matches!(self, Self::Bucket(..))
    }

    pub(crate) fn reservations(&self) -> Reservations {
        match self {
            Self::Each(_) => Reservations::default(),
            Self::Bucket(_, reservations) => *reservations,
        }
    }
}

impl Calls {
    /// Creates a take of one charge.
    pub(crate) fn take(charge: Arc<Charge>) -> Self {
        Self::one(Op::TAKE, OneOrMany::One(charge))
    }

    /// Creates one call, which is decided now.
    pub(crate) fn one(op: Op, charges: OneOrMany<Arc<Charge>>) -> Self {
        let costs = charges.map(|charge| charge.cost);
        let runs = OneOrMany::One(EqualCalls { costs, count: 1, wait: 0 });
        Self { op, counts: Counts::Each(charges), runs, waited_us: 0 }
    }

    /// Creates the cancellation of the last reservations of a bucket, without calls.
    pub(crate) fn cancel(bucket: BucketCharge, cancelled: CancelledUnits) -> Self {
        let reservations = Reservations { cancelled: Some(cancelled), ..Reservations::default() };
        let counts = Counts::Bucket(bucket, reservations);
        Self { op: Op::TAKE, counts, runs: OneOrMany::Many(Vec::new()), waited_us: 0 }
    }

    /// Returns the charge of a single call of a single count, which has no reservations.
    pub(crate) fn only_charge(&self) -> Option<Arc<Charge>> {
        match (&self.counts, &*self.runs) {
            (
                Counts::Each(OneOrMany::One(charge)),
                [EqualCalls { costs: OneOrMany::One(cost), count: 1, .. }],
            ) => Some(charge.with_cost(*cost)),
            _ => None,
        }
    }

    /// Returns the cancellation of these calls.
    pub(crate) fn without_calls(&self) -> Self {
        Self { runs: OneOrMany::Many(Vec::new()), ..self.clone() }
    }

    /// Returns whether this request cancels reservations.
    pub(crate) fn cancels(&self) -> bool {
        self.counts.reservations().cancelled.is_some()
    }

    /// Returns the costs of the call with an index.
    pub(crate) fn costs_of(&self, index: usize) -> Option<&OneOrMany<u64>> {
        let mut before = 0;
        let run = self.runs.iter().find(|run| {
            before += run.count as usize;
            before > index
        });
        run.map(|run| &run.costs)
    }

    /// Returns these calls under the shares of one of `instances` processes.
    pub(crate) fn share(&self, instances: u32) -> Self {
        let share = |charge: &Charge| charge.share(instances);
        let counts = match &self.counts {
            Counts::Each(charges) => Counts::Each(charges.map(|charge| Arc::new(share(charge)))),
            Counts::Bucket(bucket, reservations) => {
                let bucket = bucket.map(share);
                let most = bucket.charge().terms.capacity();
                let within = |CancelledUnits { units, last }| CancelledUnits {
                    units: units.min(most),
                    last,
                };
                let cancelled = reservations.cancelled.map(within);
                Counts::Bucket(bucket, Reservations { cancelled, ..*reservations })
            }
        };
        let within = |calls: &EqualCalls| {
            let costs = calls.costs.iter().zip(counts.charges());
            let costs = costs.map(|(cost, charge)| (*cost).min(charge.terms.capacity()));
            EqualCalls { costs: costs.collect::<Vec<_>>().into(), ..*calls }
        };
        Self { op: self.op, runs: self.runs.map(within), counts, waited_us: 0 }
    }
}

/// The reply of a store: the outcome of the cancellation, if there is one; then for each admitted call the outcomes of
/// its counts; then those of the rejected call, if one was rejected.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) outcomes: OneOrMany<Outcome>,
    /// The receipts of the charges of the admitted calls, if they can be settled or are of a bucket that reserves;
    /// otherwise empty. A receipt that is not needed is the default.
    pub(crate) receipts: OneOrMany<Receipt>,
    /// What the store replies to the statements about calls in flight, in their order; `None` if it has not executed
    /// one.
    pub(crate) statements: Vec<Option<Stated>>,
    pub(crate) source: Source,
}

impl Reply {
    pub(crate) fn new(outcomes: OneOrMany<Outcome>, source: Source) -> Self {
        Self { outcomes, receipts: OneOrMany::Many(Vec::new()), statements: Vec::new(), source }
    }

    pub(crate) fn one(outcome: Outcome, source: Source) -> Self {
        Self::new(OneOrMany::One(outcome), source)
    }

    /// Returns the reply to a call of one count.
    pub(crate) fn to_call(op: Op, (outcome, receipt): (Outcome, Receipt), source: Source) -> Self {
        let mut reply = Self::one(outcome, source);
        if op == Op::ACQUIRE && outcome.is_allowed() {
            reply.receipts = OneOrMany::One(receipt);
        }
        reply
    }

    /// Returns whether all charges were admitted.
    pub(crate) fn is_allowed(&self) -> bool {
        self.outcomes.iter().all(Outcome::is_allowed)
    }

    /// Returns the outcome of the first charge.
    pub(crate) fn first(&self) -> Outcome {
        self.outcomes.first().copied().unwrap_or(Outcome::UNDECIDED)
    }
}
