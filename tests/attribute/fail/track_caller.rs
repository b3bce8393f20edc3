use std::fmt::Debug;
use std::panic::Location;

use ratelimit_runtime::rate_limit;

/// The caller is known without what looks at the return value.
#[rate_limit(period = 30, threshold = 2, scope = "process")]
#[track_caller]
fn kept() -> Option<u32> {
    Some(Location::caller().line())
}

#[track_caller]
#[rate_limit(period = 30, threshold = 2, scope = "process", count_if = Option::is_some)]
fn counted() -> Option<u32> {
    Some(Location::caller().line())
}

#[rate_limit(
    limit(period = 30, threshold = 2),
    limit(period = 60, threshold = 3, block = |_| None),
    scope = "process"
)]
#[cfg_attr(all(), track_caller)]
fn blocked() -> Option<u32> {
    Some(Location::caller().line())
}

#[rate_limit(period = 30, threshold = 2, scope = "process")]
#[track_caller]
fn hidden() -> impl Debug {
    Location::caller().line()
}

#[rate_limit(period = 30, threshold = 2, scope = "process", on_limited = |_| 0)]
#[track_caller]
fn shown() -> impl Debug {
    Location::caller().line()
}

fn main() {}
