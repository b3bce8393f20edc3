//! Rules as TOML and JSON.

use std::fmt;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

use super::rule::wrong_amount;
use super::set::{LimitName, LimitRules};
use super::{Rule, RuleSet, RuleSetError};
use crate::key::OwnedKey;

/// The fields of a rule. Only the rule of a limit has `keys`.
#[derive(Default, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
struct RuleFields {
    #[serde(default, deserialize_with = "amount", skip_serializing_if = "Option::is_none")]
    threshold: Option<u64>,
    #[serde(default, deserialize_with = "amount", skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(default, deserialize_with = "amount", skip_serializing_if = "Option::is_none")]
    in_flight: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exempt: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shadow: Option<bool>,
    #[serde(default, deserialize_with = "amount", skip_serializing_if = "Option::is_none")]
    trial: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Moment>,
    #[serde(default, deserialize_with = "entries", serialize_with = "write_entries")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    keys: Entries,
}

/// A table with a rule for each name. A name can be there twice: JSON allows it.
type Entries = Vec<(String, RuleFields)>;

/// A rule as a table, or as the word for its only field.
struct RuleText(RuleFields);

/// A time since 1970, written as a date and a time with an offset.
struct Moment(Timestamp);

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
    /// On wrong TOML, and on a wrong rule. The error names its line, or the limit and the key.
    pub fn from_toml(text: &str) -> Result<Self, RuleSetError> {
        let toml = toml::Deserializer::parse(text).map_err(RuleSetError::of_toml)?;
        serde_path_to_error::deserialize(toml).map_err(RuleSetError::of_toml)
    }

    /// Reads rules from JSON: the same as in [TOML](Self::from_toml), with `until` as a string.
    ///
    /// # Errors
    ///
    /// On wrong JSON, and on a wrong rule. The error names its line, or the limit and the key.
    pub fn from_json(text: &str) -> Result<Self, RuleSetError> {
        let mut json = serde_json::Deserializer::from_str(text);
        let set = serde_path_to_error::deserialize(&mut json).map_err(RuleSetError::new)?;
        json.end().map_err(RuleSetError::new)?;
        Ok(set)
    }

    /// Writes the rules as JSON, which [`from_json`](Self::from_json) reads.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| unreachable!("all keys are strings"))
    }
}

impl RuleSetError {
    fn of_toml(error: impl fmt::Display) -> Self {
        let message = error.to_string();
        let message = message.trim_end();
        // `[shop.login]` is a field `login` of `shop`.
        if message.contains("unknown field") {
            return Self::new(format_args!(
                "{message}. The name of a limit with a dot is quoted: `[\"shop.login\"]`"
            ));
        }
        Self::new(message)
    }
}

impl<'de> Deserialize<'de> for RuleSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut set = Self::new();
        for (limit, fields) in entries(deserializer)? {
            set.add(&limit, fields).map_err(de::Error::custom)?;
        }
        Ok(set)
    }
}

impl Serialize for RuleSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let of_key = |(key, rule): (&OwnedKey, &Rule)| {
            (key.to_string(), RuleFields::of(rule, Entries::default()))
        };
        let written = |LimitRules { rule, keys, .. }: &LimitRules| {
            RuleFields::of(rule, keys.iter().map(of_key).collect())
        };
        serializer.collect_map(self.limits.values().map(|rules| (&rules.written, written(rules))))
    }
}

/// As a rule of a [`RuleSet`]: a table.
impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RuleFields::of(self, Entries::default()).serialize(serializer)
    }
}

impl RuleSet {
    fn add(&mut self, limit: &str, fields: RuleFields) -> Result<(), RuleSetError> {
        if self.limits.contains_key(&LimitName::read(limit)?) {
            return Err(RuleSetError::new(format_args!("`{limit}` has two rules: write one")));
        }
        let (rule, keys) = fields.parts();
        self.set(limit, rule)?;
        for (key, fields) in keys {
            let wrong = |wrong: &str| {
                Err(RuleSetError::new(format_args!("the key `{key}` of `{limit}`{wrong}")))
            };
            let (rule, keys) = fields.parts();
            if !keys.is_empty() {
                return wrong(": only the rule of a limit has `keys`");
            }
            if self.key_rule(limit, &key).is_some() {
                return wrong(" has two rules: write one");
            }
            self.set_key(limit, &key, rule)?;
        }
        Ok(())
    }
}

impl RuleFields {
    fn of(rule: &Rule, keys: Entries) -> Self {
        let Rule { threshold, burst, in_flight, blocked, exempt, shadow, trial, until } = *rule;
        let until = until.map(Moment::nearest);
        Self { threshold, burst, in_flight, blocked, exempt, shadow, trial, until, keys }
    }

    fn parts(self) -> (Rule, Entries) {
        let Self { threshold, burst, in_flight, blocked, exempt, shadow, trial, until, keys } =
            self;
        let until = until.map(|Moment(until)| until.into());
        (Rule { threshold, burst, in_flight, blocked, exempt, shadow, trial, until }, keys)
    }
}

fn entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
    struct EntriesVisitor;

    impl<'de> Visitor<'de> for EntriesVisitor {
        type Value = Entries;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table with a rule for each name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
            let mut entries = Vec::new();
            while let Some((name, RuleText(fields))) = map.next_entry()? {
                entries.push((name, fields));
            }
            Ok(entries)
        }
    }

    deserializer.deserialize_map(EntriesVisitor)
}

fn write_entries<S: Serializer>(
    entries: &[(String, RuleFields)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().map(|(name, fields)| (name, fields)))
}

impl<'de> Deserialize<'de> for RuleText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RuleVisitor;

        impl<'de> Visitor<'de> for RuleVisitor {
            type Value = RuleText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a table such as `{ threshold = 300 }`, \"blocked\", \"exempt\" or \"shadow\"",
                )
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<RuleText, E> {
                let (set, mut fields) = (Some(true), RuleFields::default());
                match word {
                    "blocked" => fields.blocked = set,
                    "exempt" => fields.exempt = set,
                    "shadow" => fields.shadow = set,
                    _ => return Err(E::invalid_value(Unexpected::Str(word), &self)),
                }
                Ok(RuleText(fields))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RuleText, A::Error> {
                RuleFields::deserialize(MapAccessDeserializer::new(map)).map(RuleText)
            }
        }

        deserializer.deserialize_any(RuleVisitor)
    }
}

fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let amount = u64::deserialize(deserializer)?;
    wrong_amount(amount).map_or(Ok(Some(amount)), |wrong| Err(de::Error::custom(wrong)))
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A date and time of TOML is a value of its own.
        let text = match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => text,
            other => other.to_string(),
        };
        let moment = text.parse().ok().filter(|it: &Timestamp| *it >= Timestamp::UNIX_EPOCH);
        moment.map(Self).ok_or_else(|| {
            let expected = "a date, a time and an offset, such as `2026-12-01T00:00:00Z`";
            de::Error::invalid_value(Unexpected::Other(&text), &expected)
        })
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl Moment {
    /// Returns the nearest moment that can be read: the first one is in 1970, and the last one in the year 9999.
    fn nearest(time: SystemTime) -> Self {
        let since_epoch = time.max(SystemTime::UNIX_EPOCH);
        Self(Timestamp::try_from(since_epoch).unwrap_or(Timestamp::MAX))
    }
}

/// Writes the fields of the rule as they are written in a file: `threshold = 300, shadow = true`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names and the values have no quotes, commas or braces.
        let json = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        let fields = json.trim_matches(['{', '}']).replace("\":", " = ").replace(',', ", ");
        f.write_str(&fields.replace('"', ""))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::limit::LimitError;

    #[test]
    fn a_rule_alone_is_written_as_in_a_set() {
        let rule = Rule::default().threshold(5).shadow(true);
        let written = serde_json::to_string(&rule).expect("JSON");
        assert_eq!(written, r#"{"threshold":5,"shadow":true}"#);
    }

    #[test]
    fn the_error_of_a_rule_names_its_place_and_what_to_write() {
        for (toml, words) in [
            (
                "[api]\nthreshold = 0",
                &["api.threshold: ", "line 2,", "to admit nothing, write `blocked = true`"][..],
            ),
            ("[api]\n\nthreshold = -5", &["line 3,", "integer `-5`"]),
            ("[api]\nthreshold = \"5\"", &["line 2,", "string \"5\""]),
            (
                "[api]\ntreshold = 5",
                &["line 2,", "unknown field `treshold`, expected one of `threshold`, `burst`"],
            ),
            (
                "[api]\nthreshold = 5\n[shop.login]\nblocked = true",
                &["line 3,", "unknown field `login`", "is quoted: `[\"shop.login\"]`"],
            ),
            ("[api]\nblocked = true\nexempt = true", &["`api`: a limit cannot be both"]),
            ("[api]\nblocked = 1", &["api.blocked: ", "line 2,", "expected a boolean"]),
            ("[api]\nuntil = 2026-12-01", &["line 2,", "2026-12-01", "a date, a time and an off"]),
            ("[api]\nuntil = 5", &["line 2,", "such as `2026-12-01T00:00:00Z`"]),
            (
                "[api.keys]\nacme = \"bloked\"",
                &["api.keys.acme: ", "line 2,", "\"bloked\", expected", "\"blocked\", \"exempt\""],
            ),
            (
                "[api.keys]\nacme = { keys = { b = \"exempt\" } }",
                &["the key `acme` of `api`: only the rule of a limit"],
            ),
            ("[api.keys]\n\"(a\" = \"blocked\"", &["key `(a` of `api`: the parentheses"]),
            ("[api]\nkeys = 5", &["api.keys: ", "line 2,", "a table with a rule for each name"]),
            ("\n\napi = 5", &["line 3,", "a table such as `{ threshold = 300 }`"]),
            (
                "[\"api/1m\"]\nthreshold = 1\n[\"api/60s\"]\nthreshold = 2",
                &["`api/60s` has two rules"],
            ),
            (
                "[\"api/1m\"]\nthreshold = 1\n[api]\nthreshold = 2",
                &["`api` and `api/1m` name the same limit"],
            ),
            ("[api\nthreshold = 1", &["line 1,", "unclosed table"]),
        ] {
            let error = RuleSet::from_toml(toml).expect_err(toml).to_string();
            for words in words {
                assert!(error.contains(words), "{toml}: {error}");
            }
        }
        for (json, words) in [
            (r#"{"api": {"blocked": true, "blocked": false}}"#, "duplicate field `blocked`"),
            (r#"{"api": {"shadow": true}, "api": {}}"#, "`api` has two rules"),
            (
                r#"{"api": {"keys": {"a:b": "blocked", "a%3Ab": "exempt"}}}"#,
                "the key `a%3Ab` of `api` has two rules",
            ),
            ("{\n\"api\": {\"burst\": 1.5}}", "api.burst: invalid type: floating point `1.5`"),
            ("{} {}", "trailing characters"),
        ] {
            let error = RuleSet::from_json(json).expect_err(json).to_string();
            assert!(error.contains(words), "{json}: {error}");
        }
    }

    #[test]
    fn moments_have_any_offset() {
        for (text, written) in [
            ("2026-12-01T00:00:00+01:00", "2026-11-30T23:00:00Z"),
            ("2026-12-01T00:00:00.25-03:30", "2026-12-01T03:30:00.25Z"),
        ] {
            let set = RuleSet::from_toml(&format!("api = {{ until = {text} }}")).expect(text);
            let rule = set.rule("api").expect("a rule").to_string();
            assert_eq!(rule, format!("until = {written}"));
        }
        let late = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert!(Rule::new().until(late).to_string().starts_with("until = 9999-12-30T"));
        let early = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(Rule::new().until(early).to_string(), "until = 1970-01-01T00:00:00Z");
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let access = (any::<Option<bool>>(), any::<Option<bool>>())
            .prop_filter("not both", |both| *both != (Some(true), Some(true)));
        let amount = || prop::option::of(1_u64..=LimitError::MAX_AMOUNT);
        let until = prop::option::of(0_u64..=253_402_207_200_999_999);
        let until = until.prop_map(|micros| {
            micros.map(|micros| SystemTime::UNIX_EPOCH + Duration::from_micros(micros))
        });
        let amounts = [amount(), amount(), amount(), amount()];
        (amounts, access, any::<Option<bool>>(), until).prop_map(
            |([threshold, burst, in_flight, trial], (blocked, exempt), shadow, until)| Rule {
                threshold,
                burst,
                in_flight,
                blocked,
                exempt,
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
