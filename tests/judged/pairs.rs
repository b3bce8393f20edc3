//! Pairs of operations that have admitted too much, or lost units, operation by operation.

use ratelimit_runtime::Algorithm::{self, Fixed, LeakyBucket, Sliding, TokenBucket};
use support::limits::Leasing;
use support::runtime;
use support::server::Server;

use crate::fleet::Fleet;
use crate::operation::What::{
    Advance, Block, Burst, Change, Evict, Free, Pause, Refund, Reset, Rule, Settle, Unblock,
};
use crate::operation::{Cost, Operation, What};
use crate::player::Player;
use crate::trace::{Setup, Trace};

const SECOND: u64 = 1_000_000;

/// Returns limits of this threshold and capacity, and the time in which the clock of the trace moves, in microseconds.
fn setup(algorithm: Algorithm, amounts: (u64, u64), period: u64, tick: u64) -> Setup {
    let (amounts, unit, align, leasing) = (vec![amounts], 1, None, Leasing::None);
    Setup { algorithm, period, tick, amounts, unit, align, leasing, processes: 3, skew: 0 }
}

fn leased(units: u64, setup: Setup) -> Setup {
    Setup { leasing: Leasing::UpTo(units), ..setup }
}

fn play(fleet: &Fleet, admitted: usize, setup: &Setup, operations: &[Operation]) {
    let trace = Trace { setup: setup.clone(), operations: operations.to_vec() };
    let verdict = runtime().block_on(Player::play(fleet, &trace, false));
    assert!(verdict.is_kept(), "{verdict}");
    assert_eq!(verdict.admitted, admitted, "{verdict}");
}

fn on_redis(admitted: usize, setup: &Setup, operations: &[Operation]) {
    play(&Fleet::redis(&Server::start()), admitted, setup, operations);
}

fn on_both(admitted: [usize; 2], setup: &Setup, operations: &[Operation]) {
    play(&Fleet::embedded(), admitted[0], setup, operations);
    on_redis(admitted[1], setup, operations);
}

fn check(cost: u64) -> What {
    What::Check(Cost::Units(cost))
}

fn acquire(cost: u64) -> What {
    What::Acquire(Cost::Units(cost))
}

fn wait(cost: u64, ticks: u64) -> What {
    What::Wait { cost: Cost::Units(cost), ticks, acquires: false }
}

fn acquire_later(cost: u64, ticks: u64) -> What {
    What::Wait { cost: Cost::Units(cost), ticks, acquires: true }
}

fn settle(used: u64) -> What {
    Settle { which: 0, used }
}

macro_rules! tests {
    ($($(#[$doc:meta])* $name:ident: $test:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        fn $name() {
            $test;
        }
    )*};
}

tests! {
    /// A settlement gives nothing back that a call with a later moment would then use a second time.
    a_settlement_beside_a_reservation_admits_one_burst:
        on_both([2, 2], &setup(TokenBucket, (1_000, 1_000), SECOND, 1_000), &[
            (0, acquire(1_000)), (1, wait(1_000, 5_000)), (0, Advance(1)), (0, settle(0)), (0, Advance(999)),
            (2, check(1_000)),
        ]);

    a_settlement_beside_a_reservation_keeps_the_spacing:
        on_both([2, 2], &setup(LeakyBucket, (10, 1), SECOND, 50_000), &[
            (0, acquire(1)), (1, wait(1, 100)), (0, Advance(1)), (0, settle(0)), (0, Advance(1)), (2, check(1)),
        ]);

    /// Of a large burst, a settlement gives back what the moments after it leave: the call of 100 units starts after
    /// 100 ms at the latest.
    a_settlement_beside_a_small_reservation_gives_most_back:
        on_both([3, 3], &setup(TokenBucket, (1_000, 1_000), SECOND, 1_000), &[
            (0, acquire(1_000)), (1, wait(100, 5_000)), (0, settle(0)), (2, check(800)), (0, Advance(100)),
        ]);

    /// A reserved moment is after the term of leased units, and so are the units that it takes.
    a_lease_beside_a_reservation_admits_one_burst:
        on_redis(3, &leased(1, setup(TokenBucket, (6_000, 100), 60 * SECOND, 10_000)), &[
            (0, check(1)), (0, Advance(30)), (1, wait(100, 300)), (0, Advance(90)), (2, acquire(30)),
            (0, Advance(30)), (2, acquire(30)),
        ]);

    /// A refund gives back units of moments ahead, whose calls start all the same. Other calls fill the bucket again to
    /// the same level. A call that is dropped then gives nothing back that the later moments need: a burst, two
    /// refills, and a unit of the refund.
    a_refund_beside_a_reservation_comes_on_top:
        on_redis(4, &setup(LeakyBucket, (10, 1), SECOND, 50_000), &[
            (0, check(1)), (1, wait(1, 100)), (1, wait(1, 100)), (0, Refund(2)), (0, Advance(2)), (2, check(1)),
            (2, wait(1, 100)), (0, What::Drop(0)), (0, wait(1, 100)), (0, Advance(2)),
        ]);

    /// The limit of the reset does not lease. The process gives nothing back that it leased before.
    a_reset_discards_leased_units_of_the_count:
        on_redis(9, &Setup {
            processes: 1,
            ..leased(40, setup(LeakyBucket, (6_000, 230), 60 * SECOND, 5_000))
        }, &[
            (0, Burst(8)), (0, Reset), (0, wait(230, 1)), (0, Block(1)), (0, check(1)), (0, wait(1, 1)),
            (0, Advance(1)),
        ]);

    /// A process gives leased units of the lost count back for a call that they do not suffice for: the first one has
    /// 12 left, so two calls are admitted beside a burst, and none after them.
    leased_units_of_a_lost_count_come_on_top:
        on_redis(21, &leased(40, setup(TokenBucket, (6_000, 220), 60 * SECOND, 5_000)), &[
            (1, Burst(18)), (0, Evict), (1, acquire(165)), (1, check(55)), (0, acquire(12)), (0, acquire(1)),
        ]);

    /// The units of the smaller limit were charged while they fit. The larger limit holds for all of them together: a
    /// second costly call would be above it.
    leased_units_of_a_smaller_limit_count_in_a_larger_one:
        on_redis(10, &Setup {
            amounts: vec![(6_000, 6_000), (12_000, 12_000)],
            ..leased(40, setup(Sliding, (6_000, 6_000), 60 * SECOND, 5_000))
        }, &[
            (1, Rule(1)), (0, Burst(8)), (1, check(6_000)), (0, Advance(1)), (0, check(1)), (1, check(6_000)),
        ]);

    /// While no call polls the second one, its unit drains. The settlement gives back the units that drained beside it.
    a_settlement_beside_a_moment_that_nothing_polled_admits_one_burst:
        on_both([4, 4], &setup(TokenBucket, (2, 6), 20_000, 5_000), &[
            (0, check(6)), (0, Advance(2)), (0, acquire_later(6, 13)), (0, wait(1, 20)), (0, Pause(1)),
            (0, Advance(18)), (0, check(1)), (0, settle(0)), (0, What::Drop(0)), (0, check(5)), (0, check(1)),
        ]);

    /// After the settlement, the bucket is full again at the time that the reservation of the first process had ended
    /// at, although the reservation of another process came after it.
    a_settlement_between_the_reservations_of_two_processes_admits_one_burst:
        on_both([4, 3], &setup(TokenBucket, (10, 10), 100_000, 10_000), &[
            (0, acquire(10)), (0, wait(5, 50)), (1, wait(5, 50)), (0, settle(5)), (0, What::Drop(0)), (0, Advance(9)),
            (2, check(5)), (0, Advance(1)), (2, check(5)), (2, check(1)),
        ]);

    /// The unblock admits a call that nothing polls. The permit is settled behind the moment of another process.
    a_returned_unit_beside_a_settlement_and_a_reservation_admits_one_burst:
        on_both([3, 3], &setup(TokenBucket, (10, 10), 100_000, 10_000), &[
            (0, acquire(5)), (0, Block(20)), (0, wait(5, 50)), (0, Pause(0)), (0, Unblock), (1, wait(5, 50)),
            (0, settle(0)), (0, What::Drop(0)), (0, Advance(5)), (2, check(10)), (2, check(5)),
        ]);

    /// A process that has not observed the block keeps its moment. No other call is reserved for that moment.
    an_early_unblock_admits_no_two_calls_at_a_moment:
        on_redis(3, &setup(LeakyBucket, (10, 1), SECOND, 50_000), &[
            (0, check(1)), (0, wait(1, 1_200)), (1, wait(1, 1_200)), (0, Block(200)), (0, Unblock),
            (0, Advance(20)),
        ]);

    /// A call of a shadow is decided under its amounts, and a bucket drains at the rate of the call.
    a_shadow_with_a_higher_rate_drains_a_bucket_at_that_rate:
        on_both([7, 7], &Setup {
            amounts: vec![(10, 8), (20, 2), (5, 8)],
            ..setup(LeakyBucket, (10, 8), 100_000, 5_000)
        }, &[
            (0, check(8)), (0, Refund(3)), (0, Free { shadow: true }), (0, Change(1)), (0, Advance(4)),
            (0, check(1)), (0, Rule(2)), (0, Burst(6)),
        ]);

    /// The process grants the units before it observes that another one has blocked the key, and nothing polls the
    /// call.
    a_reserved_moment_soon_after_a_block_starts_a_call_that_is_polled_late:
        on_both([2, 3], &Setup {
            processes: 5,
            ..setup(LeakyBucket, (2, 2), SECOND, 250_000)
        }, &[
            (0, Burst(2)), (4, wait(1, 2)), (4, wait(2, 6)), (0, What::Drop(0)), (0, Block(6)), (0, Advance(3)),
            (0, Pause(0)), (0, Advance(2)), (0, Pause(0)),
        ]);

    /// Both calls wait while the key is blocked. The one with the lower rate then reserves first, and the higher rate
    /// drains what it took before it starts.
    a_moment_of_a_lower_rate_before_one_of_a_higher_rate_comes_on_top:
        on_redis(3, &Setup {
            amounts: vec![(6, 2), (12, 5)],
            processes: 2,
            skew: 1,
            ..setup(LeakyBucket, (6, 2), 30 * SECOND, 250_000)
        }, &[
            (0, check(2)), (0, Block(2)), (1, Rule(1)), (1, wait(5, 103)), (0, wait(2, 80)), (0, What::Step(2)),
            (0, Advance(44)),
        ]);

    /// The third call drives the line and ends. Then the first is dropped, so that the last call has its place, and
    /// nothing polls the second for a while.
    a_unit_of_a_dropped_call_is_back_once_its_line_is_empty:
        for algorithm in [Sliding, Fixed] {
            on_both([3, 3], &setup(algorithm, (3, 3), 40_000, 1_000), &[
                (0, check(3)), (0, wait(1, 60)), (0, wait(1, 60)), (0, wait(1, 60)), (0, Pause(0)), (0, Pause(1)),
                (0, Advance(41)), (0, What::Drop(0)), (0, Pause(0)),
            ]);
        };
}
