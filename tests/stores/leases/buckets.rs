//! Some processes lease units of a bucket, and others do not, or settle their charges: the spent units are within the
//! limit, and each decision equals the decision of the reference model.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ratelimit_runtime::__private::{leased, return_units};
use ratelimit_runtime::{Limit, Permit, RateLimiter};
use support::model::Model;
use support::operations::{OperationKind, assert_plays};
use support::server::Server;

use crate::{TestLimiter, decision};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Step {
    Check {
        cost: u64,
    },
    Peek {
        cost: u64,
    },
    /// Charges units in advance, to be spent within a term.
    Lease {
        cost: u64,
    },
    /// Spends units of the oldest leases.
    Spend {
        cost: u64,
    },
    /// Returns units of the newest lease.
    Return {
        cost: u64,
    },
    Refund {
        cost: u64,
    },
    /// Charges units that can be settled.
    Acquire {
        cost: u64,
    },
    /// Settles one of the open permits for the units that its call has used.
    Settle {
        which: usize,
        used: u64,
    },
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

impl Step {
    fn kinds(&self) -> &'static [OperationKind] {
        use OperationKind as K;
        match self {
            Self::Check { .. } => &[K::Check],
            Self::Peek { .. } => &[K::Peek],
            Self::Lease { .. } | Self::Spend { .. } => &[K::Lease],
            Self::Return { .. } => &[K::Return],
            Self::Refund { .. } => &[K::Refund],
            Self::Acquire { .. } => &[K::Acquire],
            Self::Settle { .. } => &[K::Settle],
            Self::Wait { .. } => &[K::Advance],
            Self::Retry { .. } => &[K::Retry],
            Self::Change(_) => &[K::Change],
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let cost = || prop_oneof![4 => 1_u64..4, 1 => 1_u64..40, 1 => Just(0_u64)];
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

/// All steps. After a refund or a change of the limit, no limit bounds the spent units.
fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => step(),
        1 => (1_u64..20).prop_map(|cost| Step::Refund { cost }),
        1 => (0_usize..2).prop_map(Step::Change),
    ]
}

/// Steps of limits that lease and of others of the same name whose charges are settled.
fn step_of_both() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => step(),
        3 => (1_u64..40).prop_map(|cost| Step::Acquire { cost }),
        3 => (any::<usize>(), 0_u64..20).prop_map(|(which, used)| Step::Settle { which, used }),
    ]
}

/// The leased and the spent units, each with their time.
struct Ledger {
    leased: Vec<(u64, u64)>,
    spent: Vec<(u64, u64)>,
}

impl Ledger {
    fn spend(&mut self, now: u64, term: u64, mut cost: u64) {
        self.leased.retain(|(at, units)| now <= at + term && *units > 0);
        for (_, units) in &mut self.leased {
            let taken = cost.min(*units);
            *units -= taken;
            cost -= taken;
            if taken > 0 {
                self.spent.push((now, taken));
            }
        }
    }

    /// Returns whether, over any time, the spent units are within the capacity and the refilled units.
    fn is_within(&self, limit: &Limit) -> bool {
        let period = limit.period().as_micros();
        let capacity = u128::from(limit.capacity()) * period;
        // The level of a bucket that is charged at the time of spending.
        let (mut level, mut last) = (0_u128, 0);
        self.spent.iter().all(|(at, units)| {
            let drained = u128::from(at - last) * u128::from(limit.threshold());
            level = level.saturating_sub(drained) + u128::from(*units) * period;
            last = *at;
            level <= capacity
        })
    }
}

/// Plays steps on Redis and the model, and returns the spent units.
async fn play(
    test: &TestLimiter,
    name: u64,
    limits: &[Limit],
    steps: &[Step],
) -> Result<Ledger, TestCaseError> {
    let limiter: &RateLimiter = &test.limiter;
    let mut ledger = Ledger { leased: Vec::new(), spent: Vec::new() };
    let mut model = Model::new(&limits[0], None);
    let (mut limit, mut retry) = (limits[0], None);
    // With the places of their units in the ledger. The model knows no permits.
    let (mut permits, mut is_modelled): (Vec<(Permit, usize)>, _) = (Vec::new(), true);
    for (index, step) in steps.iter().enumerate() {
        let now = test.clock.now().as_micros() as u64;
        let (lease, term) = leased(&limit);
        let kept = limit.capacity() - lease.capacity();
        let (model, redis) = match *step {
            Step::Wait { percent, micros } => {
                test.advance(term * percent / 100 + micros);
                retry = None;
                continue;
            }
            Step::Change(index) => {
                limit = limits[index];
                retry = None;
                continue;
            }
            Step::Spend { cost } => {
                ledger.spend(now, term, cost);
                continue;
            }
            Step::Acquire { cost } => {
                (retry, is_modelled) = (None, false);
                if let Ok(permit) = limiter.acquire(&limit, name, cost).await {
                    ledger.spent.push((now, cost));
                    permits.push((permit, ledger.spent.len() - 1));
                }
                continue;
            }
            Step::Settle { .. } if permits.is_empty() => continue,
            Step::Settle { which, used } => {
                retry = None;
                let (permit, place) = permits.swap_remove(which % permits.len());
                let used = used.min(ledger.spent[place].1);
                ledger.spent[place].1 = used;
                permit.settle(used);
                limiter.flush().await.expect("Redis");
                continue;
            }
            Step::Check { cost } if cost > limit.capacity() => continue,
            Step::Lease { cost } if cost > lease.capacity() => continue,
            Step::Check { cost } => {
                let redis = decision(limiter.check(&limit, name, cost).await);
                if redis.allowed {
                    ledger.spent.push((now, cost));
                }
                retry = (!redis.allowed).then_some((cost, redis.retry_after, false));
                (model.check(&limit, now, cost), redis)
            }
            Step::Lease { cost } => {
                let redis = decision(limiter.check(&lease, name, cost).await);
                if redis.allowed {
                    ledger.leased.push((now, cost));
                }
                retry = (!redis.allowed).then_some((cost, redis.retry_after, true));
                (model.lease(&limit, now, cost, kept, term), redis)
            }
            Step::Retry { early } => {
                let Some((cost, wait, leases)) = retry.take() else { continue };
                test.clock.advance(wait - Duration::from_micros(early.into()));
                let limit = if leases { &lease } else { &limit };
                let redis = limiter.peek(limit, name, cost).await.expect("a reply");
                prop_assert_eq!(redis.allowed, !early, "step {}: the wait is not tight", index);
                continue;
            }
            Step::Peek { cost } => (
                model.peek(&limit, now, cost.min(limit.capacity())),
                limiter.peek(&limit, name, cost.min(limit.capacity())).await.expect("a reply"),
            ),
            Step::Return { cost } => {
                let Some((at, units)) = ledger.leased.last_mut() else { continue };
                let cost = cost.min(*units);
                *units -= cost;
                retry = None;
                let redis = return_units(limiter, &limit, name, cost, *at).await;
                (model.return_units(&limit, now, cost, *at), redis.expect("a reply"))
            }
            Step::Refund { cost } => {
                retry = None;
                let redis = limiter.credit(&limit, name, cost).await.expect("a reply");
                (model.refund(&limit, now, cost), redis)
            }
        };
        if is_modelled {
            prop_assert_eq!(model, redis.into(), "step {}: {:?} at {}", index, step, now);
        }
    }
    Ok(ledger)
}

fn limits() -> impl Strategy<Value = Vec<Limit>> {
    // At most a hundredth of the period refills in a term, so that the burst can be small.
    let limit = (1_u64..3_000, 40_u64..200).prop_map(|(threshold, burst)| {
        Limit::token_bucket("leased_buckets", threshold, MINUTE).burst(burst)
    });
    prop::collection::vec(limit, 2)
}

#[test]
fn plays_leases_and_what_stands_beside_them() {
    assert_plays(&prop_oneof![any_step(), step_of_both()], Step::kinds, |kind| {
        use OperationKind::*;
        match kind {
            Check | Acquire | Lease | Return | Settle | Refund | Peek | Change | Advance
            | Retry => true,
            Burst | Wait | Drop | Pause | Debt | Keep | Reset | Block | Unblock | Rule | Free
            | Several | Idle | Step | Evict | LostReply | Crash | MoveSlot => false,
        }
    });
}

/// Plays random traces. With `is_bounded`, the spent units have to be within the limit.
fn run_traces(cases: u32, steps: impl Strategy<Value = Step>, is_bounded: bool) {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("one");
    let test = TestLimiter::redis(&server);
    let config =
        Config { cases, max_shrink_iters: 2_000, failure_persistence: None, ..Config::default() };
    let name = std::cell::Cell::new(0);
    let steps = prop::collection::vec(steps, 1..100);
    let outcome = TestRunner::new(config).run(&(limits(), steps), |(limits, steps)| {
        name.set(name.get() + 1);
        let ledger = runtime.block_on(play(&test, name.get(), &limits, &steps))?;
        let is_within = !is_bounded || ledger.is_within(&limits[0]);
        prop_assert!(is_within, "{:?}", ledger.spent);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    server.assert_all_keys_expire();
}

#[test]
fn spent_units_are_within_the_limit() {
    run_traces(600, step(), true);
}

#[test]
fn spent_units_are_within_the_limit_beside_charges_that_are_settled() {
    run_traces(600, step_of_both(), true);
}

#[test]
fn decisions_are_those_of_the_model() {
    run_traces(400, any_step(), false);
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
