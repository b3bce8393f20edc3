//! Reads the values of a rule: amounts, flags and moments. Their errors say where the rule is.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, Visitor};
use toml::value::Datetime;

use super::moment::moment_of;
use crate::limit::LimitError;
use crate::rules::rule::NO_AMOUNT;

/// Where a rule is: a limit, or a key of a limit.
#[derive(Clone, Copy)]
pub(super) struct RulePlace<'a> {
    pub(super) limit: &'a str,
    pub(super) key: Option<&'a str>,
}

impl fmt::Display for RulePlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key {
            Some(key) => write!(f, "the rule of the key `{key}` of `{}`", self.limit),
            None => write!(f, "the rule of `{}`", self.limit),
        }
    }
}

/// Reads `threshold`, `burst` or `trial`.
pub(super) struct AmountSeed<'a> {
    pub(super) place: RulePlace<'a>,
    pub(super) field: &'a str,
}

impl<'de> DeserializeSeed<'de> for AmountSeed<'_> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for AmountSeed<'_> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = LimitError::MAX_AMOUNT;
        write!(f, "{}: `{}` to be a whole number from 1 to {most}", self.place, self.field)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<u64, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
        }
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
        let place = self.place;
        match number {
            0 => Err(E::custom(format_args!("{place}: {NO_AMOUNT}"))),
            1..=LimitError::MAX_AMOUNT => Ok(number),
            _ => Err(E::invalid_value(de::Unexpected::Unsigned(number), &self)),
        }
    }
}

/// Reads `blocked`, `exempt` or `shadow`.
pub(super) struct FlagSeed<'a> {
    pub(super) place: RulePlace<'a>,
    pub(super) field: &'a str,
}

impl<'de> DeserializeSeed<'de> for FlagSeed<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for FlagSeed<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}` to be `true` or `false`", self.place, self.field)
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<bool, E> {
        Ok(flag)
    }
}

/// Reads the moment of `until`: a date and time of TOML, or a string with one.
pub(super) struct MomentSeed<'a> {
    pub(super) place: RulePlace<'a>,
}

impl<'de> DeserializeSeed<'de> for MomentSeed<'_> {
    type Value = SystemTime;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<SystemTime, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl MomentSeed<'_> {
    const FORM: &'static str = "a date, a time and an offset, such as `2026-12-01T00:00:00Z`";
}

impl<'de> Visitor<'de> for MomentSeed<'_> {
    type Value = SystemTime;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `until` to be {}", self.place, Self::FORM)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<SystemTime, E> {
        let moment = Datetime::from_str(text).ok().and_then(|written| moment_of(&written));
        moment.ok_or_else(|| {
            let (place, form) = (self.place, Self::FORM);
            E::custom(format_args!("{place}: `until = {text}` is not {form}"))
        })
    }

    /// A date and time of TOML is a map with one field.
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SystemTime, A::Error> {
        let written: Datetime =
            de::Deserialize::deserialize(de::value::MapAccessDeserializer::new(map))?;
        self.visit_str(&written.to_string())
    }
}
