//! Settling in every order of their steps.

mod check;

use ratelimit_models::corrections::{Fault, Settling};

use self::check::{LONG, holds, is_found};

/// A process that settles its charges of a window, beside one that does not settle.
const MODEL: Settling = Settling {
    is_bucket: false,
    calls: 2,
    plain: 2,
    reserved: 0,
    cancelled: 0,
    ticks: 3,
    blocks: 0,
    resets: 0,
    own_resets: 0,
    refused: 0,
    lost: 0,
    fault: None,
};

const BUCKET: Settling = Settling { is_bucket: true, ..MODEL };

const CANCELLED: Settling =
    Settling { calls: 1, reserved: 2, cancelled: 2, plain: 1, ticks: 2, ..BUCKET };

const LIMIT: &str = "never more than the limit";
const EXECUTED: &str = "each settlement is executed";

#[test]
fn replies_are_lost() {
    holds(Settling { lost: 1, ..MODEL });
    holds(Settling { lost: 1, ..BUCKET });
}

#[test]
fn requests_are_refused() {
    holds(Settling { refused: 1, ..MODEL });
    holds(Settling { refused: 1, ..BUCKET });
}

#[test]
fn counts_are_reset() {
    holds(Settling { resets: 1, plain: 1, ..MODEL });
    holds(Settling { resets: 1, plain: 1, ..BUCKET });
}

#[test]
fn the_process_resets_its_counts() {
    for model in [MODEL, BUCKET] {
        holds(Settling { own_resets: 1, plain: LONG.into(), refused: 1, ..model });
    }
}

#[test]
fn keys_are_blocked() {
    holds(Settling { blocks: 1, plain: 1, ..MODEL });
    holds(Settling { blocks: 1, plain: 1, ..BUCKET });
}

#[test]
fn another_process_reserves_a_moment() {
    holds(Settling { reserved: 1, plain: 1, ..BUCKET });
}

/// Two processes, or a process whose call is not polled.
#[test]
fn other_processes_cancel_reservations() {
    holds(CANCELLED);
    if LONG {
        holds(Settling { calls: 2, ..CANCELLED });
    }
}

#[test]
fn a_lost_settlement_that_is_sent_again_is_found() {
    is_found(Settling { lost: 1, fault: Some(Fault::LostIsSentAgain), ..MODEL }, LIMIT);
}

#[test]
fn a_refused_settlement_that_is_forgotten_is_found() {
    let fault = Some(Fault::RefusedIsForgotten);
    is_found(Settling { refused: 1, fault, ..MODEL }, EXECUTED);
}

#[test]
fn a_reset_that_passes_settlements_is_found() {
    let fault = Some(Fault::ResetPasses);
    is_found(Settling { own_resets: 1, fault, ..MODEL }, "corrections keep their order");
}

#[test]
fn a_birth_that_is_ignored_is_found() {
    is_found(Settling { resets: 1, fault: Some(Fault::BirthIsIgnored), ..MODEL }, LIMIT);
}

#[test]
fn drained_units_that_come_back_are_found() {
    is_found(Settling { fault: Some(Fault::DrainedUnitsComeBack), ..BUCKET }, LIMIT);
}

#[test]
fn reserved_units_that_come_back_are_found() {
    let fault = Some(Fault::ReservedUnitsComeBack);
    is_found(Settling { plain: 1, reserved: 1, fault, ..BUCKET }, LIMIT);
}

#[test]
fn an_empty_count_that_opens_is_found() {
    let fault = Some(Fault::EmptyCountOpens);
    is_found(Settling { blocks: 1, fault, ..MODEL }, "a blocked key admits nothing");
}

#[test]
fn an_earlier_reservation_that_is_taken_for_the_last_is_found() {
    is_found(Settling { fault: Some(Fault::EarlierIsLast), ..CANCELLED }, LIMIT);
}
