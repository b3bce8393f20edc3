//! A request to a store, and its reply: calls, what a process states about a count of calls in flight, and corrections.
//! A [`Failure`] says whether the request can be sent again.

use std::sync::Arc;

use crate::algorithm::{BlockChange, Charged, Correction, Op, Outcome, Receipt, Reservation};
use crate::key::KeyId;
use crate::limit::Terms;
use crate::one_or_many::OneOrMany;
use crate::reply::{Source, StoreError};

/// The units that a call requests from one count. A charge owns its parts, so that it can wait, be sent by another
/// task, and be given back later.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
        let cost = self.cost.min(terms.capacity);
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
    /// Whether the key is blocked, unblocked or left alone.
    pub(crate) block: BlockChange,
}

impl CorrectedCharge {
    pub(crate) fn by(charge: Arc<Charge>, correction: Correction) -> Self {
        Self { charge, correction, block: BlockChange::None }
    }

    pub(crate) fn block(charge: Arc<Charge>, block: BlockChange) -> Self {
        Self { charge, correction: Correction::default(), block }
    }
}

/// The most charges that one request corrects, because Redis does nothing else while it runs a script.
pub(crate) const MAX_CORRECTED: usize = 64;

/// Calls of the same counts, which a store decides atomically and in their order, until one is rejected. All counts
/// admit a call and are charged, or no count is charged. A store may leave calls after the first undecided. Charges are
/// behind an [`Arc`], so that a clone, a queue and the future of a check hold a pointer.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    /// A take, whose wait is in [`EqualCalls`]; or a peek, or a measuring of one count: then nothing is charged, and no
    /// call after the first is decided.
    pub(crate) op: Op,
    /// The counts; none occurs twice. The costs are in [`EqualCalls`].
    pub(crate) charges: OneOrMany<Arc<Charge>>,
    pub(crate) runs: OneOrMany<EqualCalls>,
    /// The moment of the first call, which gives it up for an earlier one. If a later charge exists, the moment stays,
    /// and no call is decided. If the key is blocked, the moment stays, and the first call is rejected.
    pub(crate) replaces: Option<Reservation>,
    /// Whether the calls are of different callers, each of some of the counts: of those for which its cost is not 0.
    /// All calls are decided then, also after a rejected one.
    pub(crate) is_mixed: bool,
    /// For how long calls of a line have waited for units in flight while none was admitted; 0 before they go first.
    pub(crate) waited_us: u64,
}

/// Consecutive calls that take the same units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EqualCalls {
    /// The cost for each count, within its capacity.
    pub(crate) costs: OneOrMany<u64>,
    pub(crate) count: u32,
    /// The longest wait until the reserved moment of a call, in microseconds. Only a single bucket reserves.
    pub(crate) wait: u64,
}

/// The most calls that one request reserves, because Redis does nothing else while it runs a script. The calls after
/// them are not decided.
pub(crate) const MAX_RESERVED: usize = 64;

impl Calls {
    /// Creates a take of one charge.
    pub(crate) fn take(charge: Arc<Charge>) -> Self {
        Self::one(Op::TAKE, OneOrMany::from([charge]))
    }

    /// Creates one call, which is decided now.
    pub(crate) fn one(op: Op, charges: OneOrMany<Arc<Charge>>) -> Self {
        let costs = charges.iter().map(|charge| charge.cost).collect();
        let runs = OneOrMany::from([EqualCalls { costs, count: 1, wait: 0 }]);
        Self { op, charges, runs, replaces: None, is_mixed: false, waited_us: 0 }
    }

    /// Returns the charge of a single call of a single count, which is decided now.
    pub(crate) fn only_charge(&self) -> Option<Arc<Charge>> {
        match (&*self.charges, &*self.runs) {
            ([charge], [EqualCalls { costs, count: 1, wait: 0 }]) if self.replaces.is_none() => {
                costs.first().map(|cost| charge.with_cost(*cost))
            }
            _ => None,
        }
    }

    /// Returns the correction of the moment that these calls give up.
    pub(crate) fn replacement(&self) -> Option<Correction> {
        let cost = self.costs_of(0)?.first()?;
        Some(Correction::give_back(Charged::Reserved(self.replaces?), *cost))
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
        let share = |charge: &Arc<Charge>| Arc::new(charge.share(instances));
        let charges: OneOrMany<_> = self.charges.iter().map(share).collect();
        let within = |calls: &EqualCalls| {
            let costs = calls.costs.iter().zip(&*charges);
            let costs = costs.map(|(cost, charge)| (*cost).min(charge.terms.capacity));
            EqualCalls { costs: costs.collect(), ..*calls }
        };
        let runs = self.runs.iter().map(within).collect();
        Self { charges, runs, waited_us: 0, ..self.clone() }
    }
}

/// The reply of a store: for each admitted call the outcomes of its counts; then those of the rejected call, if one was
/// rejected. No outcomes if a later charge keeps the moment that the first call would give up. Of mixed calls, the
/// outcomes of each, and receipts for each.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) outcomes: OneOrMany<Outcome>,
    /// The receipts of the charges of the admitted calls, if the take needs them; otherwise empty. The receipt of a
    /// call that is charged nothing is the default.
    pub(crate) receipts: OneOrMany<Receipt>,
    /// What the store replies to the statements about calls in flight, in their order; `None` if it has not executed
    /// one.
    pub(crate) statements: Vec<Option<Stated>>,
    pub(crate) source: Source,
}

impl Reply {
    pub(crate) fn new(outcomes: OneOrMany<Outcome>, source: Source) -> Self {
        Self { outcomes, receipts: OneOrMany::new(), statements: Vec::new(), source }
    }

    pub(crate) fn one(outcome: Outcome, source: Source) -> Self {
        Self::new(OneOrMany::from([outcome]), source)
    }

    /// Returns the reply to a call of one count.
    pub(crate) fn to_call(op: Op, (outcome, receipt): (Outcome, Receipt), source: Source) -> Self {
        let mut reply = Self::one(outcome, source);
        if op == Op::ACQUIRE && outcome.is_allowed() {
            reply.receipts = OneOrMany::from([receipt]);
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

/// What a process states to the shared store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Statement {
    /// A random number of the process; 0 states nothing.
    pub(crate) process: u64,
    /// The number of the statement, which only grows.
    pub(crate) seq: u64,
    /// The units that the process holds.
    pub(crate) units: u64,
    /// The time of the last reset that the process knows of, or 0.
    pub(crate) epoch: u64,
    /// For how long the store keeps the units.
    pub(crate) hold_us: u64,
    /// For how long calls of the process have waited while none of them was admitted; 0 before they go first.
    pub(crate) waited_us: u64,
}

/// What the store replies to a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stated {
    pub(crate) epoch: u64,
    /// Whether the units that were stated are lost, because the count was reset.
    pub(crate) is_lost: bool,
    /// The units that the same request has taken.
    pub(crate) granted: u64,
}

impl Stated {
    /// Returns what the receipt of a statement says (`lua/slots.lua`).
    pub(crate) fn new(receipt: Receipt, granted: u64) -> Self {
        Self { epoch: receipt.birth, is_lost: receipt.place > 0, granted }
    }
}

/// Why a request failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The store has certainly not executed the request, so the request can be sent again.
    NotExecuted(StoreError),
    /// The store has not replied, so it may have executed the request.
    NoReply(StoreError),
    /// The store has replied with an error.
    Replied(StoreError),
}

impl Failure {
    /// Returns the error for a caller of the limiter.
    pub(crate) fn error(&self) -> &StoreError {
        let (Self::NotExecuted(error) | Self::NoReply(error) | Self::Replied(error)) = self;
        error
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        failure.error().clone()
    }
}
