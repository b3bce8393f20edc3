//! Some processes lease units of a bucket, and others do not: each decision equals the decision of the reference model.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::__private::{leased, return_units};
use ratelimit_runtime::{Decision, Limit};
use support::limits::MINUTE;
use support::model::{ExpectedDecision, Model};
use support::random;
use support::server::Server;

use crate::{TestLimiter, decision};

#[derive(Clone, Copy, Debug)]
enum Step {
    Check(u64),
    Peek(u64),
    /// Charges units in advance, to be spent within a term.
    Lease(u64),
    /// Returns units of the newest lease.
    Return(u64),
    Refund(u64),
    /// Advances the clock by a part of a term and microseconds.
    Wait {
        percent: u64,
        micros: u64,
    },
    /// Waits for the `retry_after` of the last rejection, or a microsecond less, and peeks.
    Retry {
        early: bool,
    },
    /// Applies another threshold and burst to the steps after this one.
    Change(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let cost = || prop_oneof![4 => 1_u64..4, 1 => 1_u64..40, 1 => Just(0_u64)];
    prop_oneof![
        4 => cost().prop_map(Step::Check),
        1 => cost().prop_map(Step::Peek),
        3 => cost().prop_map(Step::Lease),
        1 => cost().prop_map(Step::Return),
        3 => (prop_oneof![0_u64..120, Just(100), 0_u64..2_000], 0_u64..3)
            .prop_map(|(percent, micros)| Step::Wait { percent, micros }),
        2 => any::<bool>().prop_map(|early| Step::Retry { early }),
        1 => (1_u64..20).prop_map(Step::Refund),
        1 => (0_usize..2).prop_map(Step::Change),
    ]
}

async fn play(
    test: &TestLimiter,
    name: u64,
    limits: &[Limit],
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let limiter = &test.limiter;
    let mut model = Model::new(&limits[0], None);
    // The time and the units of each lease.
    let mut leases: Vec<(u64, u64)> = Vec::new();
    let (mut limit, mut rejected) = (limits[0], None);
    for (index, step) in steps.iter().enumerate() {
        let (now, retry) = (test.clock.now().as_micros() as u64, rejected.take());
        let (lease, term) = leased(&limit);
        let (expected, redis): (ExpectedDecision, Decision) = match *step {
            Step::Wait { percent, micros } => {
                test.advance(term * percent / 100 + micros);
                continue;
            }
            Step::Change(index) => {
                limit = limits[index];
                continue;
            }
            Step::Check(cost) if cost > limit.capacity() => continue,
            Step::Lease(cost) if cost > lease.capacity() => continue,
            Step::Check(cost) => {
                let redis = decision(limiter.check(&limit, name, cost).await);
                rejected = (!redis.allowed).then_some((limit, cost, redis.retry_after));
                (model.check(&limit, now, cost), redis)
            }
            Step::Lease(cost) => {
                let redis = decision(limiter.check(&lease, name, cost).await);
                if redis.allowed {
                    leases.push((now, cost));
                }
                rejected = (!redis.allowed).then_some((lease, cost, redis.retry_after));
                let kept = limit.capacity() - lease.capacity();
                (model.lease(&limit, now, cost, kept, term), redis)
            }
            Step::Retry { early } => {
                let Some((limit, cost, wait)) = retry else { continue };
                test.clock.advance(wait - Duration::from_micros(early.into()));
                let redis = limiter.peek(&limit, name, cost).await.expect("a reply");
                prop_assert_eq!(redis.allowed, !early, "step {}: the wait is not tight", index);
                continue;
            }
            Step::Peek(cost) => {
                let cost = cost.min(limit.capacity());
                let redis = limiter.peek(&limit, name, cost).await.expect("a reply");
                (model.peek(&limit, now, cost), redis)
            }
            Step::Return(cost) => {
                let Some((at, units)) = leases.last_mut() else { continue };
                let cost = cost.min(*units);
                *units -= cost;
                let redis = return_units(limiter, &limit, name, cost, *at).await;
                (model.return_units(&limit, now, cost, *at), redis.expect("a reply"))
            }
            Step::Refund(cost) => {
                let redis = limiter.credit(&limit, name, cost).await.expect("a reply");
                (model.refund(&limit, now, cost), redis)
            }
        };
        prop_assert_eq!(expected, redis.into(), "step {}: {:?} at {}", index, step, now);
    }
    Ok(())
}

#[test]
fn decisions_are_those_of_the_model() {
    let server = Server::start();
    let (runtime, test) = (support::runtime(), TestLimiter::redis(&server));
    // At most a hundredth of the period refills in a term, so that the burst can be small.
    let limit = (1_u64..3_000, 40_u64..200).prop_map(|(threshold, burst)| {
        Limit::token_bucket("leased_buckets", threshold, MINUTE).burst(burst)
    });
    let limits = prop::collection::vec(limit, 2);
    let (name, steps) = (Cell::new(0), prop::collection::vec(step(), 1..100));
    random::play(1_000, &(limits, steps), |(limits, steps)| {
        name.set(name.get() + 1);
        runtime.block_on(play(&test, name.get(), &limits, &steps))
    });
    server.assert_all_keys_expire();
}

/// Leased units can be spent at the end of their term, at the moment at which other processes take the rest.
#[tokio::test]
async fn leased_and_other_units_of_one_moment_are_within_the_burst() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let limit = Limit::token_bucket("shared", 6_000, MINUTE).burst(10_000);
    let (lease, term) = leased(&limit);
    let mut units = 0;
    while test.limiter.check(&lease, "key", 50).await.is_ok() {
        units += 50;
    }
    test.advance(term);
    let mut others = 0;
    while test.limiter.check(&limit, "key", 1).await.is_ok() {
        others += 1;
    }
    assert!(units + others <= 10_000, "{units} + {others} at one moment");
    assert!(units + others > 9_800, "{units} + {others}: too many units are kept");
}

/// The level of a bucket is higher while units are leased. A settlement gives back none of that.
#[tokio::test]
async fn nothing_is_given_back_to_charges_while_units_are_leased() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let limit = Limit::token_bucket("shared", 6_000, MINUTE).burst(100);
    let (lease, term) = leased(&limit);
    let acquire = async |cost| test.limiter.acquire(&limit, "key", cost).await.expect("admitted");
    let early = acquire(50).await;
    test.limiter.check(&lease, "key", 40).await.expect("admitted");
    test.advance(term);
    for permit in [early, acquire(1).await] {
        permit.settle(0);
    }
    test.limiter.flush().await.expect("Redis");
    let mut others = 0;
    while test.limiter.check(&limit, "key", 1).await.is_ok() {
        others += 1;
    }
    assert!(40 + others <= 100, "40 leased units + {others} at one moment");

    // A lease that has ended changes nothing more.
    test.advance(60_000_000);
    acquire(50).await.settle(20);
    test.limiter.flush().await.expect("Redis");
    let left = test.limiter.peek(&limit, "key", 1).await.expect("a reply").remaining;
    assert_eq!(left, 80);
}
