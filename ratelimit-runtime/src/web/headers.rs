//! The response headers that report limits: `RateLimit-Policy` and `RateLimit` of
//! draft-ietf-httpapi-ratelimit-headers-11, and the legacy `X-RateLimit-*`.
//!
//! An item of `RateLimit-Policy` is `"name";q=threshold;w=period`. A bucket whose burst is larger than its threshold
//! has `q=burst`, and `w` is the time in which the burst refills: clients then never receive an `r` above `q`. An item
//! of `RateLimit` is `"name";r=remaining;t=seconds`. After an admitted request, `t` is the time until the count of the
//! key is reset, or until a bucket without units has one. After a rejected request, the limit that rejected it comes
//! first, and its `t` is the wait that `Retry-After` reports. Items of calls in flight have `qu="concurrent-requests"`
//! instead of `w`, and no `t`.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::iter;

use crate::report::request_log::{LoggedDecision, LoggedLimit, RequestLog, whole_seconds};

/// The headers that are read or written here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderField {
    RetryAfter,
    Policy,
    State,
    LegacyLimit,
    LegacyRemaining,
    LegacyReset,
    CacheControl,
    CdnCacheControl,
}

impl HeaderField {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::RetryAfter => "retry-after",
            Self::Policy => "ratelimit-policy",
            Self::State => "ratelimit",
            Self::LegacyLimit => "x-ratelimit-limit",
            Self::LegacyRemaining => "x-ratelimit-remaining",
            Self::LegacyReset => "x-ratelimit-reset",
            Self::CacheControl => "cache-control",
            Self::CdnCacheControl => "cdn-cache-control",
        }
    }
}

/// The headers of a response, in the type of a framework.
pub(crate) trait ResponseHeaders {
    /// The value of a header; cheap to clone.
    type Value: Clone;

    /// Returns `text` as a value. It is printable ASCII.
    fn value(text: &str) -> Option<Self::Value>;

    /// Returns the lines of `field`.
    fn lines(&self, field: HeaderField) -> impl Iterator<Item = &[u8]>;

    /// Returns the value of `field` if it is a number.
    fn number(&self, field: HeaderField) -> Option<u64>;

    /// Replaces the value of `field`.
    fn set_number(&mut self, field: HeaderField, number: u64);

    /// Makes one line of `value` and the lines that `field` has, as [`joined`] does.
    fn join(&mut self, field: HeaderField, value: Self::Value, place: ListPlace);
}

/// Where the items of a layer are, in a list that has items of inner layers and of the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListPlace {
    First,
    /// The first item is about the limit that rejected the request.
    FirstAsRejection,
    /// The others begin with the limit that rejected the request.
    Last,
}

/// The parts of the headers that depend on the limits only, and not on their decisions.
#[derive(Clone)]
pub(crate) struct LimitTexts<V> {
    /// The value of `RateLimit-Policy`; `None` if there are no limits.
    policy: Option<V>,
    /// The name of each limit as a string of RFC 9651.
    names: Vec<String>,
}

impl<V> Default for LimitTexts<V> {
    fn default() -> Self {
        Self { policy: None, names: Vec::new() }
    }
}

impl<V> LimitTexts<V> {
    /// Returns the texts of the limits in `log`.
    pub(crate) fn of<H: ResponseHeaders<Value = V>>(log: &RequestLog) -> Self {
        let mut names: Vec<String> = Vec::new();
        for (index, limit) in log.limits().enumerate() {
            let namesakes = log.limits().take(index).filter(|other| other.name == limit.name);
            let mut name = String::new();
            push_name(&mut name, limit.name.as_str(), namesakes.count());
            names.push(name);
        }
        Self { policy: policy::<H>(log, &names), names }
    }
}

/// Writes the headers that report the limits in `log`, unless caches store the response for other clients. Existing
/// values of these headers follow the new ones, unless they report the limit that rejected the request. `texts` are
/// those of `log`.
pub(crate) fn write<H: ResponseHeaders>(
    headers: &mut H,
    log: &RequestLog,
    texts: &LimitTexts<H::Value>,
    has_legacy_headers: bool,
) {
    if log.is_empty() || is_for_all_clients(headers) {
        return;
    }
    let retry_after = headers.number(HeaderField::RetryAfter);
    if let Some(policy) = &texts.policy {
        headers.join(HeaderField::Policy, policy.clone(), ListPlace::First);
    }
    if let Some(state) = state::<H>(log, &texts.names, retry_after) {
        let has_rejected = log.limits().any(|limit| rejected_after(limit, retry_after).is_some());
        let place = match retry_after {
            None => ListPlace::First,
            Some(_) if has_rejected => ListPlace::FirstAsRejection,
            Some(_) => ListPlace::Last,
        };
        headers.join(HeaderField::State, state, place);
    }
    if has_legacy_headers {
        let remaining = headers.number(HeaderField::LegacyRemaining);
        if let Some([limit, remaining, reset]) = legacy(log, retry_after, remaining) {
            headers.set_number(HeaderField::LegacyLimit, limit);
            headers.set_number(HeaderField::LegacyRemaining, remaining);
            headers.set_number(HeaderField::LegacyReset, reset);
        }
    }
}

/// Returns whether shared caches store a response (RFC 9111, section 3), or those of a CDN (RFC 9213).
fn is_for_all_clients<H: ResponseHeaders>(headers: &H) -> bool {
    [HeaderField::CacheControl, HeaderField::CdnCacheControl].into_iter().any(|field| {
        let mut is_stored = false;
        for directive in headers.lines(field).flat_map(|line| split(line, b',')) {
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
fn policy<H: ResponseHeaders>(log: &RequestLog, names: &[String]) -> Option<H::Value> {
    list::<H>(log.limits().zip(names), |text, limit| {
        let (threshold, period) = (limit.quota.threshold(), limit.quota.period());
        let units = threshold.max(limit.quota.capacity());
        if limit.quota.is_in_flight() {
            push_parameter(text, ";q=", units);
            text.push_str(";qu=\"concurrent-requests\"");
            return true;
        }
        let window = if units == threshold {
            whole_seconds(period)
        } else {
            let micros = period.as_micros() * u128::from(units) / u128::from(threshold.max(1));
            u64::try_from(micros.div_ceil(1_000_000)).unwrap_or(u64::MAX)
        };
        push_parameter(text, ";q=", units);
        // Whole seconds, at least one: a shorter period is reported as a slower rate than it is.
        push_parameter(text, ";w=", window.max(1));
        true
    })
}

/// The lines of a list as one line: `ours`, and each of `theirs`. Of the items of `RateLimit` with one name, keeps the
/// one with the fewest remaining units, but a rejection. Of equal items, keeps the first.
pub(crate) fn joined<'a>(
    ours: &'a [u8],
    theirs: impl Iterator<Item = &'a [u8]>,
    place: ListPlace,
) -> Vec<u8> {
    let mut lines: Vec<_> = iter::once(ours).chain(theirs).collect();
    if place == ListPlace::Last {
        lines.rotate_left(1);
    }
    let mut items: Vec<&[u8]> = Vec::new();
    for item in lines.into_iter().flat_map(|line| split(line, b',')) {
        let is_same = |known: &&[u8]| {
            let has_units = remaining(known).is_some() && remaining(item).is_some();
            *known == item || has_units && name(known) == name(item)
        };
        match items.iter().position(is_same) {
            None => items.push(item),
            Some(0) if place != ListPlace::First => {}
            Some(index) if remaining(item) < remaining(items[index]) => items[index] = item,
            Some(_) => {}
        }
    }
    items.join(&b", "[..])
}

/// Returns the name of an item of a list.
fn name(item: &[u8]) -> Option<&[u8]> {
    split(item, b';').next()
}

/// Returns the `r` of an item of `RateLimit`.
fn remaining(item: &[u8]) -> Option<u64> {
    let units = split(item, b';').find_map(|part| part.strip_prefix(b"r="))?;
    std::str::from_utf8(units).ok()?.parse().ok()
}

/// Returns the parts of a field between separators that are not in a string.
fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
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
fn state<H: ResponseHeaders>(
    log: &RequestLog,
    names: &[String],
    retry_after: Option<u64>,
) -> Option<H::Value> {
    let push = |text: &mut String, limit: &LoggedLimit| {
        let Some(LoggedDecision { remaining, seconds, .. }) = limit.decision else { return false };
        push_parameter(text, ";r=", remaining);
        // The end of a call in flight is unknown.
        if !limit.quota.is_in_flight() && retry_after.is_none_or(|wait| seconds <= wait) {
            push_parameter(text, ";t=", seconds);
        }
        true
    };
    let limits = log.limits().zip(names);
    if !limits.clone().any(|(limit, _)| rejected_after(limit, retry_after).is_some()) {
        return list::<H>(limits, push);
    }
    let mut sorted = Vec::new();
    // There are few limits, and the sort of the standard library makes a program larger (`benches/all -- footprint`).
    for limit in limits {
        let wait = |(limit, _): &(&LoggedLimit, _)| rejected_after(limit, retry_after);
        let at = sorted.partition_point(|other| wait(other) >= wait(&limit));
        sorted.insert(at, limit);
    }
    list::<H>(sorted.into_iter(), push)
}

/// Returns the wait in seconds after a limit that rejected the request; `None` if the limit admitted the request, or
/// if the response has an earlier `Retry-After`: then another limit rejected the request.
fn rejected_after(limit: &LoggedLimit, retry_after: Option<u64>) -> Option<u64> {
    let decision = limit.decision.filter(|it| it.is_rejection)?;
    retry_after.is_none_or(|wait| decision.seconds <= wait).then_some(decision.seconds)
}

/// The values of the legacy headers, for the limit that rejected or has the fewest remaining units. `None` if
/// the response keeps its own values, because they report a rejection, or no more units than `remaining`.
fn legacy(log: &RequestLog, retry_after: Option<u64>, remaining: Option<u64>) -> Option<[u64; 3]> {
    let decided = log.limits().filter_map(|limit| Some((limit, limit.decision?)));
    let decided = decided.filter(|(_, it)| retry_after.is_none_or(|wait| it.seconds <= wait));
    let hardness = |limit, remaining| (Reverse(rejected_after(limit, retry_after)), remaining);
    let (limit, decision) = decided.min_by_key(|(limit, it)| hardness(limit, it.remaining))?;
    let is_kept =
        remaining.is_some_and(|known| retry_after.is_some() || known <= decision.remaining);
    (!is_kept).then_some([limit.quota.capacity(), decision.remaining, decision.seconds])
}

/// A list of items with parameters (RFC 9651, section 3.1): the limits for which `push_parameters` returns
/// true. `None` if there are none.
fn list<'a, H: ResponseHeaders>(
    limits: impl Iterator<Item = (&'a LoggedLimit, &'a String)>,
    push_parameters: impl Fn(&mut String, &LoggedLimit) -> bool,
) -> Option<H::Value> {
    thread_local! {
        /// The text that is written. Saves an allocation for each header (`benches/all -- layer`).
        static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
    }
    TEXT.with_borrow_mut(|text| {
        text.clear();
        push_list(text, limits, push_parameters);
        if text.is_empty() { None } else { H::value(text) }
    })
}

fn push_list<'a>(
    text: &mut String,
    limits: impl Iterator<Item = (&'a LoggedLimit, &'a String)>,
    push_parameters: impl Fn(&mut String, &LoggedLimit) -> bool,
) {
    for (limit, name) in limits {
        let before = text.len();
        if before > 0 {
            text.push_str(", ");
        }
        text.push_str(name);
        if !push_parameters(text, limit) {
            text.truncate(before);
        }
    }
}

/// Appends a name as a string (RFC 9651, section 3.3.3). If `namesakes` limits before it have the same name,
/// it gets a number. A byte that is not printable ASCII is percent-encoded, and so is `%`: two different
/// names stay different.
pub(crate) fn push_name(text: &mut String, name: &str, namesakes: usize) {
    let is_plain = |byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\' | b'%');
    text.push('"');
    if name.bytes().all(is_plain) {
        text.push_str(name);
    } else {
        push_escaped(text, name);
    }
    if namesakes > 0 {
        text.push('#');
        text.push_str(itoa::Buffer::new().format(namesakes + 1));
    }
    text.push('"');
}

fn push_escaped(text: &mut String, name: &str) {
    const HEX: [u8; 16] = *b"0123456789ABCDEF";
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b'%' | ..=0x1f | 0x7f.. => text.extend([
                '%',
                char::from(HEX[usize::from(byte >> 4)]),
                char::from(HEX[usize::from(byte & 15)]),
            ]),
            _ => text.push(char::from(byte)),
        }
    }
}

fn push_parameter(text: &mut String, name: &str, number: u64) {
    text.push_str(name);
    text.push_str(itoa::Buffer::new().format(number));
}
