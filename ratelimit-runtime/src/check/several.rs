//! A call that is checked against several limits in one decision.

use std::sync::Arc;

use super::{Check, Checker, Part};
use crate::algorithm::Op;
use crate::key::{Key, KeyId};
use crate::limit::LimitLabel;
use crate::reply::{Rejection, StoreError};
use crate::report::{self, Report};
use crate::store::{Charge, OneOrMany, Request};

/// The charges of a call, each of another count, with the labels of their limits.
struct MergedParts<'a, K: ?Sized> {
    charges: Vec<Arc<Charge>>,
    labels: Vec<LimitLabel>,
    keys: Vec<&'a K>,
}

impl Checker {
    pub(crate) fn check_all<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> Check {
        let report = Report::start();
        let Some(first) = parts.first().map(|part| part.limit) else {
            return Check::failed(report, LimitLabel::unnamed(), StoreError::NoLimits);
        };
        let policy = first.policy();
        if !parts.iter().all(|part| part.limit.policy().agrees_with(policy)) {
            return Check::failed(report, first.label(), StoreError::MixedLimits);
        }
        for part in parts {
            report::expect(part.limit);
        }
        let MergedParts { charges, labels, keys } = match self.merge(parts) {
            Ok(merged) => merged,
            Err(label) => {
                let name = label.name.clone();
                return Check::failed(report, label, StoreError::SharedCount { name });
            }
        };
        let keys = charges.iter().zip(keys);
        let keys = keys.map(|(charge, key)| (&charge.terms, charge.key_id, charge.cost, key));
        let report = report.with_keys(self.backend.reports(), first.is_shadow(), keys);
        let too_large = charges.iter().position(|charge| charge.cost > charge.terms.capacity());
        if let Some(index) = too_large {
            let rejection = Rejection::exceeds_capacity_of(&labels[index], charges[index].cost);
            return Check::rejected(Some(report.about(index)), labels[index].clone(), rejection);
        }
        let (labels, charges) = (OneOrMany::from(labels), OneOrMany::from(charges));
        if let Some(wait) = first.max_wait() {
            let waiting = Arc::clone(&self.waiting);
            return Check::pending(report, labels, move || waiting.admit(policy, charges, wait));
        }
        let request = Request::Apply(Op::Decide, charges);
        if let Some(reply) = self.backend.execute_locally(policy, &request) {
            return Check::judged(report, &labels, &reply);
        }
        let backend = Arc::clone(&self.backend);
        Check::pending(
            report,
            labels,
            move || async move { backend.execute(policy, request).await },
        )
    }

    /// Adds up the costs of parts that have one limit and one key. If two different limits share a count,
    /// also without their leases, returns the label of one of them.
    fn merge<'a, K: Key + ?Sized>(
        &self,
        parts: &[Part<'a, K>],
    ) -> Result<MergedParts<'a, K>, LimitLabel> {
        let mut merged = MergedParts { charges: Vec::new(), labels: Vec::new(), keys: Vec::new() };
        let mut limits = Vec::with_capacity(parts.len());
        let mut unleased_ids = Vec::with_capacity(parts.len());
        for Part { limit, key, cost } in parts {
            let charge = self.backend.charge(self.counted(limit), *key, *cost);
            let unleased_id =
                charge.key_id.under(charge.terms.identity(), limit.terms().identity());
            let mut known = merged.charges.iter().zip(&unleased_ids);
            let known = known.position(|(other, id): (&Arc<Charge>, &KeyId)| {
                other.key_id == charge.key_id || *id == unleased_id
            });
            match known {
                None => {
                    unleased_ids.push(unleased_id);
                    merged.labels.push(limit.label_for(&charge.terms));
                    merged.charges.push(self.backend.address(limit.policy(), charge, key));
                    merged.keys.push(*key);
                    limits.push(*limit);
                }
                Some(index) if limits[index] == *limit => {
                    let known = Arc::make_mut(&mut merged.charges[index]);
                    known.cost = known.cost.saturating_add(*cost);
                }
                Some(index) => return Err(limits[index].label()),
            }
        }
        Ok(merged)
    }
}
