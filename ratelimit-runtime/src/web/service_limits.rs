//! What the responses of a service say about its limits: the headers of RFC 9110, of the drafts of the IETF, and of
//! services that have their own.

use std::time::{Duration, SystemTime};

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use httpdate::parse_http_date;
use jiff::{SignedDuration, Timestamp};

use super::headers::split;

/// What a response says about the limits of the service that sent it.
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderMap, StatusCode};
/// use ratelimit_runtime::web::ServiceLimits;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("x-ratelimit-remaining-requests", "0".parse()?);
/// headers.insert("x-ratelimit-reset-requests", "1m30s".parse()?);
/// let limits = ServiceLimits::read(StatusCode::OK, &headers);
/// assert_eq!(limits.pause, Some(Duration::from_secs(90)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It reads these fields:
///
/// | fields | of |
/// | --- | --- |
/// | `Retry-After`, of the statuses 403, 429 and 503: see [`retry_after`] | RFC 9110 |
/// | `RateLimit` and `RateLimit-Policy` | draft-ietf-httpapi-ratelimit-headers-08 and later |
/// | `RateLimit-Limit`, `-Remaining` and `-Reset`, also with `X-` | its earlier drafts, [GitHub] and many others |
/// | `X-RateLimit-Reset-After` | [Discord] |
/// | `x-ratelimit-remaining-requests`, `-tokens` and their twins | [OpenAI] |
/// | `anthropic-ratelimit-requests-remaining`, and of `tokens`, `input-tokens` and `output-tokens` | [Anthropic] |
///
/// A reset is a number of seconds, a time such as `6m0s` or `20ms`, a date of RFC 3339, or a number of seconds since
/// 1970, from a billion on. The last two are relative to the `Date` of the response, or to the clock of this machine if
/// it has none. What cannot be read is ignored.
///
/// [GitHub]: https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
/// [Discord]: https://discord.com/developers/docs/topics/rate-limits
/// [OpenAI]: https://platform.openai.com/docs/guides/rate-limits
/// [Anthropic]: https://docs.anthropic.com/en/api/rate-limits
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceLimits {
    /// How long the service admits no request; `None` if it admits some. `Retry-After` says how long, and so does the
    /// reset of each limit that is used up: the longest of these times counts. A status 429 without any of them is a
    /// pause of a second.
    pub pause: Option<Duration>,
    /// The limit of requests that leaves the caller least; `None` if there is none, or if all are used up. A limit that
    /// has at most a fifth left comes before the others. Otherwise the longer [`gap`](RemainingRequests::gap) decides.
    pub requests: Option<RemainingRequests>,
}

/// The requests that a service admits until its limit is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemainingRequests {
    /// How many remain.
    pub remaining: u64,
    /// How many the service admits from one reset to the next; `None` if the response does not say it.
    pub limit: Option<u64>,
    /// The time until the reset.
    pub reset: Duration,
}

/// The names of the fields of limits, before and after the word for what remains, the reset and the limit; and whether
/// the limit counts requests.
const FIELDS: [(&str, &str, bool); 8] = [
    ("ratelimit-", "", true),
    ("x-ratelimit-", "", true),
    ("x-ratelimit-", "-requests", true),
    ("x-ratelimit-", "-tokens", false),
    ("anthropic-ratelimit-requests-", "", true),
    ("anthropic-ratelimit-tokens-", "", false),
    ("anthropic-ratelimit-input-tokens-", "", false),
    ("anthropic-ratelimit-output-tokens-", "", false),
];

/// The most items of `RateLimit` that are read.
const MOST_ITEMS: usize = 16;

/// How long a client pauses after a status 429 that does not say how long.
const UNSAID: Duration = Duration::from_secs(1);

impl ServiceLimits {
    /// Reads the limits of a service from its response.
    #[must_use]
    pub fn read(status: StatusCode, headers: &HeaderMap) -> Self {
        let (mut limits, now) = (Self::default(), now_of(headers));
        if matches!(status.as_u16(), 403 | 429 | 503) {
            limits.pause = retry_after(headers);
        }
        let value = |name: &str| headers.get(name)?.to_str().ok();
        for (before, after, counts_requests) in FIELDS {
            let field = |word: &str| value(&format!("{before}{word}{after}"));
            let reset = field("reset-after").or_else(|| field("reset"));
            let reset = reset.and_then(|text| time_until(text.trim(), now));
            let amount = |word: &str| field(word)?.trim().parse().ok();
            if let (Some(remaining), Some(reset)) = (amount("remaining"), reset) {
                limits.add(remaining, amount("limit"), reset, counts_requests);
            }
        }
        for (name, parameters) in items(headers, "ratelimit").take(MOST_ITEMS) {
            let mut policies = items(headers, "ratelimit-policy");
            let policy = policies.find(|(other, _)| *other == name).map(|(_, policy)| policy);
            let limit = policy.and_then(|policy| parameter(policy, "q"));
            let counts_requests = policy
                .is_none_or(|policy| !policy.contains("qu=") || policy.contains("qu=\"requests\""));
            let (remaining, reset) = (parameter(parameters, "r"), parameter(parameters, "t"));
            if let (Some(remaining), Some(reset)) = (remaining, reset) {
                limits.add(remaining, limit, Duration::from_secs(reset), counts_requests);
            }
        }
        if limits.pause.is_none() && status == StatusCode::TOO_MANY_REQUESTS {
            limits.pause = Some(UNSAID);
        }
        limits
    }

    fn add(&mut self, remaining: u64, limit: Option<u64>, reset: Duration, counts_requests: bool) {
        if remaining == 0 {
            self.pause = self.pause.max(Some(reset));
        } else if counts_requests {
            let requests = RemainingRequests { remaining, limit, reset };
            let order = |it: &RemainingRequests| (it.is_scarce(), it.gap());
            let known = self.requests.filter(|known| order(known) >= order(&requests));
            self.requests = known.or(Some(requests));
        }
    }
}

impl RemainingRequests {
    /// Returns the time from one request to the next, if the client spreads them evenly until the reset.
    #[must_use]
    pub fn gap(&self) -> Duration {
        self.reset / u32::try_from(self.remaining).unwrap_or(u32::MAX).max(1)
    }

    /// Returns whether at most a fifth of the limit remains.
    pub(super) fn is_scarce(&self) -> bool {
        self.limit.is_some_and(|limit| self.remaining <= limit / 5)
    }
}

/// Returns the items of a list, each with its parameters (RFC 9651, section 3.1).
fn items<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let lines = headers.get_all(name).into_iter().map(HeaderValue::as_bytes);
    lines.flat_map(|line| split(line, b',')).filter_map(|item| {
        let name = std::str::from_utf8(split(item, b';').next()?).ok()?;
        Some((name, std::str::from_utf8(item).ok()?.get(name.len()..)?))
    })
}

fn parameter(parameters: &str, name: &str) -> Option<u64> {
    let mut all = split(parameters.as_bytes(), b';');
    let value = all.find_map(|it| it.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Returns the time until a reset, of any form that [`ServiceLimits`] reads.
fn time_until(text: &str, now: SystemTime) -> Option<Duration> {
    let Some(number) = text.parse().ok().filter(|number: &f64| number.is_finite()) else {
        let date = || Some(until(text.parse::<Timestamp>().ok()?.into(), now));
        let sum = text.parse().ok().and_then(|sum: SignedDuration| sum.try_into().ok());
        return sum.or_else(date);
    };
    let time = Duration::try_from_secs_f64(number).ok()?;
    // A billion seconds are 31 years: no time until a reset.
    Some(if number < 1e9 { time } else { until(SystemTime::UNIX_EPOCH.checked_add(time)?, now) })
}

fn until(time: SystemTime, now: SystemTime) -> Duration {
    time.duration_since(now).unwrap_or_default()
}

/// Returns the time at which a response was sent, by the clock of the service if the response has it.
fn now_of(headers: &HeaderMap) -> SystemTime {
    let date = headers.get(DATE).and_then(|date| parse_http_date(date.to_str().ok()?).ok());
    date.unwrap_or_else(SystemTime::now)
}

/// Returns how long a response asks its client to wait, by `Retry-After` (RFC 9110, section 10.2.3); `None` if it does
/// not have the header, or if no value of it can be read.
///
/// ```
/// use std::time::Duration;
/// use http::HeaderMap;
/// use ratelimit_runtime::web::retry_after;
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(retry_after(&headers), None);
/// headers.insert("retry-after", "120".parse()?);
/// assert_eq!(retry_after(&headers), Some(Duration::from_secs(120)));
///
/// // The service decides by its own clock.
/// headers.insert("date", "Wed, 21 Oct 2015 07:28:00 GMT".parse()?);
/// headers.insert("retry-after", "Wed, 21 Oct 2015 07:28:30 GMT".parse()?);
/// assert_eq!(retry_after(&headers), Some(Duration::from_secs(30)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - A date is relative to the `Date` of the response, or to the clock of this machine if it has none. A date that has
///   passed is no wait.
/// - Of several values, the longest wait counts. Values that cannot be read are ignored.
/// - A fraction is rounded up to whole seconds. More seconds than fit into a `u64` are `u64::MAX`.
///
/// [`ServiceLimits`] also reads the fields of services that send more. Read the header of the statuses 429 and 503
/// only, and bound the time that you obey, as `block_at_most` does: a service can ask for a hundred years.
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let now = now_of(headers);
    let lines = headers.get_all(RETRY_AFTER).iter();
    lines.filter_map(|line| longest_wait(line.to_str().ok()?, now)).max()
}

/// Returns the longest wait of a list. A date has a comma after the day of the week.
fn longest_wait(line: &str, now: SystemTime) -> Option<Duration> {
    let until = |date: &str| Some(until(parse_http_date(date).ok()?, now));
    let parts: Vec<_> = line.split(',').collect();
    let alone = parts.iter().filter_map(|part| seconds(part.trim()).or_else(|| until(part)));
    let pairs = parts.windows(2).filter_map(|pair| until(&pair.join(",")));
    alone.chain(pairs).max()
}

/// Returns a number of seconds, rounded up.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let whole = whole.parse().unwrap_or(u64::MAX);
    let is_more = fraction.bytes().any(|digit| digit != b'0');
    Some(Duration::from_secs(whole.saturating_add(is_more.into())))
}
