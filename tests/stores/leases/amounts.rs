//! Leases and calls with other amounts on the same count: units that were leased under other amounts are not spent.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Limit, Rejection, Rule, RuleSet, Source, VirtualClock};
use support::ALGORITHMS;
use support::limits::MINUTE;
use support::server::Server;

use super::{LEASED, TERM, remaining, spend};
use crate::decision;
use crate::wait_until;

/// The limit of a plan, which leases up to `lease` units.
fn plan(algorithm: Algorithm, threshold: u64, lease: u64) -> Limit {
    let limit = Limit::new("plans", algorithm, threshold, MINUTE).expect("valid");
    let limit = if limit.capacity() == 1 { limit.burst(threshold) } else { limit };
    limit.lease(lease)
}

/// A process that holds units of a large plan decides calls of a small plan by the small plan.
#[tokio::test]
async fn calls_do_not_spend_units_of_another_plan() {
    let server = Server::start();
    for algorithm in ALGORITHMS {
        let clock = VirtualClock::new();
        let limiter = server.limiter_on(&clock);
        let (large, small) = (plan(algorithm, 1_000, 50), plan(algorithm, 10, 5));
        // Leases of 1, 2, 4, 8, 16 and 32 units: the process holds 8.
        assert_eq!(spend(&limiter, &large, 55).await, 55);
        assert_eq!(spend(&limiter, &small, 5).await, 0, "{algorithm}: 63 units are charged");
        let too_large = limiter.check(&small, "key", 20).await;
        assert!(
            matches!(too_large, Err(Rejection::CostExceedsCapacity { .. })),
            "{algorithm}: {too_large:?}"
        );
        let peek = decision(limiter.peek(&small, "key", 1).await);
        assert_eq!((peek.allowed, peek.remaining), (false, 0), "{algorithm}");
        // The units of the large plan are still leased.
        let next = limiter.check(&large, "key", 1).await.expect("admitted");
        assert_eq!(next.source, Source::Lease, "{algorithm}");
    }
}

/// Units that are not spent go back under the plan that charged them, and then calls of the other plan lease.
#[tokio::test]
async fn units_of_another_plan_go_back() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = server.limiter_on(&clock);
    let (large, other) = (plan(Algorithm::Sliding, 1_000, 50), plan(Algorithm::Sliding, 2_000, 50));
    assert_eq!(spend(&limiter, &large, 55).await, 55);
    assert_eq!(spend(&limiter, &other, 10).await, 10);
    assert_eq!(remaining(&server, &clock, &large).await, 1_000 - 63 - 10);
    clock.advance(TERM);
    wait_until(async || remaining(&server, &clock, &large).await == 1_000 - 65).await;
    assert_eq!(spend(&limiter, &other, 20).await, 20);
    let leased = limiter.check(&other, "key", 1).await.expect("admitted");
    assert_eq!(leased.source, Source::Lease);
    clock.advance(TERM);
    wait_until(async || remaining(&server, &clock, &other).await == 2_000 - 86).await;
}

/// Limits with the same amounts share units, whatever they lease.
#[tokio::test]
async fn leases_of_other_sizes_share_units() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = server.limiter_on(&clock);
    assert_eq!(spend(&limiter, &LEASED, 55).await, 55);
    let smaller = Limit::sliding("leases", 1_000, MINUTE).lease(5);
    let shared = limiter.check(&smaller, "key", 1).await.expect("admitted");
    assert_eq!(shared.source, Source::Lease);
}

/// A rule changes the amounts while the process holds units.
#[tokio::test]
async fn calls_under_a_rule_do_not_spend_units_of_before() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = server.limiter_on(&clock);
    assert_eq!(spend(&limiter, &LEASED, 55).await, 55);
    let mut rules = RuleSet::new();
    rules.set("leases", Rule::new().threshold(10)).expect("valid");
    limiter.set_rules(rules).expect("valid rules");
    assert_eq!(spend(&limiter, &LEASED, 5).await, 0);
    clock.advance(TERM);
    wait_until(async || remaining(&server, &clock, &LEASED).await == 1_000 - 55).await;
    limiter.set_rules(RuleSet::new()).expect("valid rules");
    clock.advance(Duration::from_secs(2));
    assert_eq!(spend(&limiter, &LEASED, 10).await, 10);
}
