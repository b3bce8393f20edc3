//! Tries every order in which threads can replace rules and follow them. CONTRIBUTING.md describes how to run these
//! tests.

use std::time::Duration;

use loom::sync::Arc;
use loom::thread::spawn;

use super::{Asker, Rule, RuleSet, Ruled, RulesInForce};
use crate::key::KeyId;
use crate::limit::{Access, Limit};

const LIMITS: [Limit; 2] = [
    Limit::fixed("first", 100, Duration::from_secs(1)),
    Limit::fixed("second", 100, Duration::from_secs(1)),
];

fn replace(rules: &RulesInForce, thresholds: [Option<u64>; 2]) {
    let mut set = RuleSet::new();
    for (limit, threshold) in LIMITS.iter().zip(thresholds) {
        if let Some(threshold) = threshold {
            set.set(limit.name(), Rule::new().threshold(threshold)).expect("valid");
        }
    }
    rules.replace(set, |_| 0);
}

/// Returns the thresholds of a call with both limits.
fn thresholds(rules: &RulesInForce) -> [u64; 2] {
    let table = rules.may_apply_to_any(LIMITS.iter()).then(|| rules.table()).flatten();
    LIMITS.map(|limit| {
        let key_id = || KeyId::new(&limit.terms().identity, 0);
        let table = table.as_deref();
        let ruled = Ruled::under(table, &limit, Access::Limited, &key_id, &|| 0, Asker::Operator);
        ruled.limit.terms().threshold
    })
}

#[test]
fn a_call_follows_one_set_of_rules() {
    loom::model(|| {
        let rules = Arc::new(RulesInForce::default());
        replace(&rules, [Some(1), Some(1)]);
        assert_eq!(thresholds(&rules), [1, 1]);
        let operator = spawn({
            let rules = Arc::clone(&rules);
            move || {
                replace(&rules, [Some(2), None]);
                replace(&rules, [None, Some(3)]);
            }
        });
        let seen = thresholds(&rules);
        assert!([[1, 1], [2, 100], [100, 3]].contains(&seen), "{seen:?}");
        operator.join().expect("no panic");
        assert_eq!(thresholds(&rules), [100, 3]);
    });
}
