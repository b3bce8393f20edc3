//! Calls in flight: random operations of all kinds, alone and beside rates, before the judge of holders. It decides
//! from what was admitted and what has ended; and whenever nothing is under way, the store counts what the judge does.

mod operation;
mod player;

use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use support::cluster::Cluster;
use support::server::Server;

use self::operation::{End, MOST, Operation, RuleOf, operation};
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

/// A call with units becomes exempt while nothing polls it, and keeps them.
#[test]
fn an_exempt_call_can_have_units() {
    let call = |cost, ticks| Operation::Call { process: 0, cost, is_rated: false, ticks };
    let rule = |rule| Operation::Rule { process: 0, rule };
    let operations = vec![
        call(1, None),
        call(4, Some(98)),
        Operation::Pause { which: 0 },
        Operation::End { which: 0, end: End::Release },
        rule(RuleOf::Exempt),
        Operation::Pause { which: 0 },
        rule(RuleOf::Nothing),
    ];
    let trace = Trace { processes: 1, most: 4, is_apart: false, operations };
    let (verdict, _) = runtime().block_on(SlotPlayer::play(&Fleet::embedded(), &trace));
    assert!(verdict.faults.is_empty(), "{:?}", verdict.faults);
}

/// A call is charged by its rate, and ends once its shadow is decided on another node. What other calls use meanwhile
/// comes after its charge.
#[test]
fn a_shadow_can_be_decided_late() {
    let fleet = Fleet::cluster(Cluster::start(0));
    let call = |cost, ticks| Operation::Call { process: 0, cost, is_rated: true, ticks };
    let rule = |rule| Operation::Rule { process: 0, rule };
    let operations = vec![
        rule(RuleOf::Exempt),
        call(1, None),
        call(1, None),
        rule(RuleOf::Shadow),
        call(5, Some(1)),
        Operation::End { which: 1, end: End::Settle(3) },
    ];
    for _ in 0..60 {
        let operations = operations.clone();
        let trace = Trace { processes: 1, most: 5, is_apart: true, operations };
        let (verdict, _) = runtime().block_on(SlotPlayer::play(&fleet, &trace));
        assert!(
            verdict.breaches.is_empty(),
            "{:?}\n{}",
            verdict.breaches,
            verdict.story.join("\n")
        );
    }
}
