//! Pairs of operations that have admitted too much, operation by operation.

use ratelimit_runtime::Algorithm;
use support::limits::Leasing;
use support::server::Server;

use crate::fleet::Fleet;
use crate::operation::{Cost, Operation};
use crate::player::Player;
use crate::runtime;
use crate::trace::{Setup, Trace};

/// Returns limits with these amounts, and the time in which the clock of the trace moves, in microseconds.
pub(crate) fn setup(algorithm: Algorithm, amounts: (u64, u64), period: u64, tick: u64) -> Setup {
    Setup {
        algorithm,
        period,
        tick,
        amounts: vec![amounts],
        align: None,
        leasing: Leasing::None,
        processes: 3,
        skew: 0,
        left: Vec::new(),
    }
}

fn bucket(algorithm: Algorithm, threshold: u64, burst: u64, period: u64, tick: u64) -> Setup {
    setup(algorithm, (threshold, burst), period, tick)
}

/// Plays operations on both stores. Returns how many calls each store has admitted.
pub(crate) fn play(setup: &Setup, operations: &[Operation]) -> [usize; 2] {
    let server = Server::start();
    [Fleet::embedded(), Fleet::redis(&server)].map(|fleet| admitted(&fleet, setup, operations))
}

fn admitted(fleet: &Fleet, setup: &Setup, operations: &[Operation]) -> usize {
    let trace = Trace { setup: setup.clone(), operations: operations.to_vec() };
    let verdict = runtime().block_on(Player::play(fleet, &trace));
    let story = verdict.story.join("\n");
    assert!(verdict.breaches.is_empty(), "{:?}\n{story}", verdict.breaches);
    assert!(verdict.faults.is_empty(), "{:?}\n{story}", verdict.faults);
    verdict.admitted
}

fn check(process: usize, cost: u64) -> Operation {
    Operation::Check { process, cost: Cost::Units(cost) }
}

fn acquire(process: usize, cost: u64) -> Operation {
    Operation::Acquire { process, cost: Cost::Units(cost) }
}

fn wait(process: usize, cost: u64, ticks: u64) -> Operation {
    Operation::Wait { process, cost: Cost::Units(cost), ticks, acquires: false }
}

/// A settlement gives nothing back that a call with a later moment would then use a second time.
#[test]
fn a_settlement_beside_a_reservation_admits_one_burst() {
    let setup = bucket(Algorithm::TokenBucket, 1_000, 1_000, 1_000_000, 1_000);
    let admitted = play(
        &setup,
        &[
            acquire(0, 1_000),
            wait(1, 1_000, 5_000),
            Operation::Advance { ticks: 1 },
            Operation::Settle { which: 0, used: 0 },
            Operation::Advance { ticks: 999 },
            check(2, 1_000),
        ],
    );
    assert_eq!(admitted, [2, 2]);
}

#[test]
fn a_settlement_beside_a_reservation_keeps_the_spacing() {
    let setup = bucket(Algorithm::LeakyBucket, 10, 1, 1_000_000, 50_000);
    let admitted = play(
        &setup,
        &[
            acquire(0, 1),
            wait(1, 1, 100),
            Operation::Advance { ticks: 1 },
            Operation::Settle { which: 0, used: 0 },
            Operation::Advance { ticks: 1 },
            check(2, 1),
        ],
    );
    assert_eq!(admitted, [2, 2]);
}

/// Of a large burst, a settlement gives back what the moments after it leave.
#[test]
fn a_settlement_beside_a_small_reservation_gives_most_back() {
    let setup = bucket(Algorithm::TokenBucket, 1_000, 1_000, 1_000_000, 1_000);
    let admitted = play(
        &setup,
        &[
            acquire(0, 1_000),
            wait(1, 100, 5_000),
            Operation::Settle { which: 0, used: 0 },
            // The call of 100 units starts after 100 ms at the latest.
            check(2, 800),
            Operation::Advance { ticks: 100 },
        ],
    );
    assert_eq!(admitted, [3, 3]);
}

/// A reserved moment is after the term of leased units, and so are the units that it takes.
#[test]
fn a_lease_beside_a_reservation_admits_one_burst() {
    let server = Server::start();
    let setup = Setup {
        leasing: Leasing::UpTo(1),
        ..bucket(Algorithm::TokenBucket, 6_000, 100, 60_000_000, 10_000)
    };
    let operations = [
        check(0, 1),
        Operation::Advance { ticks: 30 },
        wait(1, 100, 300),
        Operation::Advance { ticks: 90 },
        acquire(2, 30),
        Operation::Advance { ticks: 30 },
        acquire(2, 30),
    ];
    assert_eq!(admitted(&Fleet::redis(&server), &setup, &operations), 3);
}

/// A refund gives back units of moments ahead, whose calls start all the same. Other calls fill the bucket again to the
/// same level. A call that is dropped then gives nothing back that the later moments need.
#[test]
fn a_refund_beside_a_reservation_comes_on_top() {
    let server = Server::start();
    let setup = bucket(Algorithm::LeakyBucket, 10, 1, 1_000_000, 50_000);
    let operations = [
        check(0, 1),
        wait(1, 1, 100),
        wait(1, 1, 100),
        Operation::Refund { process: 0, units: 2 },
        Operation::Advance { ticks: 2 },
        check(2, 1),
        wait(2, 1, 100),
        Operation::DropWaiting { which: 0 },
        wait(0, 1, 100),
        Operation::Advance { ticks: 2 },
    ];
    // A burst, two refills, and a unit of the refund.
    assert_eq!(admitted(&Fleet::redis(&server), &setup, &operations), 4);
}

/// The limit of the reset does not lease. The process gives nothing back that it leased before.
#[test]
fn a_reset_discards_leased_units_of_the_count() {
    let server = Server::start();
    let fleet = Fleet::redis(&server);
    let setup = Setup {
        leasing: Leasing::UpTo(40),
        processes: 1,
        ..bucket(Algorithm::LeakyBucket, 6_000, 230, 60_000_000, 5_000)
    };
    let operations = [
        Operation::Burst { process: 0, calls: 8 },
        Operation::Reset { process: 0 },
        wait(0, 230, 1),
        Operation::Block { process: 0, ticks: 1 },
        check(0, 1),
        wait(0, 1, 1),
        Operation::Advance { ticks: 1 },
    ];
    assert_eq!(admitted(&fleet, &setup, &operations), 9);
}

/// A process gives leased units of the lost count back for a call that they do not suffice for.
#[test]
fn leased_units_of_a_lost_count_come_on_top() {
    let server = Server::start();
    let setup = Setup {
        leasing: Leasing::UpTo(40),
        ..bucket(Algorithm::TokenBucket, 6_000, 220, 60_000_000, 5_000)
    };
    let operations = [
        Operation::Burst { process: 1, calls: 18 },
        Operation::Evict,
        acquire(1, 165),
        check(1, 55),
        acquire(0, 12),
        acquire(0, 1),
    ];
    // The first process had 12 units left, so two calls are admitted beside a burst, and none after them.
    assert_eq!(admitted(&Fleet::redis(&server), &setup, &operations), 21);
}

/// The units of the smaller limit were charged while they fit. The larger limit holds for all of them together.
#[test]
fn leased_units_of_a_smaller_limit_count_in_a_larger_one() {
    let server = Server::start();
    let setup = Setup {
        leasing: Leasing::UpTo(40),
        amounts: vec![(6_000, 6_000), (12_000, 12_000)],
        ..setup(Algorithm::Sliding, (6_000, 6_000), 60_000_000, 5_000)
    };
    let operations = [
        Operation::Rule { process: 1, amounts: 1 },
        Operation::Burst { process: 0, calls: 8 },
        check(1, 6_000),
        Operation::Advance { ticks: 1 },
        check(0, 1),
        check(1, 6_000),
    ];
    // Eight calls, the costly one, and one more by the lease. A second costly one would be above the larger limit.
    assert_eq!(admitted(&Fleet::redis(&server), &setup, &operations), 10);
}

/// While no call polls the second one, its unit drains. The settlement gives back the units that drained beside it.
#[test]
fn a_settlement_beside_a_moment_that_nothing_polled_admits_one_burst() {
    let setup = bucket(Algorithm::TokenBucket, 2, 6, 20_000, 5_000);
    let admitted = play(
        &setup,
        &[
            check(0, 6),
            Operation::Advance { ticks: 2 },
            Operation::Wait { process: 0, cost: Cost::Units(6), ticks: 13, acquires: true },
            wait(0, 1, 20),
            Operation::Pause { which: 1 },
            Operation::Advance { ticks: 18 },
            check(0, 1),
            Operation::Settle { which: 0, used: 0 },
            Operation::DropWaiting { which: 0 },
            check(0, 5),
            check(0, 1),
        ],
    );
    assert_eq!(admitted, [4, 4]);
}

/// After the settlement, the bucket is full again at the time that the reservation of the first process had ended at,
/// although the reservation of another process came after it.
#[test]
fn a_settlement_between_the_reservations_of_two_processes_admits_one_burst() {
    let setup = bucket(Algorithm::TokenBucket, 10, 10, 100_000, 10_000);
    let admitted = play(
        &setup,
        &[
            acquire(0, 10),
            wait(0, 5, 50),
            wait(1, 5, 50),
            Operation::Settle { which: 0, used: 5 },
            Operation::DropWaiting { which: 0 },
            Operation::Advance { ticks: 9 },
            check(2, 5),
            Operation::Advance { ticks: 1 },
            check(2, 5),
            check(2, 1),
        ],
    );
    assert_eq!(admitted, [4, 3]);
}

/// The unblock admits a call that nothing polls. The permit is settled behind the moment of another process.
#[test]
fn a_returned_unit_beside_a_settlement_and_a_reservation_admits_one_burst() {
    let setup = bucket(Algorithm::TokenBucket, 10, 10, 100_000, 10_000);
    let admitted = play(
        &setup,
        &[
            acquire(0, 5),
            Operation::Block { process: 0, ticks: 20 },
            wait(0, 5, 50),
            Operation::Pause { which: 0 },
            Operation::Unblock { process: 0 },
            wait(1, 5, 50),
            Operation::Settle { which: 0, used: 0 },
            Operation::DropWaiting { which: 0 },
            Operation::Advance { ticks: 5 },
            check(2, 10),
            check(2, 5),
        ],
    );
    assert_eq!(admitted, [3, 3]);
}

/// A call of a shadow is decided under its amounts, and a bucket drains at the rate of the call.
#[test]
fn a_shadow_with_a_higher_rate_drains_a_bucket_at_that_rate() {
    let amounts = vec![(10, 8), (20, 2), (5, 8)];
    let setup = Setup { amounts, ..bucket(Algorithm::LeakyBucket, 10, 8, 100_000, 5_000) };
    let admitted = play(
        &setup,
        &[
            check(0, 8),
            Operation::Refund { process: 0, units: 3 },
            Operation::Free { process: 0, shadow: true },
            Operation::Change { amounts: 1 },
            Operation::Advance { ticks: 4 },
            check(0, 1),
            Operation::Rule { process: 0, amounts: 2 },
            Operation::Burst { process: 0, calls: 6 },
        ],
    );
    assert_eq!(admitted, [7, 7]);
}

/// The process grants the units before it observes that another one has blocked the key, and nothing polls the call.
#[test]
fn a_reserved_moment_soon_after_a_block_starts_a_call_that_is_polled_late() {
    let mut setup = bucket(Algorithm::LeakyBucket, 2, 2, 1_000_000, 250_000);
    setup.processes = 5;
    let operations = [
        Operation::Burst { process: 0, calls: 2 },
        wait(4, 1, 2),
        wait(4, 2, 6),
        Operation::DropWaiting { which: 0 },
        Operation::Block { process: 0, ticks: 6 },
        Operation::Advance { ticks: 3 },
        Operation::Pause { which: 0 },
        Operation::Advance { ticks: 2 },
        Operation::Pause { which: 0 },
    ];
    assert_eq!(play(&setup, &operations), [2, 3]);
}
