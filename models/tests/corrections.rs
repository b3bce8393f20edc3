//! Settling in every order of their steps.

#[macro_use]
mod check;

use ratelimit_models::bounds::{Bound, Bound::*, Counts};
use ratelimit_models::corrections::{Fault, Fault::*, Settling};

/// Returns a model of a process that settles its charges of a window, beside one that does not settle, with other
/// bounds in place of some.
fn window(most: &[(Bound, u8)]) -> Settling {
    let most = Counts::of(&[&[(Calls, 2), (Plain, 2), (Ticks, 3)], most]);
    Settling { is_bucket: false, most, fault: None }
}

/// Returns such a model of a bucket.
fn bucket(most: &[(Bound, u8)]) -> Settling {
    Settling { is_bucket: true, ..window(most) }
}

/// Asserts that both hold.
fn both_hold(most: &[(Bound, u8)]) {
    holds!(window(most));
    holds!(bucket(most));
}

/// Asserts that a fault of a model is found.
fn finds(fault: Fault, property: &'static str, model: Settling) {
    check::search(Settling { fault: Some(fault), ..model }, Some(property));
}

const CANCELLED: &[(Bound, u8)] =
    &[(Calls, 1), (Reserved, 2), (Cancelled, 2), (Plain, 1), (Ticks, 2)];

/// Whether the searches that take minutes run as well.
const LONG: bool = cfg!(feature = "long");
const LIMIT: &str = "never more than the limit";
const ORDER: &str = "corrections keep their order";
const BLOCKED: &str = "a blocked key admits nothing";

tests! {
    replies_are_lost: both_hold(&[(Lost, 1)]);
    requests_are_refused: both_hold(&[(Refused, 1)]);
    counts_are_reset: both_hold(&[(Resets, 1), (Plain, 1)]);
    the_process_resets_its_counts:
        both_hold(&[(OwnResets, 1), (Plain, LONG.into()), (Refused, 1)]);
    keys_are_blocked: both_hold(&[(Blocks, 1), (Plain, 1)]);
    another_process_reserves_a_moment: holds!(bucket(&[(Reserved, 1), (Plain, 1)]));
    /// Two processes, or a process whose call is not polled.
    other_processes_cancel_reservations:
        holds!(bucket(CANCELLED)),
        if LONG { holds!(bucket(&[CANCELLED, &[(Calls, 2)]].concat())) };
    a_lost_settlement_that_is_sent_again_is_found:
        finds(LostIsSentAgain, LIMIT, window(&[(Lost, 1)]));
    a_refused_settlement_that_is_forgotten_is_found:
        finds(RefusedIsForgotten, "each settlement is executed", window(&[(Refused, 1)]));
    a_reset_that_passes_settlements_is_found: finds(ResetPasses, ORDER, window(&[(OwnResets, 1)]));
    a_birth_that_is_ignored_is_found: finds(BirthIsIgnored, LIMIT, window(&[(Resets, 1)]));
    drained_units_that_come_back_are_found: finds(DrainedUnitsComeBack, LIMIT, bucket(&[]));
    reserved_units_that_come_back_are_found:
        finds(ReservedUnitsComeBack, LIMIT, bucket(&[(Plain, 1), (Reserved, 1)]));
    an_empty_count_that_opens_is_found: finds(EmptyCountOpens, BLOCKED, window(&[(Blocks, 1)]));
    an_earlier_reservation_that_is_taken_for_the_last_is_found:
        finds(EarlierIsLast, LIMIT, bucket(CANCELLED));
}
