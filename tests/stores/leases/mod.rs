//! Units that a process charges in advance and spends without a round trip.

mod buckets;
mod faults;
mod spending;

use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use ratelimit_runtime::{
    Clock, Decision, Limit, OnError, RateLimiter, Rejection, Source, StoreError, VirtualClock,
};
use support::limits::MINUTE;
use support::runtime;
use support::server::Server;

use crate::{TestLimiter, decision, wait_until};

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

/// Makes a call of one unit, and returns what admits it.
async fn source(limiter: &RateLimiter, limit: &Limit) -> Source {
    limiter.check(limit, "key", 1).await.expect("admitted").source
}

/// Returns the units that are left in the store, as a limiter without leases sees them.
async fn remaining(server: &Server, clock: &VirtualClock, limit: &Limit) -> u64 {
    decision(server.limiter_on(clock).peek(limit, "key", 1).await).remaining
}

async fn wait_until_left(server: &Server, clock: &VirtualClock, units: u64) {
    wait_until(async || remaining(server, clock, &LEASED).await == units).await;
}
