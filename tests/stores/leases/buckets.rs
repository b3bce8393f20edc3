//! Some processes lease units of a bucket, and others do not: each decision equals the decision of the reference model.

use std::cell::Cell;

use proptest::prelude::*;
use ratelimit_runtime::__private::{leased, return_units};
use support::model::{ExpectedDecision, Model};
use support::random;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Decides a call, or charges units in advance, to be spent within a term.
    Check {
        cost: u64,
        leases: bool,
    },
    Peek(u64),
    /// Returns units of the newest lease.
    Return(u64),
    Refund(u64),
    /// Advances the clock by a part of a term and microseconds.
    Wait {
        percent: u64,
        micros: u64,
    },
    /// Applies another threshold and burst to the steps after this one.
    Change(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let cost = || prop_oneof![4 => 1_u64..4, 1 => 1_u64..40, 1 => Just(0_u64)];
    prop_oneof![
        4 => cost().prop_map(|cost| Step::Check { cost, leases: false }),
        1 => cost().prop_map(Step::Peek),
        3 => cost().prop_map(|cost| Step::Check { cost, leases: true }),
        1 => cost().prop_map(Step::Return),
        3 => (prop_oneof![0_u64..120, Just(100), 0_u64..2_000], 0_u64..3)
            .prop_map(|(percent, micros)| Step::Wait { percent, micros }),
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
    let mut limit = limits[0];
    for (index, step) in steps.iter().enumerate() {
        let now = test.clock.now().as_micros() as u64;
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
            Step::Check { cost, leases: leases_units } => {
                let checked = if leases_units { lease } else { limit };
                if cost > checked.capacity() {
                    continue;
                }
                let redis = decision(limiter.check(&checked, name, cost).await);
                if leases_units {
                    leases.extend(redis.allowed.then_some((now, cost)));
                    let kept = limit.capacity() - lease.capacity();
                    (model.lease(&limit, now, cost, kept, term), redis)
                } else {
                    (model.check(&limit, now, cost), redis)
                }
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

/// Makes calls of as many units until one is rejected, and returns the units of all others.
async fn take_all(test: &TestLimiter, limit: &Limit, cost: u64) -> u64 {
    let mut units = 0;
    while test.limiter.check(limit, "key", cost).await.is_ok() {
        units += cost;
    }
    units
}

/// Leased units can be spent at the end of their term, at the moment at which other processes take the rest.
#[tokio::test]
async fn leased_and_other_units_of_one_moment_are_within_the_burst() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let limit = Limit::token_bucket("shared", 6_000, MINUTE).burst(10_000);
    let (lease, term) = leased(&limit);
    let units = take_all(&test, &lease, 50).await;
    test.advance(term);
    let others = take_all(&test, &limit, 1).await;
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
    let others = take_all(&test, &limit, 1).await;
    assert!(40 + others <= 100, "40 leased units + {others} at one moment");

    // A lease that has ended changes nothing more.
    test.advance(60_000_000);
    acquire(50).await.settle(20);
    test.limiter.flush().await.expect("Redis");
    let left = test.limiter.peek(&limit, "key", 1).await.expect("a reply").remaining;
    assert_eq!(left, 80);
}
