//! Reads rules. The errors of the formats name the line; these functions add the limit and the key.

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, Visitor};

use super::values::{AmountSeed, FlagSeed, MomentSeed, RulePlace};
use crate::key::OwnedKey;
use crate::limit::Access;
use crate::rules::{Rule, RuleSet, RuleSetError};
use crate::text::closest::closest;

/// The words that stand for a rule, and what they mean.
const WORDS: [&str; 3] = ["blocked", "exempt", "shadow"];

/// The fields of a rule.
const FIELDS: [&str; 8] =
    ["threshold", "burst", "in_flight", "blocked", "exempt", "shadow", "trial", "until"];

/// The field of a limit with the rules of its keys.
pub(super) const KEYS: &str = "keys";

impl RuleSet {
    /// Reads rules from TOML.
    ///
    /// ```
    /// use ratelimit_runtime::{Rule, RuleSet};
    ///
    /// let rules = RuleSet::from_toml(
    ///     r#"
    ///     [api]
    ///     threshold = 300
    ///     [api.keys]
    ///     acme = { threshold = 5_000, burst = 200 }
    ///     mallory = "blocked"
    ///     monitoring = "exempt"
    ///
    ///     ["export/1h"]
    ///     shadow = true
    ///     until = 2026-12-01T00:00:00Z
    ///     "#,
    /// )?;
    ///
    /// let mut expected = RuleSet::new();
    /// expected.set_key("api", "mallory", Rule::new().blocked(true))?;
    /// assert_eq!(rules.key_rule("api", "mallory"), expected.key_rule("api", "mallory"));
    /// # Ok::<(), ratelimit_runtime::RuleSetError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// On wrong TOML, and on a wrong rule. The error names its line.
    #[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
    pub fn from_toml(text: &str) -> Result<Self, RuleSetError> {
        toml::from_str(text).map_err(|error| RuleSetError::new(error.to_string().trim_end()))
    }

    /// Reads rules from JSON: the same as in [TOML](Self::from_toml), with `until` as a string.
    ///
    /// # Errors
    ///
    /// On wrong JSON, and on a wrong rule. The error names its line.
    #[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
    pub fn from_json(text: &str) -> Result<Self, RuleSetError> {
        serde_json::from_str(text).map_err(RuleSetError::new)
    }
}

impl<'de> de::Deserialize<'de> for RuleSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SetVisitor;

        impl<'de> Visitor<'de> for SetVisitor {
            type Value = RuleSet;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table with a rule for each limit")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RuleSet, A::Error> {
                let mut set = RuleSet::new();
                while let Some(limit) =
                    map.next_key_seed(WordSeed(|limit: &str| set.check_name(limit)))?
                {
                    map.next_value_seed(LimitSeed { set: &mut set, limit: &limit })?;
                }
                Ok(set)
            }
        }

        deserializer.deserialize_map(SetVisitor)
    }
}

/// Reads the rules of a limit.
struct LimitSeed<'a> {
    set: &'a mut RuleSet,
    limit: &'a str,
}

impl<'de> DeserializeSeed<'de> for LimitSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Self { set, limit } = self;
        let place = RulePlace { limit, key: None };
        let mut keys = Vec::new();
        let rule = deserializer.deserialize_any(RuleVisitor { place, keys: Some(&mut keys) })?;
        set.set(limit, rule).map_err(de::Error::custom)?;
        for (key, rule) in keys {
            set.set_key(limit, &key, rule).map_err(de::Error::custom)?;
        }
        Ok(())
    }
}

/// Reads a rule. With `keys`, it is one of a limit, which can have rules of its keys.
struct RuleVisitor<'a> {
    place: RulePlace<'a>,
    keys: Option<&'a mut Vec<(String, Rule)>>,
}

impl<'de> DeserializeSeed<'de> for RuleVisitor<'_> {
    type Value = Rule;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Rule, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for RuleVisitor<'_> {
    type Value = Rule;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as a table, such as `{{ threshold = 300 }}`, or \"blocked\"", self.place)
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Rule, E> {
        match word {
            "blocked" => Ok(Rule::new().blocked(true)),
            "exempt" => Ok(Rule::new().exempt(true)),
            "shadow" => Ok(Rule::new().shadow(true)),
            _ => {
                let place = self.place;
                let hint = hint(word, &WORDS);
                Err(E::custom(format_args!("{place}: unknown word `{word}`: {hint}")))
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Rule, A::Error> {
        let (place, mut rule) = (self.place, Rule::new());
        let (mut blocked, mut exempt) = (None, None);
        let fields: Vec<_> =
            FIELDS.into_iter().chain(self.keys.is_some().then_some(KEYS)).collect();
        let mut seen: Vec<String> = Vec::new();
        let check_field = |field: &str, seen: &[String]| {
            if seen.iter().any(|other| other == field) {
                return Err(RuleSetError::new(format_args!("{place}: `{field}` is written twice")));
            }
            if fields.contains(&field) {
                return Ok(());
            }
            let hint = hint(field, &fields);
            let (limit, is_limit) = (place.limit, place.key.is_none());
            // `[shop.login]` is a field `login` of `shop`.
            let quotes = if is_limit && closest(field, fields.iter().copied()).is_none() {
                format!("; a limit named `{limit}.{field}` is written `[\"{limit}.{field}\"]`")
            } else {
                String::new()
            };
            Err(RuleSetError::new(format_args!("{place}: unknown field `{field}`: {hint}{quotes}")))
        };
        while let Some(field) =
            map.next_key_seed(WordSeed(|field: &str| check_field(field, &seen)))?
        {
            seen.push(field.clone());
            let (limit, field) = (place.limit, field.as_str());
            match field {
                "threshold" => {
                    rule.threshold = Some(map.next_value_seed(AmountSeed { place, field })?);
                }
                "burst" => rule.burst = Some(map.next_value_seed(AmountSeed { place, field })?),
                "in_flight" => {
                    rule.in_flight = Some(map.next_value_seed(AmountSeed { place, field })?);
                }
                "blocked" => blocked = Some(map.next_value_seed(FlagSeed { place, field })?),
                "exempt" => exempt = Some(map.next_value_seed(FlagSeed { place, field })?),
                "shadow" => rule.shadow = Some(map.next_value_seed(FlagSeed { place, field })?),
                "trial" => rule.trial = Some(map.next_value_seed(AmountSeed { place, field })?),
                "until" => rule = rule.until(map.next_value_seed(MomentSeed { place })?),
                _ => {
                    if let Some(keys) = &mut self.keys {
                        map.next_value_seed(KeysSeed { limit, keys })?;
                    }
                }
            }
        }
        if blocked == Some(true) && exempt == Some(true) {
            let message = format_args!("{place}: a limit cannot be both `blocked` and `exempt`");
            return Err(de::Error::custom(message));
        }
        rule.access = match (blocked, exempt) {
            (None, None) => None,
            (Some(true), _) => Some(Access::Blocked),
            (_, Some(true)) => Some(Access::Unlimited),
            _ => Some(Access::Limited),
        };
        Ok(rule)
    }
}

/// Reads a word of the file that has to pass a check.
struct WordSeed<F>(F);

impl<'de, F: FnOnce(&str) -> Result<(), RuleSetError>> DeserializeSeed<'de> for WordSeed<F> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<F: FnOnce(&str) -> Result<(), RuleSetError>> Visitor<'_> for WordSeed<F> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<String, E> {
        self.0(word).map(|()| word.to_owned()).map_err(E::custom)
    }
}

fn hint(word: &str, known: &[&str]) -> String {
    match closest(word, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("it can be `{}`", known.join("`, `")),
    }
}

/// Reads the rules of the keys of a limit.
struct KeysSeed<'a> {
    limit: &'a str,
    keys: &'a mut Vec<(String, Rule)>,
}

impl<'de> DeserializeSeed<'de> for KeysSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for KeysSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the keys of `{}` as a table, with a rule for each key", self.limit)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        let mut check_key = |key: &str| {
            let place = RulePlace { limit: self.limit, key: Some(key) };
            let error = match OwnedKey::parse(key).map(|parsed| seen.insert(parsed)) {
                Ok(true) => return Ok(()),
                Ok(false) => "this key has two rules: write one".to_owned(),
                Err(error) => error.to_string(),
            };
            Err(RuleSetError::new(format_args!("{place}: {error}")))
        };
        while let Some(key) = map.next_key_seed(WordSeed(&mut check_key))? {
            let place = RulePlace { limit: self.limit, key: Some(&key) };
            let rule = map.next_value_seed(RuleVisitor { place, keys: None })?;
            self.keys.push((key, rule));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_rule_names_line_and_limit_and_what_to_write() {
        for (toml, line, words) in [
            (
                "[api]\nthreshold = 0",
                2,
                "the rule of `api`: an amount must be at least 1: to admit nothing, write `blocked = true`",
            ),
            (
                "[api]\n\nthreshold = -5",
                3,
                "the rule of `api`: `threshold` to be a whole number from 1",
            ),
            ("[api]\nthreshold = \"5\"", 2, "the rule of `api`: `threshold` to be a whole number"),
            (
                "[api]\ntreshold = 5",
                2,
                "the rule of `api`: unknown field `treshold`: did you mean `threshold`?",
            ),
            (
                "[api]\nthreshold = 5\n[shop.login]\nblocked = true",
                3,
                "the rule of `shop`: unknown field `login`: it can be `threshold`",
            ),
            (
                "[shop.login]\nblocked = true",
                1,
                "a limit named `shop.login` is written `[\"shop.login\"]`",
            ),
            (
                "[api]\nperiod = 5",
                2,
                "it can be `threshold`, `burst`, `in_flight`, `blocked`, `exempt`, `shadow`, `trial`, `until`, `keys`",
            ),
            ("[api]\nblocked = true\nexempt = true", 1, "cannot be both `blocked` and `exempt`"),
            ("[api]\nblocked = 1", 2, "`blocked` to be `true` or `false`"),
            (
                "[api]\nuntil = 2026-12-01",
                2,
                "the rule of `api`: `until = 2026-12-01` is not a date, a time and an offset",
            ),
            (
                "[api]\nuntil = 5",
                2,
                "`until` to be a date, a time and an offset, such as `2026-12-01T00:00:00Z`",
            ),
            (
                "[api.keys]\nacme = \"bloked\"",
                2,
                "the rule of the key `acme` of `api`: unknown word `bloked`: did you mean `blocked`?",
            ),
            (
                "[api.keys]\nacme = { keys = 5 }",
                2,
                "the rule of the key `acme` of `api`: unknown field `keys`",
            ),
            (
                "[api.keys]\n\"(a\" = \"blocked\"",
                2,
                "the rule of the key `(a` of `api`: the parentheses",
            ),
            ("[api]\nkeys = 5", 2, "the keys of `api` as a table"),
            ("\n\napi = 5", 3, "the rule of `api` as a table, such as `{ threshold = 300 }`"),
            (
                "[\"api/1m\"]\nthreshold = 1\n[\"api/60s\"]\nthreshold = 2",
                3,
                "`api/60s` has two rules",
            ),
            (
                "[\"api/1m\"]\nthreshold = 1\n[api]\nthreshold = 2",
                1,
                "`api` and `api/1m` name the same limit",
            ),
            ("[api\nthreshold = 1", 1, "unclosed table"),
        ] {
            let error = RuleSet::from_toml(toml).expect_err(toml).to_string();
            assert!(error.contains(words), "{toml}: {error}");
            assert!(error.contains(&format!("line {line},")), "{toml}: {error}");
        }
        for (json, words) in [
            (
                r#"{"api": {"blocked": true, "blocked": false}}"#,
                "the rule of `api`: `blocked` is written twice",
            ),
            (
                r#"{"api": {"keys": {"a:b": "blocked", "a%3Ab": "exempt"}}}"#,
                "`a%3Ab` of `api`: this key has two rules",
            ),
            (r#"{"api": {"keys": {}, "keys": {}}}"#, "`keys` is written twice"),
        ] {
            let error = RuleSet::from_json(json).expect_err(json).to_string();
            assert!(error.contains(words), "{json}: {error}");
        }
        let error =
            RuleSet::from_json("{\n\"api\": {\"burst\": 1.5}}").expect_err("1.5").to_string();
        assert!(
            error.contains("the rule of `api`: `burst`") && error.contains("line 2"),
            "{error}"
        );
    }
}
