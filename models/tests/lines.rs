//! Lines of waiting calls in every order of their steps.

mod check;

use ratelimit_models::lines::{Fault, Lines};

use self::check::{LONG, holds, is_found};

const MODEL: Lines = Lines {
    is_bucket: true,
    calls: 2,
    ticks: 2,
    drops: 0,
    lost: 0,
    foreign: 0,
    resets: 0,
    fault: None,
};

const OVER: &str = "never more than the limit";
const ORDER: &str = "first come, first served";
const LOSS: &str = "no unit is lost, and none is used twice";

#[test]
fn calls_of_a_bucket_are_dropped() {
    holds(Lines { drops: 1, ..MODEL });
}

#[test]
fn calls_of_a_window_are_dropped() {
    holds(Lines { is_bucket: false, drops: 1, ..MODEL });
}

#[test]
fn replies_are_lost() {
    holds(Lines { lost: 1, ..MODEL });
}

#[test]
fn another_process_takes_units() {
    holds(Lines { foreign: 1, ..MODEL });
}

#[test]
fn counts_are_reset() {
    holds(Lines { resets: 1, ..MODEL });
}

#[test]
fn a_grant_that_is_not_given_back_is_found() {
    let fault = Some(Fault::GrantIsNotGivenBack);
    is_found(Lines { is_bucket: false, drops: 1, fault, ..MODEL }, LOSS);
}

#[test]
fn a_grant_that_goes_back_twice_is_found() {
    let fault = Some(Fault::GrantIsGivenBackTwice);
    is_found(Lines { is_bucket: false, drops: 1, fault, ..MODEL }, LOSS);
}

#[test]
fn a_grant_that_is_used_twice_is_found() {
    let fault = Some(Fault::GrantIsUsedTwice);
    is_found(Lines { is_bucket: false, drops: 1, fault, ..MODEL }, LOSS);
    if LONG {
        is_found(Lines { is_bucket: false, calls: 3, drops: 1, foreign: 1, fault, ..MODEL }, OVER);
    }
}

#[test]
fn a_first_call_that_queues_again_is_found() {
    is_found(Lines { fault: Some(Fault::FirstCallQueuesAgain), ..MODEL }, ORDER);
}

#[test]
fn a_failure_that_is_not_recorded_is_found() {
    let fault = Some(Fault::FailureIsNotRecorded);
    is_found(Lines { lost: 1, fault, ..MODEL }, LOSS);
}

#[test]
fn calls_that_are_not_woken_are_found() {
    is_found(Lines { fault: Some(Fault::CallsAreNotWoken), ..MODEL }, "no waiter is forgotten");
}
