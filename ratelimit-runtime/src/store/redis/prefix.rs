//! What a key prefix may be, so that no two prefixes make one Redis key.
//!
//! A Redis key is `prefix:algorithm:period:name`, and a tag in braces behind it. Neither an algorithm nor a
//! period has a colon, so two different texts of one prefix are two keys. Let one key come from two
//! prefixes, and let `p` be the shorter one. The key goes on with `:algorithm:period:` behind `p`, and the
//! longer prefix ends at a colon of the same text. It does not end behind the algorithm: an algorithm would
//! have to follow, and a period does. So it contains `algorithm:period` as segments, and is refused here.
//! (No prefix reaches into the tag: it has no braces.)

use crate::limit::Algorithm;
use crate::reply::BuildError;

/// Checks a key prefix.
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
    Algorithm::ALL.iter().any(|algorithm| algorithm.as_str() == segment)
}

/// Whether a segment can be the period of a limit: a number, a unit, and the offset of aligned windows, if
/// there is one: `1m`, `1d+0800`.
fn is_period(segment: &str) -> bool {
    let span = match segment.split_once(['+', '-']) {
        Some((span, offset)) if offset.len() == 4 && is_number(offset) => span,
        Some(_) => return false,
        None => segment,
    };
    let unit = span.trim_start_matches(|digit: char| digit.is_ascii_digit());
    span.len() > unit.len() && ["us", "ms", "s", "m", "h", "d"].contains(&unit)
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}
