//! Leases in every order of their steps.

#[macro_use]
mod check;

use ratelimit_models::bounds::{Bound, Bound::*, Counts};
use ratelimit_models::leases::{Fault, Fault::*, Leases};

/// Returns a model of a process that leases, beside one that does not, with other bounds in place of some.
fn leases(most: &[(Bound, u8)]) -> Leases {
    let most = Counts::of(&[&[(Calls, 2), (Ticks, 3), (Plain, 2)], most]);
    Leases { most, steps: &[], fault: None }
}

/// Asserts that a fault of such a model is found.
fn finds(fault: Fault, property: &'static str, most: &[(Bound, u8)]) {
    check::search(Leases { fault: Some(fault), ..leases(most) }, Some(property));
}

const LIMIT: &str = "never more than the limit";
const ONCE: &str = "each unit is spent, held or given back once";

tests! {
    replies_are_late_and_lost: holds!(leases(&[(Lost, 1), (Ticks, 4)]));
    calls_are_dropped: holds!(leases(&[(Drops, 1)]));
    requests_are_repeated: holds!(leases(&[(Repeated, 1)]));
    the_process_crashes: holds!(leases(&[(Crashes, 1)]));
    another_process_settles: holds!(leases(&[(Settled, 2), (Plain, 1), (Ticks, 2)]));
    another_process_reserves_a_moment: holds!(leases(&[(Reserved, 1)]));
    the_clock_of_the_server_steps:
        holds!(Leases { steps: &[-2_000_000, 2_000_000], ..leases(&[]) });
    a_term_since_the_reply_is_found: finds(TermSinceReply, LIMIT, &[(Ticks, 4), (Plain, 1)]);
    forgotten_units_are_found: finds(DroppedUnitsAreForgotten, ONCE, &[(Drops, 1)]);
    units_that_go_back_twice_are_found: finds(DroppedUnitsGoBackTwice, ONCE, &[(Drops, 1)]);
    leased_units_that_drain_are_found: finds(LeasedUnitsDrain, LIMIT, &[]);
    drained_units_that_come_back_are_found:
        finds(DrainedUnitsComeBack, LIMIT, &[(Calls, 1), (Ticks, 4)]);
    a_moment_before_the_end_of_a_lease_is_found: finds(
        ReservedBeforeEndOfLease,
        LIMIT,
        &[(Calls, 1), (Ticks, 5), (Plain, 1), (Reserved, 1)]
    );
    a_settlement_of_the_reserve_is_found:
        finds(SettlementGivesReserveBack, LIMIT, &[(Plain, 1), (Settled, 2), (Ticks, 2)]);
    a_step_ahead_is_an_exception: check::search(
        Leases { steps: &[2_000_000], fault: Some(StepAheadIsNoException), ..leases(&[]) },
        Some(LIMIT)
    );
}
