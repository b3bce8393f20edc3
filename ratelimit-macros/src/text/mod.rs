//! What people write, in the attribute and in configuration: durations, offsets, limits, and words with typing errors.
//! Both crates contain this folder.

#![allow(dead_code, reason = "a crate need not use all of it")]

pub(crate) mod closest;
pub(crate) mod duration;
pub(crate) mod limit;
pub(crate) mod offset;
