//! Calls in flight: random operations of all kinds, alone and beside rates, before the judge of holders. It decides
//! from what was admitted and what has ended; and whenever nothing is under way, the store counts what the judge does.

mod operation;
mod player;

use proptest::prelude::*;
use support::cluster::Cluster;
use support::runtime;
use support::server::Server;

use self::operation::{End, MOST, RuleOf, What, what};
use self::player::SlotPlayer;
use crate::assert_judged;
use crate::fleet::Fleet;

#[derive(Clone, Debug)]
struct Trace {
    processes: usize,
    most: u64,
    /// Whether the rate has another key, which is in another hash slot of a cluster.
    is_apart: bool,
    operations: Vec<(usize, What)>,
}

fn traces(processes: usize) -> impl Strategy<Value = Trace> {
    (1..=processes, 1..=MOST, any::<bool>()).prop_flat_map(|(processes, most, is_apart)| {
        let operations = prop::collection::vec((0..processes, what()), 1..50);
        operations.prop_map(move |operations| Trace { processes, most, is_apart, operations })
    })
}

fn judge(fleet: &Fleet, cases: u32) {
    let runtime = runtime();
    crate::judge(&traces(fleet.processes.len()), cases, 60, |trace| {
        runtime.block_on(SlotPlayer::play(fleet, &trace)).0
    });
}

#[test]
fn embedded() {
    judge(&Fleet::embedded(), 600);
}

#[test]
fn redis() {
    let server = Server::start();
    // Alive for as long as its server, which it can have started again.
    let fleet = Fleet::redis(&server);
    judge(&fleet, 150);
    server.assert_all_keys_expire();
}

#[test]
fn cluster() {
    judge(&Fleet::cluster(Cluster::start(0)), 25);
}

#[test]
fn strict() {
    let (fleet, runtime) = (Fleet::embedded(), runtime());
    assert_judged(&traces(1), 200, |trace| {
        let (_, judge) = runtime.block_on(SlotPlayer::play(&fleet, &trace));
        !judge.objects_to_one_unit_less()
    });
}

/// Plays operations of one process, and asserts that they break no promise.
fn play(fleet: &Fleet, most: u64, is_apart: bool, operations: &[What]) {
    let operations = operations.iter().map(|what| (0, *what)).collect();
    let trace = Trace { processes: 1, most, is_apart, operations };
    let (verdict, _) = runtime().block_on(SlotPlayer::play(fleet, &trace));
    assert!(verdict.is_kept(), "{verdict}");
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
