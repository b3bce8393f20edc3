//! Calls in flight in every order of their steps.

mod check;

use ratelimit_models::holders::{Fault, Holders};

use self::check::{holds, is_found};

/// Two processes on one slot, and one of each fault.
const MODEL: Holders = Holders {
    processes: 2,
    threshold: 1,
    calls: 2,
    local_calls: 0,
    ticks: 2,
    given_up: 1,
    repeated: 0,
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
}

#[test]
fn replies_are_late() {
    holds(Holders { processes: 1, calls: 3, given_up: 0, ..MODEL });
}

#[test]
fn statements_are_repeated() {
    holds(Holders { repeated: 1, given_up: 0, ..MODEL });
}

#[test]
fn counts_are_reset() {
    holds(Holders { resets: 1, ticks: 0, ..MODEL });
}

#[test]
fn counts_without_units_are_reset() {
    holds(Holders { threshold: 2, resets: 1, ticks: 0, given_up: 0, ..MODEL });
}

#[test]
fn the_server_loses_its_memory() {
    holds(Holders { flushes: 1, given_up: 0, ..MODEL });
}

#[test]
fn processes_crash() {
    holds(Holders { crashes: 1, given_up: 0, ..MODEL });
}

#[test]
fn fallbacks_take_slots() {
    holds(Holders { processes: 1, threshold: 2, calls: 1, local_calls: 1, given_up: 0, ..MODEL });
}

#[test]
fn fallbacks_take_slots_beside_requests() {
    holds(Holders { processes: 1, calls: 2, local_calls: 1, given_up: 0, ..MODEL });
}

#[test]
fn counts_are_reset_while_fallbacks_take_slots() {
    let bounds = Holders { processes: 1, threshold: 2, calls: 1, local_calls: 1, ..MODEL };
    holds(Holders { ticks: 0, given_up: 0, resets: 1, ..bounds });
}

#[test]
fn a_hold_since_the_reply_is_found() {
    is_found(Holders { fault: Some(Fault::HoldSinceReply), ..MODEL }, LIMIT);
}

#[test]
fn an_empty_record_that_is_forgotten_is_found() {
    let fault = Some(Fault::EmptyRecordIsForgotten);
    is_found(Holders { calls: 3, ticks: 0, given_up: 0, repeated: 1, fault, ..MODEL }, LIMIT);
}

#[test]
fn a_late_statement_that_counts_is_found() {
    is_found(Holders { fault: Some(Fault::LateStatementCounts), ..MODEL }, LIMIT);
}

#[test]
fn a_request_that_was_given_up_and_takes_is_found() {
    is_found(Holders { fault: Some(Fault::GivenUpRequestTakes), ticks: 0, ..MODEL }, COUNT);
}
