//! Never more than the limit, whatever operations meet: random traces of all operations are played against both
//! stores, and a judge who knows only what was admitted and used decides.
//!
//! `JUDGED_SECONDS=3600 tests/run --test judged` plays other traces for an hour. `JUDGED_WITHOUT=debt,change`
//! leaves operations out, to find out which of them meet.

mod beside;
mod calls;
mod exceptions;
mod faults;
mod fleet;
mod operation;
mod pairs;
mod player;
mod repeats;
mod rest;
mod slots;
mod trace;
mod waits;

use std::cell::Cell;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use ratelimit_runtime::{Algorithm, Limit};
use support::ALGORITHMS;
use support::cluster::Cluster;
use support::judge::Judge;
use support::server::Server;
use tokio::runtime::{Builder, Runtime};

use self::fleet::{Fleet, MOST_PROCESSES};
use self::player::Player;
use self::trace::trace;

/// Returns the words of the operations that are left out, by the environment.
fn left() -> Vec<String> {
    let without = std::env::var("JUDGED_WITHOUT").unwrap_or_default();
    without.split(',').map(str::to_lowercase).collect()
}

/// Returns how long random traces are played, by the environment. Otherwise the same traces are played each time.
fn seconds() -> Option<Duration> {
    let seconds = std::env::var("JUDGED_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("a number")))
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Plays traces: `cases`, or random ones for some time.
fn judge(algorithm: Algorithm, fleet: &Fleet, processes: usize, cases: u32) {
    judge_without(algorithm, fleet, processes, cases, &left());
}

/// Plays traces without the operations of some kinds.
fn judge_without(
    algorithm: Algorithm,
    fleet: &Fleet,
    processes: usize,
    cases: u32,
    left: &[String],
) {
    let (runtime, traces) = (runtime(), trace(algorithm, processes, left));
    let end = seconds().map(|seconds| Instant::now() + seconds);
    let played = Cell::new((0_u64, 0_usize, 0_usize));
    loop {
        let config = Config {
            cases: if end.is_some() { 20 } else { cases },
            rng_seed: if end.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) },
            max_shrink_iters: 3_000,
            failure_persistence: None,
            ..Config::default()
        };
        let outcome = TestRunner::new(config).run(&traces, |trace| {
            let verdict = runtime.block_on(Player::play(fleet, &trace));
            let (histories, operations, admitted) = played.get();
            let (operations, admitted) =
                (operations + verdict.operations, admitted + verdict.admitted);
            played.set((histories + 1, operations, admitted));
            if verdict.breaches.is_empty() && verdict.faults.is_empty() {
                return Ok(());
            }
            let story = verdict.story.join("\n");
            let (breaches, faults) = (verdict.breaches, verdict.faults);
            Err(TestCaseError::fail(format!("{breaches:?} {faults:?}\n{story}")))
        });
        if let Err(error) = outcome {
            panic!("{algorithm}: {error}");
        }
        if end.is_none_or(|end| Instant::now() >= end) {
            break;
        }
    }
    let (histories, operations, admitted) = played.get();
    println!(
        "{algorithm}: {histories} histories of {operations} operations, {admitted} admitted calls"
    );
}

/// A judge of a period that is a tick longer objects. So the traces reach the limit, and the judge looks.
fn judge_strictly(algorithm: Algorithm) {
    let (fleet, runtime) = (Fleet::embedded(), runtime());
    let config = Config {
        cases: 1_000,
        rng_seed: RngSeed::Fixed(1),
        max_shrink_iters: 0,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&trace(algorithm, 1, &left()), |trace| {
        let (limit, align) = trace.setup.judged();
        let period = limit.period() + Duration::from_micros(trace.setup.tick);
        let strict = Limit::new("strict", algorithm, limit.threshold(), period).expect("valid");
        let judge = Judge::new(&strict, align);
        let verdict = runtime.block_on(Player::play_before(judge, &fleet, &trace));
        prop_assert!(verdict.breaches.is_empty());
        Ok(())
    });
    assert!(outcome.is_err(), "the judge of a longer period does not object");
}

macro_rules! judge_each_algorithm {
    ($($name:ident: $algorithm:ident;)*) => {
        mod embedded {
            use super::*;
            $(#[test]
            fn $name() {
                judge(Algorithm::$algorithm, &Fleet::embedded(), 1, 1_000);
            })*
        }

        mod strict {
            use super::*;
            $(#[test]
            fn $name() {
                judge_strictly(Algorithm::$algorithm);
            })*
        }

        mod redis {
            use super::*;
            $(#[test]
            fn $name() {
                let server = Server::start();
                let fleet = Fleet::redis(&server);
                judge(Algorithm::$algorithm, &fleet, MOST_PROCESSES, 150);
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
            let fleet = Fleet::cluster(Cluster::start(0));
            let processes = fleet.processes.len();
            judge_without(
                algorithm,
                &fleet,
                processes,
                12,
                &["several", "once"].map(str::to_owned),
            );
        }
    }
}
