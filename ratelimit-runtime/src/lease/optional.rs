//! The leases of a limiter, as the rooms above use them.

use std::sync::Arc;

use super::Leases;
use crate::backend::Backend;
use crate::key::{Key, KeyId};
use crate::limit::Limit;
use crate::reply::Decision;
use crate::report::Report;

/// The leases of a limiter. Only one with a shared store has some.
#[derive(Clone)]
pub(crate) struct OptionalLeases(pub(crate) Option<Arc<Leases>>);

impl OptionalLeases {
    pub(crate) fn new(backend: &Arc<Backend>) -> Self {
        Self(backend.of_shared(|| Leases::new(Arc::clone(backend))))
    }

    /// Returns the leases if units of this limit are leased.
    pub(crate) fn of(&self, limit: &Limit) -> Option<&Arc<Leases>> {
        self.0.as_ref().filter(|_| limit.leases_units())
    }

    /// Decides and reports a call by leased units that this process holds.
    pub(crate) fn spend(&self, limit: &Limit, key: &dyn Key, cost: u64) -> Option<Decision> {
        let leases = self.of(limit)?;
        let (lease_id, report) = (leases.backend.key_id(limit.terms(), key), Report::start());
        let decision = leases.spend(lease_id, limit.terms(), cost)?;
        report.end_if_recorded(|| limit.label(), || Ok(decision));
        Some(decision)
    }

    /// Returns the leases that decide a call for which this process does not hold enough units, and the key id of the
    /// lease.
    pub(crate) fn serving(
        &self,
        limit: &Limit,
        key: &dyn Key,
        cost: u64,
    ) -> Option<(&Arc<Leases>, KeyId)> {
        let leases = self.of(limit)?;
        // The lease of a count has the key id under the terms of the limit, not under the terms of the lease.
        let lease_id = leases.backend.key_id(limit.terms(), key);
        leases.serves(limit, lease_id, cost).then_some((leases, lease_id))
    }
}
