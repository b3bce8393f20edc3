//! The store that processes share: its request and reply, and the Redis store. `unshared.rs` takes its place in builds
//! without Redis.

#[cfg_attr(not(feature = "redis"), path = "unshared.rs")]
pub(crate) mod redis;
mod request;
mod rules;

use std::sync::Arc;

pub(crate) use self::redis::SharedStore;
pub(crate) use self::request::{
    Calls, Charge, CorrectedCharge, EqualCalls, Failure, MAX_CORRECTED, MAX_RESERVED, Reply,
    Stated, Statement,
};
pub(crate) use self::rules::{MAX_ANNOUNCEMENT, MAX_PROCESS_ID, ScanPosition, StoredRules};
use crate::algorithm::{Charged, Outcome};
use crate::reply::Answer;

/// Gives a charge of a call that is rolled back to its count, also if the caller does not wait for the answer.
pub(crate) type GiveBack<'a> = &'a (dyn Fn(Arc<Charge>, Charged) -> Answer<Outcome> + Sync);
