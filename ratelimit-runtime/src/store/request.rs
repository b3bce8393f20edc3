//! The request and the reply of a store.

use std::sync::Arc;

use super::OneOrMany;
use crate::algorithm::{BucketOp, Op, Outcome};
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

/// A charge of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct BucketCharge(Arc<Charge>);

impl BucketCharge {
    /// Creates the charge of a bucket; `None` if `charge` is of a window.
    pub(crate) fn new(charge: Arc<Charge>) -> Option<Self> {
        charge.terms.algorithm().is_bucket().then_some(Self(charge))
    }

    pub(crate) fn charge(&self) -> &Arc<Charge> {
        &self.0
    }

    #[cfg(feature = "redis")]
    pub(crate) fn into_charge(self) -> Arc<Charge> {
        self.0
    }

    /// Returns this charge with another cost.
    pub(crate) fn with_cost(&self, cost: u32) -> Self {
        Self(Arc::new(Charge { cost, ..(*self.0).clone() }))
    }

    fn map(&self, change: impl FnOnce(&Charge) -> Charge) -> Self {
        Self(Arc::new(change(&self.0)))
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
    /// Reserves a moment of a bucket, or cancels a reservation.
    ApplyAhead(BucketOp, BucketCharge),
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
            Self::ApplyAhead(BucketOp::Reserve { .. }, _) => false,
            Self::ApplyAhead(BucketOp::Cancel { .. }, _) => true,
        }
    }

    pub(crate) fn charges(&self) -> &[Arc<Charge>] {
        match self {
            Self::Apply(_, charges) => charges,
            Self::ApplyAhead(_, bucket) => std::slice::from_ref(bucket.charge()),
        }
    }

    /// Returns this request with changed charges, in the same order and of the same counts.
    pub(crate) fn map(&self, change: impl Fn(&Charge) -> Charge) -> Self {
        match self {
            Self::Apply(op, charges) => {
                Self::Apply(*op, charges.map(|charge| Arc::new(change(charge))))
            }
            Self::ApplyAhead(op, bucket) => Self::ApplyAhead(*op, bucket.map(change)),
        }
    }
}

/// The reply of a store: one outcome for each charge, in the order of the request.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) outcomes: OneOrMany<Outcome>,
    pub(crate) source: Source,
}

impl Reply {
    pub(crate) fn one(outcome: Outcome, source: Source) -> Self {
        Self { outcomes: OneOrMany::One(outcome), source }
    }

    /// Returns whether all charges were admitted.
    pub(crate) fn is_allowed(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.allowed)
    }

    /// Returns the outcome of the first charge.
    pub(crate) fn first(&self) -> Outcome {
        self.outcomes.first().copied().unwrap_or(Outcome::UNDECIDED)
    }
}
