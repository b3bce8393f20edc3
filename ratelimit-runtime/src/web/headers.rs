//! The response headers that report limits: `RateLimit-Policy` and `RateLimit` of
//! draft-ietf-httpapi-ratelimit-headers-11, and the legacy `X-RateLimit-*`.
//!
//! An item of `RateLimit-Policy` is `"name";q=threshold;w=period`. A bucket whose burst is larger than its threshold
//! has `q=burst`, and `w` is the time in which the burst refills: clients then never receive an `r` above `q`. An item
//! of `RateLimit` is `"name";r=remaining;t=seconds`. After an admitted request, `t` is the time until the count of the
//! key is reset, or until a bucket without units has one. After a rejected request, the limit that rejected it comes
//! first, and its `t` is the wait that `Retry-After` reports. Items of calls in flight have `qu="concurrent-requests"`
//! instead of `w`, and no `t`.

use std::cell::Cell;
use std::cmp::Reverse;
use std::fmt::Write as _;

use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::limit::{Name, Quota};
use crate::one_or_many::OneOrMany;
use crate::report::request_log::{LoggedLimit, RequestLog};

// Statics, so that no call checks and copies a name (`benches/all -- layer`).
static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static STATE: HeaderName = HeaderName::from_static("ratelimit");
static LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
static LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
static LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
static CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");

/// The value of `Cache-Control` in each response of a rejected request. A cache must not store a 429 (RFC
/// 6585, section 4), and should not store the others.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Writes the headers that report the limits in `log`, unless caches store the response for other clients. Existing
/// values, such as those of another server, follow the new ones, unless they report the limit that rejected the
/// request. `policy` is that of `log`.
pub(crate) fn write(headers: &mut HeaderMap, log: &RequestLog, policy: Option<HeaderValue>) {
    if log.limits.is_empty() || is_for_all_clients(headers) {
        return;
    }
    let retry_after = number(headers, &RETRY_AFTER);
    if let Some(policy) = policy {
        join(headers, &POLICY, policy, true);
    }
    if let Some(state) = state(log, retry_after) {
        let is_first = retry_after.is_none()
            || log.limits.iter().any(|limit| rejected_after(limit, retry_after).is_some());
        join(headers, &STATE, state, is_first);
    }
    if log.has_legacy_headers
        && let Some(values) = legacy(log, retry_after, number(headers, &LEGACY_REMAINING))
    {
        for (name, value) in
            [&LEGACY_LIMIT, &LEGACY_REMAINING, &LEGACY_RESET].into_iter().zip(values)
        {
            headers.insert(name, value.into());
        }
    }
}

/// Returns the value of a header if it is a number.
fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Makes one line of `value` and of the lines that a header has. Of items with one name, keeps the first.
fn join(headers: &mut HeaderMap, name: &'static HeaderName, value: HeaderValue, is_first: bool) {
    if !headers.append(name, value) {
        return;
    }
    let mut lines: Vec<_> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    if is_first {
        lines.rotate_right(1);
    }
    let mut items: Vec<&[u8]> = Vec::new();
    for item in lines.into_iter().flat_map(|line| split(line, b',')) {
        if !items.iter().any(|known| split(known, b';').next() == split(item, b';').next()) {
            items.push(item);
        }
    }
    if let Ok(line) = HeaderValue::from_bytes(&items.join(&b", "[..])) {
        headers.insert(name, line);
    }
}

/// Returns whether shared caches store a response (RFC 9111, section 3), or those of a CDN (RFC 9213).
fn is_for_all_clients(headers: &HeaderMap) -> bool {
    [&CACHE_CONTROL, &CDN_CACHE_CONTROL].into_iter().any(|name| {
        let mut is_stored = false;
        let lines = headers.get_all(name).into_iter().map(HeaderValue::as_bytes);
        for directive in lines.flat_map(|line| split(line, b',')) {
            let mut parts = split(directive, b'=');
            let (name, value) = (parts.next().unwrap_or_default(), parts.next());
            let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
            match value {
                None if is("private") || is("no-store") => return false,
                None => is_stored |= is("public"),
                Some(value) => is_stored |= is("s-maxage") || is("max-age") && value != b"0",
            }
        }
        is_stored
    })
}

/// The value of `RateLimit-Policy`: all limits in `log`; `None` if there are none.
pub(crate) fn policy(log: &RequestLog) -> Option<HeaderValue> {
    list(log, log.limits.iter().map(|limit| (limit, ())), |text, (limit, ())| {
        let (threshold, period) = (limit.quota.threshold(), limit.quota.period());
        let units = threshold.max(limit.quota.capacity());
        push_parameter(text, ";q=", units);
        if limit.quota.is_in_flight() {
            return text.push_str(";qu=\"concurrent-requests\"");
        }
        let micros = period.as_micros() * u128::from(units.max(1)) / u128::from(threshold.max(1));
        let window = u64::try_from(micros.div_ceil(1_000_000)).unwrap_or(u64::MAX);
        // Whole seconds, at least one: a shorter period is reported as a slower rate than it is.
        push_parameter(text, ";w=", window.max(1));
    })
}

/// Returns the parts of a field between separators that are not in a string.
pub(super) fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let parts = text.split(move |byte| {
        let is_separator = *byte == separator && !is_quoted;
        is_quoted ^= *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && is_quoted && !is_escaped;
        is_separator
    });
    parts.map(<[u8]>::trim_ascii).filter(|part| !part.is_empty())
}

/// The value of `RateLimit`: an item for each limit with a decision. The limits that rejected the request come first,
/// the one with the longest wait before the others. If the response has `Retry-After`, an item has no later `t`.
fn state(log: &RequestLog, retry_after: Option<u64>) -> Option<HeaderValue> {
    let decided = log.limits.iter().filter_map(|limit| Some((limit, limit.decided()?)));
    let mut sorted: OneOrMany<_> = decided.collect();
    sorted.sort_by_key(|(limit, _)| Reverse(rejected_after(limit, retry_after)));
    list(log, sorted.into_iter(), |text, (limit, (decision, seconds))| {
        push_parameter(text, ";r=", decision.remaining);
        // The end of a call in flight is unknown.
        if !limit.quota.is_in_flight() && retry_after.is_none_or(|wait| seconds <= wait) {
            push_parameter(text, ";t=", seconds);
        }
    })
}

/// Returns the wait in seconds after a limit that rejected the request; `None` if the limit admitted the request, or
/// if the response has an earlier `Retry-After`: then another limit rejected the request.
fn rejected_after(limit: &LoggedLimit, retry_after: Option<u64>) -> Option<u64> {
    let (_, seconds) = limit.decided().filter(|(decision, _)| !decision.allowed)?;
    retry_after.is_none_or(|wait| seconds <= wait).then_some(seconds)
}

/// The values of the legacy headers, for the limit that rejected or has the fewest remaining units. `None` if
/// the response keeps its own values, because they report a rejection, or no more units than `remaining`.
fn legacy(log: &RequestLog, retry_after: Option<u64>, remaining: Option<u64>) -> Option<[u64; 3]> {
    let decided = log.limits.iter().filter_map(|limit| Some((limit, limit.decided()?)));
    let decided = decided.filter(|(_, (_, at))| retry_after.is_none_or(|wait| *at <= wait));
    let (limit, (decision, seconds)) = decided.min_by_key(|(limit, (decision, _))| {
        (Reverse(rejected_after(limit, retry_after)), decision.remaining)
    })?;
    let is_kept =
        remaining.is_some_and(|known| retry_after.is_some() || known <= decision.remaining);
    (!is_kept).then_some([limit.quota.capacity(), decision.remaining, seconds])
}

/// A list of items with parameters (RFC 9651, section 3.1): `limits`, which are some of those in `log`. `None` if there
/// are none.
fn list<'a, T: Copy>(
    log: &RequestLog,
    limits: impl Iterator<Item = (&'a LoggedLimit, T)>,
    push_parameters: impl Fn(&mut String, (&'a LoggedLimit, T)),
) -> Option<HeaderValue> {
    // Kept, so that a request allocates only the value itself (`benches/all -- layer`).
    thread_local!(static TEXT: Cell<String> = const { Cell::new(String::new()) });
    let mut text = TEXT.try_with(Cell::take).unwrap_or_default();
    text.clear();
    for item in limits {
        if !text.is_empty() {
            text.push_str(", ");
        }
        push_name(&mut text, item.0.name, namesakes(log, item.0.identity()));
        push_parameters(&mut text, item);
    }
    let value = if text.is_empty() { None } else { HeaderValue::from_str(&text).ok() };
    // A thread that ends keeps nothing.
    let _ = TEXT.try_with(|kept| kept.set(text));
    value
}

/// Returns how many limits before `limit` in `log` have its name.
pub(crate) fn namesakes(log: &RequestLog, limit: (Name, Quota)) -> usize {
    let before = log.limits.iter().take_while(|other| other.identity() != limit);
    before.filter(|other| other.name == limit.0).count()
}

/// Appends a name as a string (RFC 9651, section 3.3.3). If `namesakes` limits before it have the same name,
/// it gets a number. A byte that is not printable ASCII is percent-encoded, and so is `%`: two different
/// names stay different.
pub(crate) fn push_name(text: &mut String, name: &str, namesakes: usize) {
    text.push('"');
    let is_escaped = |byte: u8| matches!(byte, b'"' | b'\\' | b'%' | ..=0x1f | 0x7f..);
    if name.bytes().any(is_escaped) {
        for byte in name.bytes() {
            match byte {
                b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
                // Writing to a string cannot fail.
                _ if is_escaped(byte) => drop(write!(text, "%{byte:02X}")),
                _ => text.push(char::from(byte)),
            }
        }
    } else {
        // Most names (`benches/all -- layer`).
        text.push_str(name);
    }
    if namesakes > 0 {
        push_parameter(text, "#", namesakes as u64 + 1);
    }
    text.push('"');
}

fn push_parameter(text: &mut String, name: &str, number: u64) {
    text.push_str(name);
    text.push_str(itoa::Buffer::new().format(number));
}
