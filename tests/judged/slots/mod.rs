//! Calls in flight: random operations of all kinds, alone and beside rates, before the judge of holders. It decides
//! from what was admitted and what has ended; and whenever nothing is under way, the store counts what the judge does.

mod operation;
mod player;

use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use support::cluster::Cluster;
use support::server::Server;

use self::operation::{End, MOST, Operation, RuleOf, What, operation};
use self::player::SlotPlayer;
use crate::fleet::{Fleet, MOST_PROCESSES};
use crate::{runtime, seconds};

#[derive(Clone, Debug)]
struct Trace {
    processes: usize,
    /// The limit of the first calls.
    most: u64,
    /// Whether the rate has another key, which is in another hash slot of a cluster.
    is_apart: bool,
    operations: Vec<Operation>,
}

fn traces(processes: usize) -> impl Strategy<Value = Trace> {
    (1..=processes, 1..=MOST, any::<bool>()).prop_flat_map(|(processes, most, is_apart)| {
        let operations = prop::collection::vec(operation(processes), 1..50);
        operations.prop_map(move |operations| Trace { processes, most, is_apart, operations })
    })
}

fn config(cases: u32) -> Config {
    let is_random = seconds().is_some();
    Config {
        cases: if is_random { 20 } else { cases },
        rng_seed: if is_random { RngSeed::Random } else { RngSeed::Fixed(1) },
        max_shrink_iters: 60,
        failure_persistence: None,
        ..Config::default()
    }
}

/// Plays traces: `cases`, or random ones for some time.
fn judge(fleet: &Fleet, processes: usize, cases: u32) {
    let (runtime, end) = (runtime(), seconds().map(|seconds| Instant::now() + seconds));
    loop {
        let outcome = TestRunner::new(config(cases)).run(&traces(processes), |trace| {
            let (verdict, _) = runtime.block_on(SlotPlayer::play(fleet, &trace));
            if verdict.breaches.is_empty() && verdict.faults.is_empty() {
                return Ok(());
            }
            let story = verdict.story.join("\n");
            Err(TestCaseError::fail(format!(
                "{:?} {:?}\n{story}",
                verdict.breaches, verdict.faults
            )))
        });
        outcome.unwrap_or_else(|error| panic!("{error}"));
        if end.is_none_or(|end| Instant::now() >= end) {
            return;
        }
    }
}

#[test]
fn embedded() {
    judge(&Fleet::embedded(), 1, 600);
}

#[test]
fn redis() {
    let server = Server::start();
    // Alive for as long as its server, which it can have started again.
    let fleet = Fleet::redis(&server);
    judge(&fleet, MOST_PROCESSES, 150);
    server.assert_all_keys_expire();
}

#[test]
fn cluster() {
    let fleet = Fleet::cluster(Cluster::start(0));
    judge(&fleet, fleet.processes.len(), 25);
}

/// A judge that has seen one more unit objects. So the traces reach the limit, and the judge looks.
#[test]
fn strict() {
    let (fleet, runtime) = (Fleet::embedded(), runtime());
    let outcome = TestRunner::new(config(200)).run(&traces(1), |trace| {
        let (_, judge) = runtime.block_on(SlotPlayer::play(&fleet, &trace));
        prop_assert!(!judge.objects_to_one_unit_less());
        Ok(())
    });
    assert!(outcome.is_err(), "the judge of a lower limit does not object");
}

/// Plays operations of one process, and asserts that they break no promise.
fn play(fleet: &Fleet, most: u64, is_apart: bool, operations: &[What]) {
    let operations = operations.iter().map(|what| Operation { process: 0, what: *what });
    let trace = Trace { processes: 1, most, is_apart, operations: operations.collect() };
    let (verdict, _) = runtime().block_on(SlotPlayer::play(fleet, &trace));
    let story = verdict.story.join("\n");
    assert!(verdict.breaches.is_empty(), "{:?}\n{story}", verdict.breaches);
    assert!(verdict.faults.is_empty(), "{:?}\n{story}", verdict.faults);
}

/// A call with units becomes exempt while nothing polls it, and keeps them.
#[test]
fn an_exempt_call_can_have_units() {
    let call = |cost, ticks| What::Call { cost, is_rated: false, ticks };
    let operations = [
        call(1, None),
        call(4, Some(98)),
        What::Pause(0),
        What::End { which: 0, end: End::Release },
        What::Rule(RuleOf::Exempt),
        What::Pause(0),
        What::Rule(RuleOf::Nothing),
    ];
    play(&Fleet::embedded(), 4, false, &operations);
}

/// A call is charged by its rate, and ends once its shadow is decided on another node. What other calls use meanwhile
/// comes after its charge.
#[test]
fn a_shadow_can_be_decided_late() {
    let fleet = Fleet::cluster(Cluster::start(0));
    let call = |cost, ticks| What::Call { cost, is_rated: true, ticks };
    let operations = [
        What::Rule(RuleOf::Exempt),
        call(1, None),
        call(1, None),
        What::Rule(RuleOf::Shadow),
        call(5, Some(1)),
        What::End { which: 1, end: End::Settle(3) },
    ];
    for _ in 0..60 {
        play(&fleet, 5, true, &operations);
    }
}
