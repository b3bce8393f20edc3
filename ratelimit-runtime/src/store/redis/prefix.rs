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

use crate::limit::Algorithm;
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

/// Returns whether a segment can be the period of a limit: a number and a unit, and for aligned windows an
/// offset. Examples: `1m`, `1d+0800`.
fn is_period(segment: &str) -> bool {
    let span = match segment.split_once(['+', '-']) {
        Some((span, offset)) if offset.len() == 4 && is_digits(offset) => span,
        Some(_) => return false,
        None => segment,
    };
    let unit = span.trim_start_matches(|digit: char| digit.is_ascii_digit());
    span.len() > unit.len() && ["us", "ms", "s", "m", "h", "d"].contains(&unit)
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}
