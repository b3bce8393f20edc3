//! The rules in force of a limiter, as a check asks for them, and their replacement.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::{RuleSet, RuleTable};
use crate::key::OwnedKey;
use crate::limit::{Limit, bit_of_name};
use crate::threads::{AtomicU64, RwLock};

/// The rules in force of a limiter.
#[derive(Default)]
pub(crate) struct RulesInForce {
    /// A bit for each name with rules (see [`bit_of_name`]), so that other limits pay one load.
    names: AtomicU64,
    /// `None` until there are rules.
    table: RwLock<Option<Arc<RuleTable>>>,
}

impl RulesInForce {
    /// Returns whether rules can exist for one of these limits.
    #[inline]
    pub(crate) fn may_apply_to_any<'a>(&self, mut limits: impl Iterator<Item = &'a Limit>) -> bool {
        // Loaded once, so that the limits of a call are not compared with two sets.
        let names = self.names.load(Ordering::Relaxed);
        limits.any(|limit| names >> limit.terms().identity.name_bit & 1 != 0)
    }

    /// Returns whether rules can exist for a limit.
    #[inline]
    pub(crate) fn may_apply(&self, limit: &Limit) -> bool {
        self.may_apply_to_any(std::iter::once(limit))
    }

    /// Returns the rules in force.
    pub(crate) fn set(&self) -> RuleSet {
        self.table().map(|table| table.set.clone()).unwrap_or_default()
    }

    /// Replaces the rules. `fingerprint` returns the fingerprint of a key.
    pub(crate) fn replace(&self, set: RuleSet, fingerprint: impl Fn(&OwnedKey) -> u128) {
        let names = set.limits.iter().flat_map(|(name, rules)| [&name.name, &rules.written]);
        let names = names.fold(0, |bits, name| bits | 1 << bit_of_name(name));
        let table = RuleTable::new(set, fingerprint);
        let mut current = self.table.write().unwrap_or_else(PoisonError::into_inner);
        // First the bits of both sets, so that no call misses a rule. A call that sees the bits of one set and the
        // table of another asks the table in vain.
        self.names.fetch_or(names, Ordering::Relaxed);
        *current = Some(Arc::new(table));
        self.names.store(names, Ordering::Relaxed);
    }

    /// Returns the rules in force as they are now, for all limits of a call.
    pub(crate) fn table(&self) -> Option<Arc<RuleTable>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(all(test, feature = "rules"))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key::KeyId;
    use crate::limit::Access;
    use crate::rules::{Asker, Rule, Ruled};

    #[test]
    fn names_that_no_call_has_are_known() {
        let rules = RulesInForce::default();
        let mut set = RuleSet::new();
        for name in ["seen", "unseen", "period/1m", "period/1h"] {
            set.set(name, Rule::new().threshold(1)).expect("valid");
        }
        rules.replace(set, |_| 0);
        for name in ["seen", "period", "other"] {
            let limit = Limit::fixed(name, 1, Duration::from_secs(60));
            let key_id = || KeyId::new(&limit.terms().identity, 0);
            let table = rules.table().expect("rules");
            let table = Some(&*table);
            let found = Ruled::under(table, &limit, Access::Limited, &key_id, &|| 0, Asker::Call);
            assert_eq!(found.limit.threshold(), 1);
        }
        let unasked = rules.table().expect("rules").unasked();
        let unasked: Vec<_> = unasked.iter().map(|(name, ..)| name).collect();
        assert_eq!(unasked, ["period/1h", "unseen"]);
    }
}
