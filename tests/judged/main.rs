//! Never more than the limit, whatever operations meet: random traces of all operations are played against both
//! stores, and a judge who knows only what was admitted and used decides.
//!
//! `JUDGED_SECONDS=3600 tests/run --test judged` plays other traces for an hour.

mod beside;
mod calls;
mod exceptions;
mod faults;
mod fleet;
mod operation;
mod pairs;
mod player;
mod rest;
mod slots;
mod trace;

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use ratelimit_runtime::Algorithm;
use support::cluster::Cluster;
use support::server::Server;
use support::{ALGORITHMS, runtime};

use self::calls::Verdict;
use self::fleet::Fleet;
use self::player::Player;
use self::trace::trace;

fn runner(cases: u32, rng_seed: RngSeed, max_shrink_iters: u32) -> TestRunner {
    let failure_persistence = None;
    let config =
        Config { cases, rng_seed, max_shrink_iters, failure_persistence, ..Config::default() };
    TestRunner::new(config)
}

/// Judges the same traces each time, or other ones for a time that the environment says.
fn judge<T: Strategy>(traces: &T, cases: u32, shrinks: u32, play: impl Fn(T::Value) -> Verdict) {
    let play = |trace| {
        let verdict = play(trace);
        if verdict.is_kept() { Ok(()) } else { Err(TestCaseError::fail(verdict.to_string())) }
    };
    let Ok(seconds) = std::env::var("JUDGED_SECONDS") else {
        let outcome = runner(cases, RngSeed::Fixed(1), shrinks).run(traces, play);
        return outcome.unwrap_or_else(|error| panic!("{error}"));
    };
    let end = Instant::now() + Duration::from_secs(seconds.parse().expect("a number"));
    while Instant::now() < end {
        let outcome = runner(20, RngSeed::Random, shrinks).run(traces, play);
        outcome.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Asserts that a judge of less than the limit objects to one of the traces. So the traces reach the limit, and the
/// judge looks.
fn assert_judged<T: Strategy>(traces: &T, cases: u32, keeps: impl Fn(T::Value) -> bool) {
    let outcome = runner(cases, RngSeed::Fixed(1), 0).run(traces, |trace| {
        prop_assert!(keeps(trace));
        Ok(())
    });
    assert!(outcome.is_err(), "the stricter judge does not object");
}

/// Judges the traces of an algorithm on the processes of a fleet.
fn judge_fleet(algorithm: Algorithm, fleet: &Fleet, cases: u32, several_keys: bool) {
    let (runtime, traces) = (runtime(), trace(algorithm, fleet.processes.len(), several_keys));
    judge(&traces, cases, 3_000, |trace| runtime.block_on(Player::play(fleet, &trace, false)));
}

macro_rules! judge_each_algorithm {
    ($($name:ident: $algorithm:ident;)*) => {
        mod embedded {
            use super::*;
            $(#[test]
            fn $name() {
                judge_fleet(Algorithm::$algorithm, &Fleet::embedded(), 1_000, true);
            })*
        }

        mod strict {
            use super::*;
            $(#[test]
            fn $name() {
                let (fleet, runtime) = (Fleet::embedded(), runtime());
                assert_judged(&trace(Algorithm::$algorithm, 1, true), 1_000, |trace| {
                    let verdict = runtime.block_on(Player::play(&fleet, &trace, true));
                    verdict.breaches.is_empty()
                });
            })*
        }

        mod redis {
            use super::*;
            $(#[test]
            fn $name() {
                let server = Server::start();
                judge_fleet(Algorithm::$algorithm, &Fleet::redis(&server), 150, true);
                server.assert_all_keys_expire();
            })*
        }
    };
}

judge_each_algorithm! {
    sliding: Sliding;
    fixed: Fixed;
    sliding_counter: SlidingCounter;
    token_bucket: TokenBucket;
    leaky_bucket: LeakyBucket;
}

/// Hash slots move while some of their keys are on another node. A cluster is slow, so there are few traces. Calls of
/// several limits are left out: a decision about keys on two nodes waits until the slot has moved.
mod cluster {
    use super::*;

    #[test]
    fn slots_that_move() {
        for algorithm in ALGORITHMS {
            judge_fleet(algorithm, &Fleet::cluster(Cluster::start(0)), 12, false);
        }
    }
}
