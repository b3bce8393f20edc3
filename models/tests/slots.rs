//! Calls in flight in every order of their steps.

mod check;

use ratelimit_models::slots::{Fault, Slots};

use self::check::{LONG, holds, is_found};

/// Two processes on one slot, and one of each fault.
const MODEL: Slots = Slots {
    processes: 2,
    threshold: 1,
    calls: 2,
    local_calls: 0,
    ticks: 2,
    given_up: 1,
    resets: 0,
    flushes: 0,
    crashes: 0,
    fault: None,
};

const LIMIT: &str = "never more than the limit";
const COUNT: &str = "the server counts what runs";

#[test]
fn replies_are_late_and_lost() {
    holds(MODEL);
    holds(Slots { threshold: 2, ticks: 1, ..MODEL });
}

#[test]
fn several_requests_are_given_up() {
    holds(Slots { processes: 1, given_up: 2, calls: 3, ..MODEL });
}

#[test]
fn counts_are_reset() {
    holds(Slots { resets: 1, ticks: 0, ..MODEL });
    holds(Slots { resets: 2, calls: 1, ticks: 0, given_up: 0, ..MODEL });
    holds(Slots { resets: 2, processes: 1, ticks: 0, given_up: 0, ..MODEL });
    if LONG {
        holds(Slots { resets: 2, ticks: 0, given_up: 0, ..MODEL });
    }
}

#[test]
fn counts_without_units_are_reset() {
    holds(Slots { threshold: 2, resets: 1, ticks: 0, given_up: 0, ..MODEL });
}

#[test]
fn the_server_loses_its_memory() {
    holds(Slots { flushes: 1, given_up: 0, ..MODEL });
    holds(Slots { flushes: 1, resets: 1, ticks: 0, given_up: 0, ..MODEL });
}

#[test]
fn processes_crash() {
    holds(Slots { crashes: 1, given_up: 0, ..MODEL });
}

#[test]
fn fallbacks_take_slots() {
    holds(Slots { threshold: 2, calls: 1, local_calls: 1, given_up: 0, ..MODEL });
}

#[test]
fn fallbacks_take_slots_beside_requests() {
    const BOUNDS: Slots = Slots { processes: 1, calls: 1, local_calls: 1, ..MODEL };
    holds(BOUNDS);
    holds(Slots { local_calls: 2, ticks: 1, ..BOUNDS });
    holds(Slots { calls: 2, ticks: 1, ..BOUNDS });
    if LONG {
        holds(Slots { calls: 2, local_calls: 2, ..BOUNDS });
    }
}

#[test]
fn counts_are_reset_while_fallbacks_take_slots() {
    let bounds = Slots { processes: 1, threshold: 2, calls: 1, local_calls: 1, ..MODEL };
    holds(Slots { ticks: 0, given_up: 0, resets: 1, ..bounds });
}

#[test]
fn a_hold_since_the_reply_is_found() {
    is_found(Slots { fault: Some(Fault::HoldSinceReply), ..MODEL }, LIMIT);
}

#[test]
fn units_that_are_not_lost_are_found() {
    is_found(Slots { fault: Some(Fault::UnitsAreNotLost), ..MODEL }, LIMIT);
}

#[test]
fn a_request_that_is_given_up_and_forgotten_is_found() {
    is_found(Slots { fault: Some(Fault::GivenUpIsForgotten), ..MODEL }, COUNT);
}

#[test]
fn an_empty_record_that_is_forgotten_is_found() {
    is_found(Slots { fault: Some(Fault::EmptyRecordIsForgotten), ..MODEL }, COUNT);
}

#[test]
fn a_late_request_that_counts_is_found() {
    is_found(Slots { fault: Some(Fault::LateRequestCounts), ..MODEL }, COUNT);
}
