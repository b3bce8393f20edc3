//! Units that a process charges in advance and spends without a round trip.

mod buckets;
mod faults;
mod spending;

use std::time::Duration;

use ratelimit_runtime::{Limit, RateLimiter, Rejection, VirtualClock};
use support::limits::MINUTE;
use support::server::Server;

use crate::decision;

pub(crate) const TERM: Duration = Duration::from_millis(600);
const LEASED: Limit = Limit::sliding("leases", 1_000, MINUTE).lease(50);

/// Makes calls of one unit, and returns how many are admitted.
pub(crate) async fn spend(limiter: &RateLimiter, limit: &Limit, calls: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..calls {
        match limiter.check(limit, "key", 1).await {
            Ok(_) => admitted += 1,
            Err(Rejection::Limited { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    admitted
}

/// Returns the units that are left in the store, as a limiter without leases sees them.
async fn remaining(server: &Server, clock: &VirtualClock, limit: &Limit) -> u64 {
    decision(server.limiter_on(clock).peek(limit, "key", 1).await).remaining
}
