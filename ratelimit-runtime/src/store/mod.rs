//! Where state lives. Both stores answer the same questions through one trait, which is sealed by
//! not being public.

pub(crate) mod embedded;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::time::Duration;

use crate::algorithm::{BucketOp, Op};
use crate::check::Answer;
use crate::decision::{Answered, Source, Verdict};
use crate::key::Key;
use crate::limit::{BucketLimit, Limit};
use crate::part::Charge;

/// Called when a store has given back what it had charged for a call that was then refused.
pub(crate) type OnReturn = Box<dyn FnOnce() + Send + Sync>;

/// A store of counts.
pub(crate) trait Store: Send + Sync {
    /// Answers `op` about `key`, atomically. `cost` is within the capacity of `limit`, but for a
    /// refund, which may be of any size.
    fn apply(&self, op: Op, limit: &Limit, key: &dyn Key, cost: u32) -> Answer<Answered>;

    /// Books a moment of a bucket for `key`, or gives one back.
    fn apply_ahead(
        &self,
        op: BucketOp,
        limit: &BucketLimit,
        key: &dyn Key,
        cost: u32,
    ) -> Answer<Answered>;

    /// Answers all `parts` together, atomically: all admit the call and are charged, or none is. No
    /// two of them have one count.
    /// Where the store has to charge one after the other, what it gives back is given back in the
    /// background; then it calls what `on_return` makes.
    fn apply_all(&self, parts: &[Charge<'_>], on_return: &dyn Fn() -> OnReturn) -> Answer<Verdict>;

    /// Forgets `key`.
    fn reset(&self, limit: &Limit, key: &dyn Key) -> Answer<()>;

    /// Whether the store would decide now.
    fn ping(&self) -> Answer<()>;

    fn source(&self) -> Source;

    /// How long an answer may take.
    fn deadline(&self) -> Duration {
        Duration::MAX
    }
}
