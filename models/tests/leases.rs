//! Leases in every order of their steps.

mod check;

use ratelimit_models::leases::{Fault, Leases};

use self::check::{holds, is_found};

/// A process that leases, beside one that does not.
const MODEL: Leases = Leases {
    calls: 2,
    ticks: 3,
    drops: 0,
    plain: 2,
    settled: 0,
    reserved: 0,
    lost: 0,
    repeated: 0,
    crashes: 0,
    steps: &[],
    fault: None,
};

const LIMIT: &str = "never more than the limit";
const ONCE: &str = "each unit is spent, held or given back once";

#[test]
fn replies_are_late_and_lost() {
    holds(Leases { lost: 1, ticks: 4, ..MODEL });
}

#[test]
fn calls_are_dropped() {
    holds(Leases { drops: 1, ..MODEL });
}

#[test]
fn requests_are_repeated() {
    holds(Leases { repeated: 1, ..MODEL });
}

#[test]
fn the_process_crashes() {
    holds(Leases { crashes: 1, ..MODEL });
}

#[test]
fn another_process_settles() {
    holds(Leases { settled: 2, plain: 1, ticks: 2, ..MODEL });
}

#[test]
fn another_process_reserves_a_moment() {
    holds(Leases { reserved: 1, ..MODEL });
}

#[test]
fn the_clock_of_the_server_steps() {
    holds(Leases { steps: &[-2_000_000, 2_000_000], ..MODEL });
}

#[test]
fn a_term_since_the_reply_is_found() {
    is_found(Leases { fault: Some(Fault::TermSinceReply), ticks: 4, plain: 1, ..MODEL }, LIMIT);
}

#[test]
fn forgotten_units_are_found() {
    is_found(Leases { drops: 1, fault: Some(Fault::DroppedUnitsAreForgotten), ..MODEL }, ONCE);
}

#[test]
fn units_that_go_back_twice_are_found() {
    is_found(Leases { drops: 1, fault: Some(Fault::DroppedUnitsGoBackTwice), ..MODEL }, ONCE);
}

#[test]
fn leased_units_that_drain_are_found() {
    is_found(Leases { fault: Some(Fault::LeasedUnitsDrain), ..MODEL }, LIMIT);
}

#[test]
fn drained_units_that_come_back_are_found() {
    let fault = Some(Fault::DrainedUnitsComeBack);
    is_found(Leases { calls: 1, ticks: 4, fault, ..MODEL }, LIMIT);
}

#[test]
fn a_moment_before_the_end_of_a_lease_is_found() {
    let fault = Some(Fault::ReservedBeforeEndOfLease);
    is_found(Leases { calls: 1, ticks: 5, plain: 1, reserved: 1, fault, ..MODEL }, LIMIT);
}

#[test]
fn a_settlement_of_the_reserve_is_found() {
    let fault = Some(Fault::SettlementGivesReserveBack);
    is_found(Leases { plain: 1, settled: 2, ticks: 2, fault, ..MODEL }, LIMIT);
}

#[test]
fn a_step_ahead_is_an_exception() {
    let fault = Some(Fault::StepAheadIsNoException);
    is_found(Leases { steps: &[2_000_000], fault, ..MODEL }, LIMIT);
}
