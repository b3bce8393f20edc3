//! The compiler reports a bad constant when it generates code.

use std::time::Duration;

use ratelimit_runtime::{Limit, rate_limit};

const ZERO: u64 = 0;
const TWO: u64 = 2;
const NANOS: Duration = Duration::from_nanos(1500);
const SECOND: Duration = Duration::from_secs(1);
const LOGIN: Limit = Limit::fixed("login", 10, SECOND);
const LEASED: Limit = LOGIN.lease(5);
const WAITING: Limit = Limit::fixed("waiting", 1, SECOND).wait(SECOND);
const SLOTS: Limit = Limit::in_flight("slots", 2).hold(Duration::from_secs(30));

#[rate_limit(period = 30, threshold = ZERO)]
async fn zero() -> Option<()> { None }

#[rate_limit(period = NANOS, threshold = 1)]
async fn too_fine() -> Option<()> { None }

#[rate_limit(period = 30, threshold = 1, algo = "token_bucket", burst = ZERO)]
async fn no_capacity() -> Option<()> { None }

#[rate_limit(period = 30, threshold = 1, lease = TWO)]
async fn above_threshold() -> Option<()> { None }

/// Its ceiling never blocks a key.
#[rate_limit(period = 1, threshold = 10, block = |_| None, block_at_most = Duration::ZERO)]
async fn never_blocks() -> Option<()> { None }

/// The charges of a lease cannot be corrected.
#[rate_limit(limit = LEASED, settle = |_| 1)]
async fn corrects_a_lease() -> Option<()> { None }

/// Nothing would hold the slot.
#[rate_limit(limit = SLOTS)]
async fn without_a_permit() -> Option<()> { None }

#[rate_limit(limit(limit = LOGIN), limit(limit = WAITING))]
async fn different_policies() -> Option<()> { None }

#[rate_limit(limit(limit = LOGIN), limit(limit = WAITING), wait = "2s")]
async fn one_policy() -> Option<()> { None }

#[tokio::main(flavor = "current_thread")]
async fn main() {
    (zero().await, too_fine().await, no_capacity().await, above_threshold().await);
    (never_blocks().await, corrects_a_lease().await, without_a_permit().await);
    (different_policies().await, one_policy().await);
}
