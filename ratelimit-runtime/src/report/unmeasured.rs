//! The twin of `metrics.rs` in builds without feature `metrics`: it records nothing and reads no clock.

use crate::limit::{Limit, Name};
use crate::reply::{Decision, Rejection};

pub(crate) struct Started;

impl Started {
    #[inline]
    pub(crate) fn now() -> Self {
        Self
    }
}

pub(crate) fn describe() {}

pub(super) fn record(_: &Started, _: &Limit, _: &Result<Decision, Rejection>, _: bool) {}

pub(crate) fn wait_started(_: Name) -> Started {
    Started
}

pub(crate) fn wait_ended(_: Name, _: &Started, _: &'static str) {}

pub(crate) fn count(_: &'static str, _: Name, _: u64) {}

pub(crate) fn change(_: &'static str, _: Name, _: f64) {}

pub(crate) fn keys_changed(_by: isize) {}

pub(super) fn breaker(_node: &str, _open: bool) {}

pub(super) fn rules_lost(_is_lost: bool) {}
