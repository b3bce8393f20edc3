//! Writes rules.

use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::moment::written;
use super::read::KEYS;
use crate::limit::Access;
use crate::rules::set::LimitRules;
use crate::rules::{Rule, RuleSet};

impl RuleSet {
    /// Writes the rules as JSON, which [`from_json`](Self::from_json) reads.
    #[must_use]
    #[cfg_attr(docsrs, doc(cfg(feature = "rules")))]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| unreachable!("all keys are strings"))
    }
}

impl Serialize for RuleSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.limits.iter().map(|(name, rules)| (&name.written, rules)))
    }
}

impl Serialize for LimitRules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.rule.write_fields(&mut map)?;
        if !self.keys.is_empty() {
            map.serialize_entry(KEYS, &self.keys)?;
        }
        map.end()
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.write_fields(&mut map)?;
        map.end()
    }
}

impl Rule {
    fn write_fields<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let Self { threshold, burst, in_flight, access, shadow, trial, until } = *self;
        if let Some(threshold) = threshold {
            map.serialize_entry("threshold", &threshold)?;
        }
        if let Some(burst) = burst {
            map.serialize_entry("burst", &burst)?;
        }
        if let Some(in_flight) = in_flight {
            map.serialize_entry("in_flight", &in_flight)?;
        }
        match access {
            None => {}
            Some(Access::Blocked) => map.serialize_entry("blocked", &true)?,
            Some(Access::Unlimited) => map.serialize_entry("exempt", &true)?,
            Some(Access::Limited) => map.serialize_entry("blocked", &false)?,
        }
        if let Some(shadow) = shadow {
            map.serialize_entry("shadow", &shadow)?;
        }
        if let Some(trial) = trial {
            map.serialize_entry("trial", &trial)?;
        }
        if let Some(until) = until {
            map.serialize_entry("until", &written(until).to_string())?;
        }
        Ok(())
    }
}

/// Writes the fields of the rule as they are written in a file: `threshold = 300, shadow = true`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threshold, burst, in_flight, access, shadow, trial, until } = *self;
        let access = access.map(|access| match access {
            Access::Blocked => "blocked = true",
            Access::Unlimited => "exempt = true",
            Access::Limited => "blocked = false",
        });
        let fields = [
            threshold.map(|threshold| format!("threshold = {threshold}")),
            burst.map(|burst| format!("burst = {burst}")),
            in_flight.map(|in_flight| format!("in_flight = {in_flight}")),
            access.map(str::to_owned),
            shadow.map(|shadow| format!("shadow = {shadow}")),
            trial.map(|trial| format!("trial = {trial}")),
            until.map(|until| format!("until = {}", written(until))),
        ];
        f.write_str(&fields.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}
