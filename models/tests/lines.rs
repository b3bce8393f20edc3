//! Lines of waiting calls in every order of their steps.

#[macro_use]
mod check;

use ratelimit_models::bounds::{Bound, Bound::*, Counts};
use ratelimit_models::lines::{Fault, Fault::*, Lines};

/// Returns a model of a bucket, with other bounds in place of some.
fn bucket(most: &[(Bound, u8)]) -> Lines {
    let most = Counts::of(&[&[(Calls, 2), (Ticks, 2)], most]);
    Lines { is_bucket: true, most, fault: None }
}

/// Returns such a model of a window.
fn window(most: &[(Bound, u8)]) -> Lines {
    Lines { is_bucket: false, ..bucket(most) }
}

/// Asserts that a fault of a model is found.
fn finds(fault: Fault, property: &'static str, model: Lines) {
    check::search(Lines { fault: Some(fault), ..model }, Some(property));
}

const ORDER: &str = "first come, first served";
const LOSS: &str = "no unit is lost, and none is used twice";
const FORGOTTEN: &str = "no waiter is forgotten";

tests! {
    calls_of_a_bucket_are_dropped: holds!(bucket(&[(Drops, 1)]));
    calls_of_a_window_are_dropped: holds!(window(&[(Drops, 1)]));
    replies_are_lost: holds!(bucket(&[(Lost, 1)]));
    another_process_takes_units: holds!(bucket(&[(Plain, 1)]));
    counts_are_reset: holds!(bucket(&[(Resets, 1)]));
    a_grant_that_is_not_given_back_is_found:
        finds(GrantIsNotGivenBack, LOSS, window(&[(Drops, 1)]));
    a_grant_that_goes_back_twice_is_found:
        finds(GrantIsGivenBackTwice, LOSS, window(&[(Drops, 1)]));
    a_grant_that_is_used_twice_is_found: finds(GrantIsUsedTwice, LOSS, window(&[(Drops, 1)]));
    #[cfg(feature = "long")]
    a_grant_that_is_used_twice_admits_too_much: finds(
        GrantIsUsedTwice,
        "never more than the limit",
        window(&[(Calls, 3), (Drops, 1), (Plain, 1)])
    );
    a_first_call_that_queues_again_is_found: finds(FirstCallQueuesAgain, ORDER, bucket(&[]));
    a_failure_that_is_not_recorded_is_found:
        finds(FailureIsNotRecorded, LOSS, bucket(&[(Lost, 1)]));
    calls_that_are_not_woken_are_found: finds(CallsAreNotWoken, FORGOTTEN, bucket(&[]));
}
