//! Rules as TOML and JSON.

mod moment;
mod read;
mod values;
mod write;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::limit::{Access, LimitError};
    use crate::rules::{Rule, RuleSet};

    fn rule() -> impl Strategy<Value = Rule> {
        let access = prop_oneof![
            Just(None),
            Just(Some(Access::Blocked)),
            Just(Some(Access::Unlimited)),
            Just(Some(Access::Limited))
        ];
        let amount = || prop::option::of(1_u64..=LimitError::MAX_AMOUNT);
        let until = prop::option::of(0_u64..=253_402_300_799_999_999);
        let amounts = [amount(), amount(), amount(), amount()];
        (amounts, access, any::<Option<bool>>(), until).prop_map(
            |([threshold, burst, in_flight, trial], access, shadow, until)| Rule {
                threshold,
                burst,
                in_flight,
                access,
                shadow,
                trial,
                until,
            },
        )
    }

    proptest! {
        #[test]
        fn rules_are_written_as_they_are_read(
            limits in prop::collection::vec(
                ("[a-z/.:]{1,9}", rule(), prop::collection::vec((".{0,9}", rule()), 0..3)),
                0..4,
            ),
        ) {
            let mut set = RuleSet::new();
            for (limit, rule, keys) in limits {
                if set.set(&limit, rule).is_ok() {
                    for (key, rule) in keys {
                        let _ = set.set_key(&limit, &key, rule);
                    }
                }
            }
            let json = set.to_json();
            prop_assert_eq!(RuleSet::from_json(&json), Ok(set), "{}", json);
        }
    }
}
