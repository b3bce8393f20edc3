//! Lines of waiting calls in every order of their steps.

#[macro_use]
mod check;

use ratelimit_models::bounds::{Bound, Bound::*, Counts};
use ratelimit_models::lines::{Fault, Fault::*, Lines};

use self::check::{holds, is_found};

/// Returns a model of a bucket, with other bounds in place of some.
fn bucket(most: &[(Bound, u8)]) -> Lines {
    let most = Counts::of(&[(Calls, 2), (Ticks, 2)]).with(most);
    Lines { is_bucket: true, most, fault: None }
}

/// Returns such a model of a window.
fn window(most: &[(Bound, u8)]) -> Lines {
    Lines { is_bucket: false, ..bucket(most) }
}

fn with(fault: Fault, model: Lines) -> Lines {
    Lines { fault: Some(fault), ..model }
}

const ORDER: &str = "first come, first served";
const LOSS: &str = "no unit is lost, and none is used twice";
const FORGOTTEN: &str = "no waiter is forgotten";

tests! {
    calls_of_a_bucket_are_dropped: holds(bucket(&[(Drops, 1)]));
    calls_of_a_window_are_dropped: holds(window(&[(Drops, 1)]));
    replies_are_lost: holds(bucket(&[(Lost, 1)]));
    another_process_takes_units: holds(bucket(&[(Plain, 1)]));
    counts_are_reset: holds(bucket(&[(Resets, 1)]));
    a_grant_that_is_not_given_back_is_found:
        is_found(with(GrantIsNotGivenBack, window(&[(Drops, 1)])), LOSS);
    a_grant_that_goes_back_twice_is_found:
        is_found(with(GrantIsGivenBackTwice, window(&[(Drops, 1)])), LOSS);
    a_grant_that_is_used_twice_is_found:
        is_found(with(GrantIsUsedTwice, window(&[(Drops, 1)])), LOSS);
    #[cfg(feature = "long")]
    a_grant_that_is_used_twice_admits_too_much:
        is_found(
            with(GrantIsUsedTwice, window(&[(Calls, 3), (Drops, 1), (Plain, 1)])),
            "never more than the limit"
        );
    a_first_call_that_queues_again_is_found:
        is_found(with(FirstCallQueuesAgain, bucket(&[])), ORDER);
    a_failure_that_is_not_recorded_is_found:
        is_found(with(FailureIsNotRecorded, bucket(&[(Lost, 1)])), LOSS);
    calls_that_are_not_woken_are_found: is_found(with(CallsAreNotWoken, bucket(&[])), FORGOTTEN);
}
