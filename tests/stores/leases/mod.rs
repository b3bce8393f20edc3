//! Units that a process charges in advance and spends without a round trip.

mod amounts;
mod auto;
mod buckets;
mod faults;
mod model;
mod spending;
mod terms;

pub(crate) use spending::{LEASED, MINUTE, TERM, limiter, remaining, spend, wait_until};
