//! The circuit breaker and the fallback in every order of their steps.

mod check;

use ratelimit_models::breaker::{Breakers, Fault};

use self::check::{holds, is_found};

const MODEL: Breakers =
    Breakers { calls: [3, 2], changes: 2, failed_probes: 1, dropped_jobs: 0, fault: None };

const PROBED: &str = "an open breaker is probed";
const CLOSES: &str = "every breaker closes once the server replies";

#[test]
fn the_server_stops_and_starts_to_reply() {
    holds(MODEL);
}

#[test]
fn the_server_stops_twice() {
    holds(Breakers { calls: [4, 0], changes: 3, ..MODEL });
}

#[test]
fn the_background_thread_cannot_start() {
    holds(Breakers { calls: [3, 1], dropped_jobs: 1, ..MODEL });
}

#[test]
fn an_opening_without_probes_is_found() {
    let fault = Some(Fault::OpeningStartsNoProbes);
    is_found(Breakers { fault, ..MODEL }, PROBED);
}

#[test]
fn a_job_that_does_not_look_again_is_found() {
    let fault = Some(Fault::ProberDoesNotLookAgain);
    is_found(Breakers { changes: 3, fault, ..MODEL }, PROBED);
}

#[test]
fn probes_for_one_runtime_are_found() {
    let fault = Some(Fault::ProbesCloseOneBreaker);
    is_found(Breakers { fault, ..MODEL }, CLOSES);
}

#[test]
fn probes_that_are_not_started_again_are_found() {
    let fault = Some(Fault::CallsStartNoProbes);
    is_found(Breakers { dropped_jobs: 1, fault, ..MODEL }, CLOSES);
}

#[test]
fn a_half_open_breaker_that_waits_is_found() {
    let fault = Some(Fault::HalfOpenIsClosed);
    let model = Breakers { calls: [3, 0], changes: 3, fault, ..MODEL };
    is_found(model, "few calls wait for a server that does not reply");
}

#[test]
fn a_fallback_without_a_share_is_found() {
    let fault = Some(Fault::FallbackHasNoShare);
    is_found(Breakers { fault, ..MODEL }, "a fallback admits no more than its share");
}
