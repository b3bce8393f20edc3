//! Validates key prefixes, so that limiters with different prefixes never share a key in Redis.
//!
//! A key in Redis is `prefix:algorithm:period:name`, followed by a hash tag in braces. Neither an algorithm
//! nor a period contains a colon, so two different counts under one prefix have two keys.
//!
//! Proof for two prefixes: assume that both make the same key, and let `p` be the shorter prefix. After `p`,
//! the key continues with `:algorithm:period:`. The longer prefix ends before a colon of this key. It does
//! not end after the algorithm, because an algorithm follows each prefix, and here a period follows. So the
//! longer prefix contains the segments `algorithm:period`, and [`check`] rejects it. No prefix extends into
//! the hash tag, because a prefix has no braces.

use crate::limit::{Algorithm, Calendar};
use crate::reply::BuildError;

/// Returns an error if a prefix contains braces, or an algorithm and a period.
pub(super) fn check(prefix: &str) -> Result<(), BuildError> {
    if prefix.contains(['{', '}']) {
        return Err(BuildError::BracesInPrefix);
    }
    let segments: Vec<_> = prefix.split(':').collect();
    let limit = segments.windows(2).find(|pair| is_algorithm(pair[0]) && is_period(pair[1]));
    match limit {
        Some(pair) => Err(BuildError::LimitInPrefix { part: pair.join(":").into() }),
        None => Ok(()),
    }
}

fn is_algorithm(segment: &str) -> bool {
    let mut algorithms = Algorithm::RATES.into_iter().chain([Algorithm::InFlight]);
    algorithms.any(|algorithm| algorithm.as_str() == segment)
}

/// Returns whether a segment can be the period of a limit: a number and a unit, or a unit of the calendar, and for
/// aligned windows an offset, a zone and a day. Examples: `1m`, `1d+0800`, `month@Europe/Berlin.15`.
fn is_period(segment: &str) -> bool {
    let (span, align) =
        segment.split_at(segment.find(['+', '-', '@', '.']).unwrap_or(segment.len()));
    let has_align = align.strip_prefix(['+', '-']).is_none_or(|offset| {
        let offset = offset.get(..4);
        offset.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let unit = span.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let is_length = span.len() > unit.len() && ["us", "ms", "s", "m", "h", "d"].contains(&unit);
    has_align && (is_length || Calendar::ALL.iter().any(|unit| unit.as_str() == span))
}
