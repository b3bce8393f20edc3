//! Buckets of which some processes lease units and others do not: what is really spent is within the limit,
//! and each decision is the one of the reference model.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ratelimit_runtime::__private::{leased, return_units};
use ratelimit_runtime::{Decision, Limit, RateLimiter};
use support::model::{Expected, Model};
use support::server::Server;

use crate::{Timed, decision};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Step {
    Check {
        cost: u32,
    },
    Peek {
        cost: u32,
    },
    /// Charges units that are spent within a term.
    Lease {
        cost: u32,
    },
    /// Spends some of what was leased first.
    Spend {
        cost: u32,
    },
    /// Gives back some of what was leased last.
    Return {
        cost: u32,
    },
    Refund {
        cost: u32,
    },
    /// Moves the clock by a part of a term and microseconds.
    Wait {
        percent: u64,
        micros: u64,
    },
    /// Waits exactly as long as the last refusal said, or a microsecond less.
    Retry {
        early: bool,
    },
    /// From here on another threshold and burst apply.
    Change(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let cost = || prop_oneof![4 => 1_u32..4, 1 => 1_u32..40, 1 => Just(0_u32)];
    prop_oneof![
        4 => cost().prop_map(|cost| Step::Check { cost }),
        1 => cost().prop_map(|cost| Step::Peek { cost }),
        3 => cost().prop_map(|cost| Step::Lease { cost }),
        4 => cost().prop_map(|cost| Step::Spend { cost }),
        1 => cost().prop_map(|cost| Step::Return { cost }),
        3 => (prop_oneof![0_u64..120, Just(100), 0_u64..2_000], 0_u64..3)
            .prop_map(|(percent, micros)| Step::Wait { percent, micros }),
        2 => any::<bool>().prop_map(|early| Step::Retry { early }),
    ]
}

/// Steps that no promise about what is spent survives, or not with one limit in mind.
fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => step(),
        1 => (1_u32..20).prop_map(|cost| Step::Refund { cost }),
        1 => (0_usize..2).prop_map(Step::Change),
    ]
}

/// Units that are held, and what was spent.
struct Spending {
    held: Vec<(u64, u32)>,
    spent: Vec<(u64, u32)>,
}

impl Spending {
    fn spend(&mut self, now: u64, term: u64, mut cost: u32) {
        self.held.retain(|(at, units)| now <= at + term && *units > 0);
        for (_, units) in &mut self.held {
            let taken = cost.min(*units);
            *units -= taken;
            cost -= taken;
            if taken > 0 {
                self.spent.push((now, taken));
            }
        }
    }

    /// Whether no more was spent in any time than the bucket holds and what refilled.
    fn is_within(&self, limit: &Limit) -> bool {
        let period = limit.period().as_micros();
        let capacity = u128::from(limit.capacity()) * period;
        // The level if units are taken when they are spent.
        let (mut level, mut last) = (0_u128, 0);
        self.spent.iter().all(|(at, units)| {
            let drained = u128::from(at - last) * u128::from(limit.threshold());
            level = level.saturating_sub(drained) + u128::from(*units) * period;
            last = *at;
            level <= capacity
        })
    }
}

fn expected(decision: Decision) -> Expected {
    Expected {
        allowed: decision.allowed,
        remaining: decision.remaining,
        retry_after: decision.retry_after,
        reset_after: decision.reset_after,
    }
}

/// Plays steps on Redis and the model, and gives what was spent.
async fn play(
    timed: &Timed,
    name: u64,
    limits: &[Limit],
    steps: &[Step],
) -> Result<Spending, TestCaseError> {
    let limiter: &RateLimiter = &timed.limiter;
    let mut spending = Spending { held: Vec::new(), spent: Vec::new() };
    let mut model = Model::new(&limits[0], None);
    let (mut limit, mut retry) = (limits[0].clone(), None);
    for (index, step) in steps.iter().enumerate() {
        let now = timed.clock.now().as_micros() as u64;
        let (lease, term) = leased(&limit);
        let kept = limit.capacity() - lease.capacity();
        let (model, redis) = match *step {
            Step::Wait { percent, micros } => {
                timed.advance(term * percent / 100 + micros);
                retry = None;
                continue;
            }
            Step::Change(index) => {
                limit = limits[index].clone();
                retry = None;
                continue;
            }
            Step::Spend { cost } => {
                spending.spend(now, term, cost);
                continue;
            }
            Step::Check { cost } if cost > limit.capacity() => continue,
            Step::Lease { cost } if cost > lease.capacity() => continue,
            Step::Check { cost } => {
                let redis = decision(limiter.check(&limit, name, cost).await);
                if redis.allowed {
                    spending.spent.push((now, cost));
                }
                retry = (!redis.allowed).then_some((cost, redis.retry_after, false));
                (model.check(&limit, now, cost), redis)
            }
            Step::Lease { cost } => {
                let redis = decision(limiter.check(&lease, name, cost).await);
                if redis.allowed {
                    spending.held.push((now, cost));
                }
                retry = (!redis.allowed).then_some((cost, redis.retry_after, true));
                (model.lease(&limit, now, cost, kept, term), redis)
            }
            Step::Retry { early } => {
                let Some((cost, wait, leases)) = retry.take() else { continue };
                timed.clock.advance(wait - Duration::from_micros(early.into()));
                let limit = if leases { &lease } else { &limit };
                let redis = limiter.peek(limit, name, cost).await.expect("answers");
                prop_assert_eq!(redis.allowed, !early, "step {}: the wait is not tight", index);
                continue;
            }
            Step::Peek { cost } => (
                model.peek(&limit, now, cost.min(limit.capacity())),
                limiter.peek(&limit, name, cost.min(limit.capacity())).await.expect("answers"),
            ),
            Step::Return { cost } => {
                let Some((at, units)) = spending.held.last_mut() else { continue };
                let cost = cost.min(*units);
                *units -= cost;
                retry = None;
                let redis = return_units(limiter, &limit, name, cost, *at).await;
                (model.give_back(&limit, now, cost, *at), redis.expect("answers"))
            }
            Step::Refund { cost } => {
                retry = None;
                let redis = limiter.refund(&limit, name, cost).await.expect("answers");
                (model.refund(&limit, now, cost), redis)
            }
        };
        prop_assert_eq!(model, expected(redis), "step {}: {:?} at {}", index, step, now);
    }
    Ok(spending)
}

fn limits() -> impl Strategy<Value = Vec<Limit>> {
    // At most a hundredth of the period refills in a term, so that the burst can be small.
    let limit = (1_u32..3_000, 40_u32..200).prop_map(|(threshold, burst)| {
        Limit::token_bucket("mixed", threshold, MINUTE).burst(burst)
    });
    prop::collection::vec(limit, 2)
}

fn holds(cases: u32, steps: impl Strategy<Value = Step>, is_promised: bool) {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("one");
    let timed = Timed::redis(&server);
    let config =
        Config { cases, max_shrink_iters: 2_000, failure_persistence: None, ..Config::default() };
    let name = std::cell::Cell::new(0);
    let steps = prop::collection::vec(steps, 1..100);
    let outcome = TestRunner::new(config).run(&(limits(), steps), |(limits, steps)| {
        name.set(name.get() + 1);
        let spending = runtime.block_on(play(&timed, name.get(), &limits, &steps))?;
        let is_within = !is_promised || spending.is_within(&limits[0]);
        prop_assert!(is_within, "{:?}", spending.spent);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    for (key, life) in server.lives() {
        assert!(life > 0, "{key} has no TTL");
    }
}

#[test]
fn what_is_spent_is_within_the_limit() {
    holds(600, step(), true);
}

#[test]
fn decisions_are_those_of_the_model() {
    holds(400, any_step(), false);
}

/// At one moment, after units were leased and spent at the end of their term.
#[tokio::test]
async fn a_bucket_is_never_exceeded() {
    let server = Server::start();
    let timed = Timed::redis(&server);
    let limit = Limit::token_bucket("shared", 6_000, MINUTE).burst(10_000);
    let (lease, term) = leased(&limit);
    let mut held = 0;
    while timed.limiter.check(&lease, "key", 50).await.is_ok() {
        held += 50;
    }
    timed.advance(term);
    let mut plain = 0;
    while timed.limiter.check(&limit, "key", 1).await.is_ok() {
        plain += 1;
    }
    assert!(held + plain <= 10_000, "{held} + {plain} at one moment");
    assert!(held + plain > 9_800, "{held} + {plain}: more is kept than can be lost");
}
