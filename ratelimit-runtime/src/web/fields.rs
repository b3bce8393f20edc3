//! The fields that tell a client of its limits, as text: `RateLimit-Policy` and `RateLimit` of
//! draft-ietf-httpapi-ratelimit-headers-11, and the older `X-RateLimit-*`.
//!
//! A policy is `"name";q=threshold;w=period`, for buckets too: a burst above the threshold is no
//! promise, and shows in what remains. `RateLimit` is `"name";r=remaining;t=seconds`: of an admitted
//! request, `t` is the time until the limit is as if it had never been used, within which no more than
//! `r` is promised; of a refused one, the wait that `Retry-After` says too.

use super::seen::{Entry, Seen, State, seconds};

pub(crate) const POLICY: &str = "ratelimit-policy";
pub(crate) const STATE: &str = "ratelimit";

/// The names of the older fields: the threshold, what remains, and seconds as in `RateLimit`.
pub(crate) const OLDER: [&str; 3] =
    ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

/// The value of `RateLimit-Policy`: all limits that were asked.
pub(crate) fn policy(seen: &Seen) -> String {
    list(seen, |text, entry| {
        number(text, ";q=", entry.quota.threshold());
        // Whole seconds, and more than none: what is below is told as a slower rate than it is.
        number(text, ";w=", seconds(entry.quota.period()).max(1));
        true
    })
}

/// The value of `RateLimit`: the limits that spoke, or those that refused where one did. No `t` may be
/// later than the `Retry-After` beside it, if there is one.
pub(crate) fn state(seen: &Seen, retry_after: Option<u32>) -> String {
    let is_refused = seen.entries().any(|entry| entry.state.is_some_and(|state| state.refused));
    list(seen, |text, entry| {
        let Some(State { remaining, seconds, refused }) = entry.state else { return false };
        if refused != is_refused || retry_after.is_some_and(|wait| seconds > wait) {
            return false;
        }
        number(text, ";r=", remaining);
        number(text, ";t=", seconds);
        true
    })
}

/// The values of the older fields, for the limit that is nearest to its end; `None` where those stay
/// that are there, which tell of a refusal or leave no more than `left`.
pub(crate) fn older(seen: &Seen, retry_after: Option<u32>, left: Option<u32>) -> Option<[u32; 3]> {
    let spoke = seen.entries().filter_map(|entry| Some((entry, entry.state?)));
    let spoke = spoke.filter(|(_, state)| retry_after.is_none_or(|wait| state.seconds <= wait));
    let (entry, state) = spoke.min_by_key(|(_, state)| (!state.refused, state.remaining))?;
    let stay = left.is_some_and(|left| retry_after.is_some() || left <= state.remaining);
    (!stay).then_some([entry.quota.threshold(), state.remaining, state.seconds])
}

/// A list of items with parameters (RFC 9651, section 3.1), of those that `parameters` keeps.
fn list(seen: &Seen, parameters: impl Fn(&mut String, &Entry) -> bool) -> String {
    let mut text = String::with_capacity(64);
    for (index, entry) in seen.entries().enumerate() {
        let before = text.len();
        if before > 0 {
            text.push_str(", ");
        }
        let namesakes = seen.entries().take(index).filter(|other| other.name == entry.name);
        name(&mut text, entry.name.as_str(), namesakes.count());
        if !parameters(&mut text, entry) {
            text.truncate(before);
        }
    }
    text
}

/// A name as a string (RFC 9651, section 3.3.3); of two limits of one name, the second has a number.
/// What is not printable ASCII is percent-encoded, and so is `%`, so that no two names meet.
pub(crate) fn name(text: &mut String, name: &str, namesakes: usize) {
    const HEX: [u8; 16] = *b"0123456789ABCDEF";
    text.push('"');
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
    if namesakes > 0 {
        text.push('#');
        text.push_str(itoa::Buffer::new().format(namesakes + 1));
    }
    text.push('"');
}

fn number(text: &mut String, name: &str, number: u32) {
    text.push_str(name);
    text.push_str(itoa::Buffer::new().format(number));
}
