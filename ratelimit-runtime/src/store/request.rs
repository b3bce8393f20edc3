//! The request and the reply of a store.

use std::sync::Arc;

use super::OneOrMany;
use crate::algorithm::{Op, OpeningChange, Outcome, Receipt, Settlement};
use crate::key::KeyId;
use crate::limit::Terms;
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
    pub(crate) cost: u32,
}

impl Charge {
    /// Returns this charge for one of `instances` processes that decide without the shared store. A cost above the
    /// share of a process becomes the whole share.
    pub(crate) fn share(&self, instances: u32) -> Self {
        let terms = self.terms.share(instances);
        let cost = self.cost.min(terms.capacity());
        Self { terms, key_id: self.key_id, count_name: Vec::new(), cost }
    }
}

/// A charge, and its correction once its call has ended.
#[derive(Clone, Debug)]
pub(crate) struct SettledCharge {
    pub(crate) charge: Arc<Charge>,
    pub(crate) settlement: Settlement,
    /// Whether the key is closed, opened or left alone.
    pub(crate) opening: OpeningChange,
}

/// The most charges that one request corrects, because Redis does nothing else while it runs a script.
pub(crate) const MAX_SETTLED: usize = 64;

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

/// Calls that wait for the same counts, in the order of their arrival.
#[derive(Clone, Debug)]
pub(crate) struct LineRequest {
    pub(crate) counts: LineCounts,
    pub(crate) calls: Vec<EqualCalls>,
    /// Whether the charges can be settled. The reply then has receipts for each admitted call.
    pub(crate) settles: bool,
}

/// The counts of a line. The costs are in [`EqualCalls`].
#[derive(Clone, Debug)]
pub(crate) enum LineCounts {
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
    pub(crate) held: u32,
    /// The most units that the process reserves. A call above it is reserved if no units are held.
    pub(crate) most: u32,
}

/// The last reservations of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CancelledUnits {
    pub(crate) units: u32,
    /// The time of the full bucket after the last of them, by the clock of the store.
    pub(crate) end: u64,
}

/// Consecutive calls of a line that take the same units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EqualCalls {
    /// The cost for each count of the line.
    pub(crate) costs: OneOrMany<u32>,
    pub(crate) count: u32,
    /// The longest wait until the reserved moment of a call, in microseconds. Only buckets reserve.
    pub(crate) wait: u64,
}

/// The most calls that one request reserves, because Redis does nothing else while it runs a script. The calls after
/// them are not decided.
pub(crate) const MAX_RESERVED: usize = 64;

impl LineCounts {
    pub(crate) fn charges(&self) -> &[Arc<Charge>] {
        match self {
            Self::Each(charges) => charges,
            Self::Bucket(bucket, _) => std::slice::from_ref(bucket.charge()),
        }
    }
}

impl LineRequest {
    /// Returns a request that only cancels the last reservations of a bucket.
    pub(crate) fn cancel(bucket: BucketCharge, cancelled: CancelledUnits) -> Self {
        let reservations = Reservations { cancelled: Some(cancelled), ..Reservations::default() };
        Self { counts: LineCounts::Bucket(bucket, reservations), calls: Vec::new(), settles: false }
    }

    /// Returns whether this request cancels reservations.
    pub(crate) fn cancels(&self) -> bool {
        match &self.counts {
            LineCounts::Each(_) => false,
            LineCounts::Bucket(_, reservations) => reservations.cancelled.is_some(),
        }
    }

    /// Returns the costs of the call with an index.
    pub(crate) fn costs_of(&self, index: usize) -> Option<&OneOrMany<u32>> {
        let mut before = 0;
        let run = self.calls.iter().find(|run| {
            before += run.count as usize;
            before > index
        });
        run.map(|run| &run.costs)
    }

    /// Returns this request under the shares of one of `instances` processes.
    fn share(&self, instances: u32) -> Self {
        let share = |charge: &Charge| charge.share(instances);
        let counts = match &self.counts {
            LineCounts::Each(charges) => {
                LineCounts::Each(charges.map(|charge| Arc::new(share(charge))))
            }
            LineCounts::Bucket(bucket, reservations) => {
                let bucket = bucket.map(share);
                let most = bucket.charge().terms.capacity();
                let within =
                    |CancelledUnits { units, end }| CancelledUnits { units: units.min(most), end };
                let cancelled = reservations.cancelled.map(within);
                LineCounts::Bucket(bucket, Reservations { cancelled, ..*reservations })
            }
        };
        let within = |calls: &EqualCalls| {
            let costs = calls.costs.iter().zip(counts.charges());
            let costs = costs.map(|(cost, charge)| (*cost).min(charge.terms.capacity()));
            EqualCalls { costs: costs.collect::<Vec<_>>().into(), ..*calls }
        };
        let calls = self.calls.iter().map(within).collect();
        Self { calls, counts, settles: self.settles }
    }
}

/// A request to a store. Charges are behind an [`Arc`], so that a clone, a queue and the future of a check
/// hold a pointer.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// Applies an operation to all charges atomically: either all counts admit the call and are charged, or no count
    /// is charged. Each charge is of another count. The cost of a charge is within its capacity, except for a
    /// refund.
    Apply(Op, OneOrMany<Arc<Charge>>),
    /// Decides a call as `Apply(Op::Decide, ..)` does. Its charges can be settled: the reply has their receipts.
    Acquire(OneOrMany<Arc<Charge>>),
    /// Decides the calls of a line atomically, in their order, until one is rejected. The reply has the outcome of the
    /// cancellation, if there is one; then for each admitted call the outcomes of its counts; then those of the
    /// rejected call, if one was rejected. If the cancellation is rejected, no call is decided.
    Line(LineRequest),
}

impl Request {
    /// Returns the request to decide one charge.
    pub(crate) fn decide(charge: Arc<Charge>) -> Self {
        Self::Apply(Op::Decide, OneOrMany::One(charge))
    }

    /// Returns the request to give units back to one count.
    pub(crate) fn give_back(op: Op, charge: Arc<Charge>) -> Self {
        Self::Apply(op, OneOrMany::One(charge))
    }

    /// Returns whether this request gives units back.
    pub(crate) fn gives_back(&self) -> bool {
        match self {
            Self::Apply(op, _) => op.gives_back(),
            Self::Acquire(_) => false,
            Self::Line(line) => line.cancels(),
        }
    }

    pub(crate) fn charges(&self) -> &[Arc<Charge>] {
        match self {
            Self::Apply(_, charges) | Self::Acquire(charges) => charges,
            Self::Line(line) => line.counts.charges(),
        }
    }

    /// Returns this request for one of `instances` processes that decide without the shared store.
    pub(crate) fn share(&self, instances: u32) -> Self {
        let share = |charge: &Arc<Charge>| Arc::new(charge.share(instances));
        match self {
            Self::Apply(op, charges) => Self::Apply(*op, charges.map(share)),
            Self::Acquire(charges) => Self::Acquire(charges.map(share)),
            Self::Line(line) => Self::Line(line.share(instances)),
        }
    }
}

/// The reply of a store: one outcome for each charge, in the order of the request. [`Request::Line`] says what the
/// reply to a line contains.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) outcomes: OneOrMany<Outcome>,
    /// The receipts of the charges of a [`Request::Acquire`] that was admitted, or of the admitted calls of a line
    /// whose charges can be settled; otherwise empty.
    pub(crate) receipts: OneOrMany<Receipt>,
    pub(crate) source: Source,
}

impl Reply {
    pub(crate) fn new(outcomes: OneOrMany<Outcome>, source: Source) -> Self {
        Self { outcomes, receipts: OneOrMany::Many(Vec::new()), source }
    }

    pub(crate) fn one(outcome: Outcome, source: Source) -> Self {
        Self::new(OneOrMany::One(outcome), source)
    }

    /// Returns whether all charges were admitted.
    pub(crate) fn is_allowed(&self) -> bool {
        self.outcomes.iter().all(Outcome::is_allowed)
    }

    /// Returns whether a store has charged the call.
    pub(crate) fn is_charged(&self) -> bool {
        self.is_allowed() && self.outcomes.iter().all(|outcome| *outcome != Outcome::UNDECIDED)
    }

    /// Returns the outcome of the first charge.
    pub(crate) fn first(&self) -> Outcome {
        self.outcomes.first().copied().unwrap_or(Outcome::UNDECIDED)
    }
}
