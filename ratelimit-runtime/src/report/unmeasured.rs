//! The twin of `metrics.rs` in builds without feature `metrics`: it records nothing and reads no clock.

use super::WaitEnd;
use crate::limit::{LimitLabel, Name};
use crate::reply::{Decision, Rejection};

pub(crate) struct Started;

impl Started {
    #[inline]
    pub(crate) fn now() -> Self {
        Self
    }
}

pub(crate) fn describe() {}

pub(super) fn record(_: &Started, _: &LimitLabel, _: &Result<Decision, Rejection>, _: bool) {}

pub(crate) fn wait_started(_: &Name) -> Started {
    Started
}

pub(crate) fn wait_ended(_: &Name, _: &Started, _: WaitEnd) {}

pub(crate) fn settled(_: &Name, _more: u64) {}

pub(crate) fn settlement_lost(_: &Name) {}

pub(crate) fn in_flight_changed(_: &Name, _: i64) {}

pub(super) fn in_flight_lost(_: &Name, _: u64) {}

pub(super) fn notified(_: &Name) {}

pub(crate) fn keys_changed(_by: isize) {}

#[cfg(feature = "redis")]
pub(super) fn breaker(_node: &str, _open: bool) {}

#[cfg(feature = "rules")]
pub(super) fn rules_lost(_is_lost: bool) {}
