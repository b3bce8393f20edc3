//! The header `Retry-After` of a service that a client calls.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};
use httpdate::parse_http_date;

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
/// Read the header of the statuses 429 and 503 only, and bound the time that you obey, as `block_at_most` does: a
/// service can ask for a hundred years.
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let date = headers.get(DATE).and_then(|date| parse_http_date(date.to_str().ok()?).ok());
    let now = date.unwrap_or_else(SystemTime::now);
    let lines = headers.get_all(RETRY_AFTER).iter();
    lines.filter_map(|line| longest_wait(line.to_str().ok()?, now)).max()
}

/// Returns the longest wait of a list. A date has a comma after the day of the week.
fn longest_wait(line: &str, now: SystemTime) -> Option<Duration> {
    let until =
        |date: &str| Some(parse_http_date(date).ok()?.duration_since(now).unwrap_or_default());
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
