//! A call that is checked against several limits in one decision.

use std::sync::Arc;

use super::judge::hardest;
use super::{Check, Checker, Part, WrittenAmounts};
use crate::algorithm::{Op, Outcome};
use crate::key::{Key, KeyId};
use crate::limit::LimitLabel;
use crate::reply::{Rejection, StoreError};
use crate::report::{self, Report};
use crate::store::embedded::{FEW, LocalCharge};
use crate::store::{Charge, OneOrMany, Request};

/// The charges of a call, each of another count, with the labels of their limits.
struct MergedParts<'a, K: ?Sized> {
    charges: Vec<Arc<Charge>>,
    labels: Vec<LimitLabel>,
    keys: Vec<&'a K>,
    /// The index of the charge of each part.
    charge_of: Vec<usize>,
}

/// A call that can be decided against several limits.
pub(super) struct SeveralCharges {
    pub(super) report: Report,
    pub(super) labels: OneOrMany<LimitLabel>,
    pub(super) charges: OneOrMany<Arc<Charge>>,
    pub(super) charge_of: Vec<usize>,
}

impl Checker {
    /// Checks a call against several limits, under the rules in force.
    pub(crate) fn check_all<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> Check {
        if let Some(check) = self.check_few(parts) {
            return check;
        }
        if self.has_rules_or_waits(parts) {
            return self.check_under_rules(parts);
        }
        self.check_all_as_written(parts)
    }

    /// Checks a call that this process decides at once, without rules, and that nothing observes; `None` for any other
    /// call, which is not charged. Without an allocation, as for one limit.
    fn check_few<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> Option<Check> {
        let (first, count) = (parts.first()?, parts.len());
        let policy = first.limit.policy();
        if self.backend.is_shared(policy) {
            return None;
        }
        if let [Part { limit, key, cost, amounts: WrittenAmounts::OfLimit }] = parts {
            return Some(self.check(limit, key, *cost));
        }
        let is_fast = count <= FEW
            && first.limit.max_wait().is_none()
            && !report::is_observed()
            && !self.rules.may_apply_to_any(parts.iter().map(|part| part.limit));
        if !is_fast {
            return None;
        }
        let terms = first.limit.terms();
        let mut charges = [LocalCharge { key_id: KeyId::NONE, terms, cost: 0 }; FEW];
        let mut fingerprint = self.backend.local().fingerprint(first.key);
        for (at, Part { limit, key, cost, amounts }) in parts.iter().enumerate() {
            let (terms, cost) = (limit.terms(), *cost);
            // Most limits of a call have one key.
            if at > 0 && !std::ptr::eq(*key, parts[at - 1].key) {
                fingerprint = self.backend.local().fingerprint(*key);
            }
            let key_id = KeyId::new(terms.identity(), fingerprint);
            let is_plain = *amounts == WrittenAmounts::OfLimit && cost <= limit.capacity();
            let is_known = charges[..at].iter().any(|other| other.key_id == key_id);
            if is_known || !is_plain || !limit.policy().agrees_with(policy) {
                return None;
            }
            charges[at] = LocalCharge { key_id, terms, cost };
        }
        let mut outcomes = [Outcome::UNDECIDED; FEW];
        if !self.backend.local().decide_few(&charges[..count], &mut outcomes[..count]) {
            return None;
        }
        let index = hardest(&outcomes[..count]);
        let (limit, outcome) = (parts[index].limit, &outcomes[index]);
        if outcome.is_allowed() {
            return Some(Check::admitted(limit.capacity(), outcome.remaining, outcome.reset_us));
        }
        (!self.reports_rejections()).then(|| Check::rejected_here(limit, outcome))
    }

    /// Checks a call against several limits as they are.
    pub(super) fn check_all_as_written<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> Check {
        let SeveralCharges { report, labels, charges, .. } = match self.prepare(parts) {
            Ok(prepared) => prepared,
            Err(rejected) => return *rejected,
        };
        // There is a part, or the call was rejected.
        let first = parts[0].limit;
        let policy = first.policy();
        if let Some(wait) = first.max_wait() {
            let waiting = Arc::clone(&self.waiting);
            return Check::pending(report, labels, move || {
                waiting.admit(policy, charges, wait, false)
            });
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

    /// Returns the charges of a call, or its check if it is rejected without a decision.
    pub(super) fn prepare<K: Key + ?Sized>(
        &self,
        parts: &[Part<'_, K>],
    ) -> Result<SeveralCharges, Box<Check>> {
        let report = Report::start();
        let failed = |report, label, error| Err(Box::new(Check::failed(report, label, error)));
        let Some(first) = parts.first().map(|part| part.limit) else {
            return failed(report, LimitLabel::unnamed(), StoreError::NoLimits);
        };
        if !parts.iter().all(|part| part.limit.policy().agrees_with(first.policy())) {
            return failed(report, first.label(), StoreError::MixedLimits);
        }
        for part in parts {
            report::expect(part.limit);
        }
        let MergedParts { charges, labels, keys, charge_of } = match self.merge(parts) {
            Ok(merged) => merged,
            Err(label) => {
                let name = label.name.clone();
                return failed(report, label, StoreError::SharedCount { name });
            }
        };
        let keys = charges.iter().zip(keys);
        let keys = keys.map(|(charge, key)| (&charge.terms, charge.key_id, key));
        let report = report.with_keys(self.backend.reports(), keys);
        let too_large = charges.iter().position(|charge| charge.cost > charge.terms.capacity());
        if let Some(index) = too_large {
            let rejection = Rejection::exceeds_capacity_of(&labels[index], charges[index].cost);
            let report = Some(report.about(index));
            return Err(Box::new(Check::rejected(report, labels[index].clone(), rejection)));
        }
        Ok(SeveralCharges { report, labels: labels.into(), charges: charges.into(), charge_of })
    }

    /// Returns whether rules can exist for a call, or come while it waits. A call with a mistake is decided as it is
    /// written, which reports the mistake.
    pub(super) fn has_rules_or_waits<K: ?Sized>(&self, parts: &[Part<'_, K>]) -> bool {
        parts.first().is_some_and(|first| {
            let policy = first.limit.policy();
            parts.iter().all(|part| part.limit.policy().agrees_with(policy))
                && (first.limit.max_wait().is_some()
                    || parts.iter().any(|part| part.amounts != WrittenAmounts::OfLimit)
                    || self.rules.may_apply_to_any(parts.iter().map(|part| part.limit)))
        })
    }

    /// Adds up the costs of parts that have one limit and one key. If two different limits share a count,
    /// also without their leases, returns the label of one of them.
    fn merge<'a, K: Key + ?Sized>(
        &self,
        parts: &[Part<'a, K>],
    ) -> Result<MergedParts<'a, K>, LimitLabel> {
        let mut merged = MergedParts {
            charges: Vec::new(),
            labels: Vec::new(),
            keys: Vec::new(),
            charge_of: Vec::with_capacity(parts.len()),
        };
        let mut limits = Vec::with_capacity(parts.len());
        let mut unleased_ids = Vec::with_capacity(parts.len());
        for Part { limit, key, cost, .. } in parts {
            let charge = self.backend.charge(self.counted(limit), *key, *cost);
            let unleased_id =
                charge.key_id.under(charge.terms.identity(), limit.terms().identity());
            let mut known = merged.charges.iter().zip(&unleased_ids);
            let known = known.position(|(other, id): (&Arc<Charge>, &KeyId)| {
                other.key_id == charge.key_id || *id == unleased_id
            });
            merged.charge_of.push(known.unwrap_or(merged.charges.len()));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::reply::{Decision, Rejection, StoreError};
    use crate::{Limit, Part, RateLimiter};

    const WIDE: Limit = Limit::sliding("wide", 9, Duration::from_secs(60));
    const NARROW: Limit = Limit::token_bucket("narrow", 2, Duration::from_secs(60));
    const SHADOW: Limit = Limit::fixed("shadow", 1, Duration::from_secs(60)).shadow(true);

    fn check(limiter: &RateLimiter, parts: &[Part<'_>]) -> Result<Decision, Rejection> {
        limiter.check_all(parts).now(|| WIDE.label())
    }

    /// With and without the feature `metrics`, which observes all calls, so that none takes the fast path.
    #[test]
    fn a_call_that_nothing_observes_gets_the_decision_of_an_observed_one() {
        let limiter = RateLimiter::embedded();
        let parts = [Part::new(&WIDE, &"key", 1), Part::new(&NARROW, &"key", 1)];
        for left in [1, 0] {
            let decision = check(&limiter, &parts).expect("admitted");
            assert_eq!((decision.limit, decision.remaining), (2, left));
            assert_eq!(decision.retry_after, Duration::ZERO);
        }
        for _ in 0..20 {
            let rejection = check(&limiter, &parts).expect_err("rejected");
            let Rejection::Limited { name, decision, .. } = rejection else {
                panic!("{rejection}")
            };
            assert_eq!((name.as_str(), decision.remaining), ("narrow", 0));
            assert!(decision.retry_after > Duration::from_secs(20), "{decision:?}");
        }
        // The rejected calls were not charged.
        let decision = check(&limiter, &parts[..1]).expect("admitted");
        assert_eq!((decision.limit, decision.remaining), (9, 6));

        let again = [parts[0], parts[0]];
        assert_eq!(check(&limiter, &again).expect("admitted").remaining, 4);
        let other = Limit::sliding("wide", 8, Duration::from_secs(60));
        let shared = [parts[0], Part::new(&other, &"key", 1)];
        let error = check(&limiter, &shared).expect_err("a mistake");
        assert!(
            matches!(&error, Rejection::Unavailable { error: StoreError::SharedCount { .. }, .. }),
            "{error:?}"
        );
        let error = check(&limiter, &[parts[0], Part::new(&SHADOW, &"key", 1)]);
        let Err(Rejection::Unavailable { error: StoreError::MixedLimits, .. }) = error else {
            panic!("{error:?}")
        };
        let costly = [parts[0], Part::new(&NARROW, &"key", 3)];
        let error = check(&limiter, &costly).expect_err("too costly");
        assert!(matches!(error, Rejection::CostExceedsCapacity { .. }), "{error:?}");
        // Each limit has a key of its own.
        let of_keys = |one, other| {
            check(&limiter, &[Part::new(&WIDE, one, 1), Part::new(&NARROW, other, 1)]).is_ok()
        };
        assert!(of_keys(&"one", &"one") && of_keys(&"other", &"other"));
        assert!(of_keys(&"one", &"other") && !of_keys(&"one", &"other"));
        assert!(check(&limiter, &[Part::new(&NARROW, &"one", 1)]).is_ok());
        for allowed in [true, false, false] {
            let shadow = check(&limiter, &[Part::new(&SHADOW, &"key", 1)]);
            assert_eq!(shadow.expect("a shadow admits").allowed, allowed);
        }
    }
}
