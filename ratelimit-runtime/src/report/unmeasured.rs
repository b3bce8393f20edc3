//! Takes the place of `metrics.rs` in builds without that feature, where nothing is recorded and no
//! clock is read.

use crate::question::Finding;

pub(crate) struct Began;

impl Began {
    #[inline]
    pub(crate) fn now() -> Self {
        Self
    }
}

pub(crate) fn describe() {}

pub(super) fn ended(_: &Began, _: &Finding, _shadow: bool) {}

pub(crate) fn keys_changed(_by: isize) {}

#[cfg(feature = "redis")]
pub(super) fn breaker(_node: &str, _open: bool) {}
