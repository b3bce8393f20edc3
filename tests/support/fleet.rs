//! The limits that the processes of `tests/fleet.rs` share. The last release has them too.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit};

pub const THRESHOLD: u64 = 1_000;
pub const LEASE: u64 = 50;
/// What a call is charged that settles afterwards.
pub const ESTIMATE: u64 = 3;
pub const SLOTS: u64 = 4;

pub fn limit(algorithm: Algorithm, mode: &str) -> Limit {
    // So long that nothing refills or expires during the test. The sliding counter stays in one window, from 2010
    // to 2050.
    let period = Duration::from_secs(40 * 365 * 86_400);
    let limit = crate::limits::limit("fleet", algorithm, THRESHOLD, period);
    match mode {
        "leased" => limit.lease(LEASE),
        "auto" => limit.auto_lease(),
        _ => limit,
    }
}
