//! Parses the form of a visitor into five limits, or into a message for each mistake.

use std::array;
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit, LimitError};
use serde::{Deserialize, Serialize};

use crate::operator::Choice;
use crate::traffic::Traffic;

const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::Sliding,
    Algorithm::Fixed,
    Algorithm::SlidingCounter,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
];

/// The units of time, from the largest to the smallest, in microseconds.
const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// The fields of the form, as the visitor typed them.
#[derive(Deserialize)]
pub(crate) struct Form {
    threshold: String,
    period: String,
    /// May be empty.
    burst: String,
    traffic: Traffic,
    store: StoreName,
    #[serde(default)]
    rule: Choice,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StoreName {
    Embedded,
    Redis,
}

/// A mistake in one field.
#[derive(Debug, Serialize)]
pub(crate) struct Complaint {
    field: &'static str,
    message: String,
}

/// The settings in force.
pub(crate) struct Settings {
    pub(crate) limits: [Limit; 5],
    pub(crate) traffic: Traffic,
    pub(crate) store: StoreName,
    pub(crate) rule: Choice,
    /// The burst that the visitor typed, so that the attributes do not contain a default.
    burst: Option<u64>,
}

/// The settings as the page shows them, under the rule of the visitor. The attributes are without it.
#[derive(Serialize)]
pub(crate) struct Shown {
    threshold: u64,
    period: String,
    period_ms: f64,
    traffic: Traffic,
    store: StoreName,
    rule: Choice,
    lanes: [ShownLimit; 5],
}

#[derive(Serialize)]
struct ShownLimit {
    algorithm: &'static str,
    capacity: u64,
    /// The time in which an empty bucket fills.
    fill_ms: f64,
    attribute: String,
}

impl Settings {
    pub(crate) fn read(form: &Form, has_redis: bool) -> Result<Self, Vec<Complaint>> {
        let burst = Some(form.burst.trim()).filter(|text| !text.is_empty());
        let threshold = number("threshold", form.threshold.trim());
        let period = period(form.period.trim());
        let burst = burst.map(|text| number("burst", text)).transpose();
        let (threshold, period, burst) = match (threshold, period, burst) {
            (Ok(threshold), Ok(period), Ok(burst)) => (threshold, period, burst),
            (threshold, period, burst) => {
                return Err([threshold.err(), period.err(), burst.err()]
                    .into_iter()
                    .flatten()
                    .collect());
            }
        };
        if form.store == StoreName::Redis && !has_redis {
            return Err(vec![Complaint {
                field: "store",
                message: "To use Redis, start the playground with RATELIMIT_REDIS_URL".into(),
            }]);
        }
        let limits = limits(threshold, period, burst).map_err(|invalid| vec![invalid.into()])?;
        Ok(Self { limits, traffic: form.traffic, store: form.store, rule: form.rule, burst })
    }

    pub(crate) fn shown(&self) -> Shown {
        let [limit, ..] = &self.limits;
        let threshold = self.rule.threshold(limit.threshold());
        let in_force = limits(threshold, limit.period(), self.burst);
        let in_force = in_force.unwrap_or(self.limits);
        Shown {
            threshold,
            period: in_units(limit.period()),
            period_ms: millis(limit.period()),
            traffic: self.traffic,
            store: self.store,
            rule: self.rule,
            lanes: array::from_fn(|index| {
                let limit = &in_force[index];
                ShownLimit {
                    algorithm: limit.algorithm().as_str(),
                    capacity: limit.capacity(),
                    fill_ms: millis(limit.period()) * limit.capacity() as f64
                        / limit.threshold() as f64,
                    attribute: self.attribute(&self.limits[index]),
                }
            }),
        }
    }

    fn attribute(&self, limit: &Limit) -> String {
        let (period, threshold) = (in_units(limit.period()), limit.threshold());
        let burst = self.burst.filter(|_| is_bucket(limit.algorithm()));
        format!(
            "#[rate_limit(period = \"{period}\", threshold = {threshold}, algo = \"{}\"{})]",
            limit.algorithm(),
            burst.map(|burst| format!(", burst = {burst}")).unwrap_or_default(),
        )
    }
}

impl Default for Settings {
    /// Returns settings with so few units that they can be counted by eye.
    fn default() -> Self {
        let limits = limits(5, Duration::from_secs(5), None).expect("five in five seconds can be");
        let (traffic, store, rule) = (Traffic::Clicks, StoreName::Embedded, Choice::None);
        Self { limits, traffic, store, rule, burst: None }
    }
}

impl From<LimitError> for Complaint {
    /// Finds the field: the message of a limit first names the value to change.
    fn from(invalid: LimitError) -> Self {
        let message = invalid.to_string();
        let named = message.split('`').nth(1);
        let field = ["threshold", "burst"].into_iter().find(|field| named == Some(field));
        Self { field: field.unwrap_or("period"), message: sentence(&message.replace('`', "")) }
    }
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn limits(threshold: u64, period: Duration, burst: Option<u64>) -> Result<[Limit; 5], LimitError> {
    let first = Limit::new("playground", ALGORITHMS[0], threshold, period)?;
    let mut limits = array::from_fn(|_| first);
    for (limit, algorithm) in limits.iter_mut().zip(ALGORITHMS) {
        *limit = Limit::new("playground", algorithm, threshold, period)?;
        if let Some(burst) = burst.filter(|_| is_bucket(algorithm)) {
            *limit = limit.try_burst(burst)?;
        }
    }
    Ok(limits)
}

fn is_bucket(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket)
}

fn number(field: &'static str, text: &str) -> Result<u64, Complaint> {
    text.parse().map_err(|_| Complaint {
        field,
        message: sentence(&format!("{field} must be a whole number from 1 to 999999999999999")),
    })
}

/// Parses `5`, `0.5`, `250ms` or `1.5m`. As in the attribute, a number without a unit is in seconds.
fn period(text: &str) -> Result<Duration, Complaint> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[number.len()..] {
        "" => Some(1_000_000),
        given => UNITS.iter().find(|(unit, _)| *unit == given).map(|(_, us)| *us),
    };
    let seconds = unit.zip(number.trim_end().parse::<f64>().ok());
    // Rounds to whole microseconds, so that 0.1 is a tenth.
    let micros = seconds.map(|(us, number)| (number * us as f64).round());
    // `Limit::new` checks the other bounds of a period.
    match micros.filter(|micros| (0.0..9e15).contains(micros)) {
        Some(micros) => Ok(Duration::from_micros(micros as u64)),
        None => Err(Complaint {
            field: "period",
            message:
                "Period must be a number of seconds, or have a unit (d, h, m, s, ms, us): 5, 250ms"
                    .into(),
        }),
    }
}

/// Returns the text with a capital first letter.
fn sentence(message: &str) -> String {
    let (first, rest) = message.split_at(1);
    first.to_uppercase() + rest
}

/// Writes the period as a whole number of the largest unit that divides it.
fn in_units(period: Duration) -> String {
    let period = period.as_micros() as u64;
    let (unit, us) =
        UNITS.into_iter().find(|(_, us)| period.is_multiple_of(*us)).unwrap_or(UNITS[5]);
    format!("{}{unit}", period / us)
}
