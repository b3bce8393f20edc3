//! The counts of a call, with the units that its limits take from each.

use std::sync::Arc;

use super::Backend;
use crate::key::{Key, KeyId};
use crate::limit::{Limit, LimitLabel, Terms};
use crate::one_or_many::OneOrMany;
use crate::store::{Charge, Statement, Store};

/// A count, and the units that a call takes from it. Borrows the key.
pub(crate) struct ChargedCount<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) key: &'a dyn Key,
    pub(crate) charge: Charge,
}

/// The counts of a call, each with what all parts of the call take from it.
pub(crate) struct MergedCounts<'a> {
    pub(crate) counts: OneOrMany<ChargedCount<'a>>,
    /// The index of the count of each part. Empty if there is one part.
    pub(crate) count_of: Vec<usize>,
}

impl Backend {
    /// Returns the count of `key`, with a charge of `cost` units, under the terms that [`counted`](Self::counted)
    /// returns.
    pub(crate) fn count<'a>(
        &self,
        limit: &'a Limit,
        key: &'a dyn Key,
        cost: u64,
    ) -> ChargedCount<'a> {
        ChargedCount::under(self.counted(limit), limit, key, cost, self)
    }

    /// Returns the terms under which the store counts a call: those of leases, unless the limit leases nothing or is a
    /// bucket that leases busy keys only.
    pub(crate) fn counted(&self, limit: &Limit) -> Terms {
        let is_leased = limit.leases_units() && self.is_shared(limit.policy().scope());
        if is_leased { limit.counted_beside_leases() } else { *limit.terms() }
    }
}

impl<'a> ChargedCount<'a> {
    /// Returns the count of `key` under `terms`, which are those of the limit or of its leases.
    pub(crate) fn under(
        terms: Terms,
        limit: &'a Limit,
        key: &'a dyn Key,
        cost: u64,
        backend: &Backend,
    ) -> Self {
        let key_id = backend.key_id(&terms, key);
        let charge = Charge { key_id, terms, count_name: Vec::new(), cost, statement: None };
        Self { limit, key, charge }
    }

    pub(crate) fn label(&self) -> LimitLabel {
        self.limit.label_for(&self.charge.terms)
    }

    /// Returns the charge for a request. If the shared store decides the call, the charge has the name of the count
    /// there, and what this process holds of calls in flight.
    pub(crate) fn address(self, backend: &Backend) -> Arc<Charge> {
        let Self { limit, key, mut charge } = self;
        if let Some(shared) = backend.shared_for(limit.policy().scope()) {
            charge.count_name = shared.count_name(&charge.terms, key);
            if charge.terms.is_in_flight() {
                let hold_us = limit.policy().hold().as_micros() as u64;
                charge.statement = Some(Statement { hold_us, ..Statement::default() });
            }
        }
        Arc::new(charge)
    }
}

impl<'a> MergedCounts<'a> {
    /// Returns the counts of a call with these parts. Adds up the costs of parts that have one limit and one key. If
    /// two different limits share a count, also without their leases, returns one of them.
    pub(crate) fn of(parts: &mut dyn Iterator<Item = ChargedCount<'a>>) -> Result<Self, &'a Limit> {
        let several = match (parts.next(), parts.next()) {
            // Nothing is allocated for the usual call.
            (Some(only), None) => {
                return Ok(Self { counts: OneOrMany::from([only]), count_of: Vec::new() });
            }
            (first, second) => first.into_iter().chain(second).chain(parts),
        };
        let (mut counts, mut count_of) = (Vec::<ChargedCount<'a>>::new(), Vec::new());
        let mut unleased_ids: Vec<KeyId> = Vec::new();
        for part in several {
            let (identity, key_id) = (part.limit.terms().identity(), part.charge.key_id);
            let unleased_id = key_id.under(part.charge.terms.identity(), identity);
            let mut known = counts.iter().zip(&unleased_ids);
            let known =
                known.position(|(other, id)| other.charge.key_id == key_id || *id == unleased_id);
            count_of.push(known.unwrap_or(counts.len()));
            match known.map(|index| &mut counts[index]) {
                None => {
                    unleased_ids.push(unleased_id);
                    counts.push(part);
                }
                Some(known) if known.limit == part.limit => {
                    let cost = known.charge.cost.saturating_add(part.charge.cost);
                    known.charge.cost = cost;
                }
                Some(known) => return Err(known.limit),
            }
        }
        Ok(Self { counts: counts.into(), count_of })
    }
}
