//! Limits in configuration, by serde.

use std::error::Error;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer};
use serde::ser::{self, Serialize, Serializer};

use super::text::limit_of;
use super::{
    Algorithm, Align, Lease, Limit, LimitError, Name, OnError, ParseLimitError, Period, Policy,
    Scope,
};
use crate::text::duration::{parse_period, parse_seconds, parse_text};
use crate::text::limit::{LimitText, algorithm_of};
use crate::text::offset::{AlignText, read_align};

/// The fields of a limit, with the names of the arguments of the attribute.
#[derive(serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
struct LimitFields {
    name: String,
    /// A text of [`Limit::parse`], instead of threshold, period, burst and algorithm.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    threshold: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<PeriodField>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<PeriodField>,
    #[serde(skip_serializing_if = "Option::is_none")]
    algo: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    align: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    align_day: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<Scope>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_error: Option<OnError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait: Option<PeriodField>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<LeaseField>,
    #[serde(skip_serializing_if = "Option::is_none")]
    notify_at: Option<u8>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shadow: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    hidden: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    once: bool,
}

/// A number of units, or `auto`.
#[derive(serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case", expecting = "`lease` must be a number of units, or \"auto\"")]
enum LeaseField {
    Auto,
    #[serde(untagged)]
    Units(u64),
}

/// A duration as text, or as a number of seconds.
#[derive(serde::Deserialize, serde::Serialize)]
#[serde(untagged, expecting = "write a duration such as \"1h30m\", or a number of seconds")]
enum PeriodField {
    Text(String),
    Seconds(f64),
}

/// Reads the arguments of the attribute: `name`, and either `limit`, a text of [`Limit::parse`], or `threshold` and
/// `period`, with `burst` and `algo`, or `in_flight`, with `hold`; then `align`, `scope`, `on_error`, `wait`, `lease`,
/// `notify_at`, `shadow`, `hidden` and `once`.
///
/// ```
/// use ratelimit_runtime::Limit;
///
/// #[derive(serde::Deserialize)]
/// struct Settings {
///     limits: Vec<Limit>,
/// }
///
/// let settings: Settings = toml::from_str(
///     r#"
///     [[limits]]
///     name = "login"
///     limit = "5 per 15m"
///
///     [[limits]]
///     name = "api"
///     threshold = 300
///     period = "1m"
///     algo = "token_bucket"
///     burst = 20
///     on_error = "deny"
///     "#,
/// )?;
/// assert_eq!(settings.limits[0], Limit::parse("login", "5/15m")?);
/// assert_eq!(settings.limits[1].capacity(), 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        LimitFields::deserialize(deserializer)?.limit(Self::kept_name).map_err(de::Error::custom)
    }
}

impl Limit {
    /// Reads a limit that another process has announced.
    pub(crate) fn announced<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // `Limit::parse` would keep the name among those of this process. Announcements have the other fields.
        let fields = LimitFields { limit: None, ..LimitFields::deserialize(deserializer)? };
        fields.limit(super::identity::announced_name).map_err(de::Error::custom)
    }
}

/// Makes the name of a limit, which the process keeps.
type MakeName = fn(&str) -> Result<Name, LimitError>;

impl LimitFields {
    fn limit(self, make_name: MakeName) -> Result<Limit, String> {
        self.read(make_name).map_err(|error| format!("the limit `{}`: {error}", self.name))
    }

    fn read(&self, make_name: MakeName) -> Result<Limit, Box<dyn Error>> {
        let Self { name, limit: text, threshold, period, burst, in_flight, algo, .. } = self;
        let has_neither = burst.is_none() && algo.is_none();
        let mut limit = match (text, threshold, period, in_flight) {
            (Some(text), None, None, None) if has_neither => Limit::parse(name, text)?,
            (None, None, None, Some(in_flight)) if has_neither => {
                Limit::try_in_flight(make_name(name)?, *in_flight)?
            }
            (None, Some(threshold), Some(period), None) => {
                let known = Algorithm::RATES.map(Algorithm::as_str);
                let algorithm =
                    algo.as_deref().map(|word| algorithm_of(word, &known)).transpose()?;
                let (threshold, period, burst) = (*threshold, period.period()?, *burst);
                limit_of(make_name(name), &LimitText { threshold, period, burst, algorithm })?
            }
            _ => {
                return Err("write one of these: `limit = \"300/minute\"`, `threshold` with `period`, or `in_flight`"
                    .into());
            }
        };
        if let Some(align) = self.align()? {
            limit = limit.try_align(align)?;
        }
        if let Some(hold) = &self.hold {
            limit = limit.try_hold(hold.duration()?)?;
        }
        limit = match self.lease {
            Some(LeaseField::Units(units)) => limit.try_lease(units)?,
            Some(LeaseField::Auto) => limit.try_auto_lease()?,
            None => limit,
        };
        limit.policy.wait = self.wait.as_ref().map(PeriodField::duration).transpose()?;
        if let Some(percent) = self.notify_at {
            limit = limit.try_notify_at(percent)?;
        }
        if self.once && (limit.algorithm() != Algorithm::Fixed || limit.threshold() != 1) {
            return Err("`once` remembers ids: write `threshold = 1`, `algo = \"fixed\"`, and as `period` for how long"
                .into());
        }
        let Self { shadow, once, on_error, .. } = *self;
        let policy = Policy { shadow, once, on_error, hidden: self.hidden || once, ..limit.policy };
        Ok(Limit { policy, ..limit }.scope(self.scope.unwrap_or_default()))
    }

    fn align(&self) -> Result<Option<Align>, Box<dyn Error>> {
        let align = match self.align.as_deref().map(read_align).transpose()? {
            None if self.align_day.is_none() => return Ok(None),
            None => Align::UTC,
            Some(AlignText::Minutes(minutes)) => Align::offset_minutes(minutes),
            Some(AlignText::Zone(name)) => Align::try_zone(name)?,
        };
        let align = align.try_day(self.align_day.unwrap_or(1));
        Ok(Some(align.map_err(|_| "`align_day` must be one of 1 to 31")?))
    }
}

impl PeriodField {
    /// Returns a duration with a unit: whole microseconds, at least one, at most 100 years.
    fn of(span: Duration) -> Self {
        let micros = span.as_micros().clamp(1, u128::from(LimitError::MAX_US)) as u64;
        let period = Period::new(Duration::from_micros(micros));
        Self::Text(period.unwrap_or_else(|_| unreachable!("it is in its range")).to_string())
    }

    /// Returns the microseconds of a period, and its word if it is a unit of the calendar.
    fn period(&self) -> Result<(u64, Option<&'static str>), ParseLimitError> {
        match self {
            Self::Text(text) => parse_period(text).map_err(ParseLimitError::new),
            Self::Seconds(_) => Ok((self.duration()?.as_micros() as u64, None)),
        }
    }

    fn duration(&self) -> Result<Duration, ParseLimitError> {
        let micros = match self {
            Self::Text(text) => parse_text(text),
            Self::Seconds(seconds) if seconds.is_sign_negative() => {
                Err("a duration cannot be negative".to_owned())
            }
            Self::Seconds(seconds) => parse_seconds(&seconds.to_string(), ""),
        };
        micros.map(Duration::from_micros).map_err(ParseLimitError::new)
    }
}

/// Writes the fields that [`Deserialize`] reads. A limit that is blocked by an amount of 0 is an error.
impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let policy = self.policy;
        if policy.blocked {
            let name = self.name();
            return Err(ser::Error::custom(format_args!(
                "the limit `{name}` is blocked by an amount of 0, which a configuration cannot say: write another limit"
            )));
        }
        let (is_rate, amount) = (!self.is_in_flight(), self.threshold());
        let align = self.get_align();
        let align_day = align.map(|align| align.day).filter(|day| *day > 1);
        LimitFields {
            name: self.name().to_owned(),
            limit: None,
            threshold: is_rate.then_some(amount),
            period: is_rate.then(|| PeriodField::Text(self.terms.identity.period.to_string())),
            burst: policy.has_burst.then(|| self.capacity()),
            in_flight: (!is_rate).then_some(amount),
            hold: policy.hold.map(PeriodField::of),
            algo: is_rate.then(|| self.algorithm().as_str().to_owned()),
            align: align.map(|align| align.day(1).to_string()),
            align_day,
            scope: (policy.scope != Scope::Global).then_some(policy.scope),
            on_error: policy.on_error,
            wait: policy.wait.filter(|wait| !wait.is_zero()).map(PeriodField::of),
            lease: match policy.lease {
                Lease::None => None,
                Lease::UpTo(units) => Some(LeaseField::Units(units)),
                Lease::Auto => Some(LeaseField::Auto),
            },
            notify_at: policy.notify_at,
            shadow: policy.shadow,
            hidden: policy.hidden,
            once: policy.once,
        }
        .serialize(serializer)
    }
}
