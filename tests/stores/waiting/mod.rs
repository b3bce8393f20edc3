//! Calls that wait for units: their order, the end of their wait, and what happens to the units of dropped calls.

mod bound;
mod conservation;
mod drops;
mod ends;
mod give_backs;
mod lines;
mod order;
mod rejections;
mod reservations;
mod streams;

pub(crate) use lines::{DEADLINE, MINUTE, SECOND, bucket, limiters, rest};
