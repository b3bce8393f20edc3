//! Validates key prefixes, so that limiters with different prefixes never share a key in Redis.
//!
//! A key in Redis is `prefix:algorithm:period:name`, followed by a hash tag in braces. Neither an algorithm
//! nor a period contains a colon, so two different counts under one prefix have two keys.
//!
//! Proof for two prefixes: assume that both make the same key, and let `p` be the shorter prefix. After `p`,
//! the key continues with `:algorithm:period:`. The longer prefix ends before a colon of this key, so it contains
//! the segment `algorithm`, and [`check`] rejects it. No prefix extends into the hash tag, because a prefix has no
//! braces.

use crate::limit::Algorithm;
use crate::reply::BuildError;

/// Returns an error if a prefix contains braces, or the name of an algorithm.
pub(super) fn check(prefix: &str) -> Result<(), BuildError> {
    if prefix.contains(['{', '}']) {
        return Err(BuildError::BracesInPrefix);
    }
    let mut algorithms = Algorithm::RATES.into_iter().chain([Algorithm::InFlight]);
    let named = |name: &Algorithm| prefix.split(':').any(|segment| segment == name.as_str());
    match algorithms.find(named) {
        Some(name) => Err(BuildError::LimitInPrefix { part: name.as_str().into() }),
        None => Ok(()),
    }
}
