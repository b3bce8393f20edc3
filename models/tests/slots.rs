//! Calls in flight in every order of their steps.

#[macro_use]
mod check;

use ratelimit_models::bounds::{Bound, Bound::*, Counts};
use ratelimit_models::slots::{Fault, Fault::*, Slots};

/// Returns a model of two processes on one slot that give up a request, with other bounds in place of some.
fn slots(most: &[(Bound, u8)]) -> Slots {
    let most = Counts::of(&[&[(Calls, 2), (Ticks, 2), (Lost, 1)], most]);
    Slots { processes: 2, threshold: 1, most, fault: None }
}

/// Returns such a model on two slots.
fn on_two(most: &[(Bound, u8)]) -> Slots {
    Slots { threshold: 2, ..slots(most) }
}

/// Returns such a model of one process.
fn alone(most: &[(Bound, u8)]) -> Slots {
    Slots { processes: 1, ..slots(most) }
}

/// Asserts that a fault of two processes on one slot is found.
fn finds(fault: Fault, property: &'static str) {
    check::search(Slots { fault: Some(fault), ..slots(&[]) }, Some(property));
}

/// Whether the searches that take minutes run as well.
const LONG: bool = cfg!(feature = "long");
const LIMIT: &str = "never more than the limit";
const COUNT: &str = "the server counts what runs";

tests! {
    replies_are_late_and_lost: holds!(slots(&[])), holds!(on_two(&[(Ticks, 1)]));
    several_requests_are_given_up: holds!(alone(&[(Lost, 2), (Calls, 3)]));
    counts_are_reset:
        holds!(slots(&[(Resets, 1), (Ticks, 0)])),
        holds!(slots(&[(Resets, 2), (Calls, 1), (Ticks, 0), (Lost, 0)])),
        holds!(alone(&[(Resets, 2), (Ticks, 0), (Lost, 0)])),
        if LONG { holds!(slots(&[(Resets, 2), (Ticks, 0), (Lost, 0)])) };
    counts_without_units_are_reset: holds!(on_two(&[(Resets, 1), (Ticks, 0), (Lost, 0)]));
    the_server_loses_its_memory:
        holds!(slots(&[(Flushes, 1), (Lost, 0)])),
        holds!(slots(&[(Flushes, 1), (Resets, 1), (Ticks, 0), (Lost, 0)]));
    processes_crash: holds!(slots(&[(Crashes, 1), (Lost, 0)]));
    fallbacks_take_slots: holds!(on_two(&[(Calls, 1), (LocalCalls, 1), (Lost, 0)]));
    fallbacks_take_slots_beside_requests:
        holds!(alone(&[(Calls, 1), (LocalCalls, 1)])),
        holds!(alone(&[(Calls, 1), (LocalCalls, 2), (Ticks, 1)])),
        holds!(alone(&[(LocalCalls, 1), (Ticks, 1)])),
        if LONG { holds!(alone(&[(LocalCalls, 2)])) };
    counts_are_reset_while_fallbacks_take_slots: holds!(Slots {
        threshold: 2,
        ..alone(&[(Calls, 1), (LocalCalls, 1), (Ticks, 0), (Lost, 0), (Resets, 1)])
    });
    a_hold_since_the_reply_is_found: finds(HoldSinceReply, LIMIT);
    units_that_are_not_lost_are_found: finds(UnitsAreNotLost, LIMIT);
    a_request_that_is_given_up_and_forgotten_is_found: finds(GivenUpIsForgotten, COUNT);
    an_empty_record_that_is_forgotten_is_found: finds(EmptyRecordIsForgotten, COUNT);
    a_late_request_that_counts_is_found: finds(LateRequestCounts, COUNT);
}
