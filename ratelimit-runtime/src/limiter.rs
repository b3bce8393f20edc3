//! [`RateLimiter`]: limits, a store, a clock, as an ordinary value.

use std::fmt;
use std::sync::Arc;

use crate::algorithm::Op;
use crate::builder::Builder;
use crate::check::{Answer, Check};
use crate::decision::{Decision, Source};
use crate::key::Key;
use crate::limit::Limit;
use crate::rejection::Rejection;
use crate::store::Store;

/// Decides calls by limits. A cheap handle: clones share one store.
///
/// The attribute uses the process-wide one (see [`set_global`](crate::set_global)); it is as usable
/// by hand:
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::{Limit, RateLimiter};
///
/// const LOGIN: Limit = Limit::sliding("login", 2, Duration::from_secs(60));
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let limiter = RateLimiter::embedded();
/// assert_eq!(limiter.check(&LOGIN, "alice", 1).await.unwrap().remaining, 1);
/// assert_eq!(limiter.check(&LOGIN, "alice", 1).await.unwrap().remaining, 0);
///
/// let rejection = limiter.check(&LOGIN, "alice", 1).await.unwrap_err();
/// assert!(rejection.retry_after().unwrap() <= Duration::from_secs(60));
/// assert!(limiter.check(&LOGIN, "bob", 1).await.is_ok());
/// # }
/// ```
#[derive(Clone)]
pub struct RateLimiter {
    store: Arc<dyn Store>,
}

impl RateLimiter {
    /// A limiter on the embedded store, as `RateLimiter::builder().build()` makes it.
    #[must_use]
    pub fn embedded() -> Self {
        Builder::default().build_embedded()
    }

    /// Says where state lives and how it is reached.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn on(store: impl Store + 'static) -> Self {
        Self { store: Arc::new(store) }
    }

    /// Where this limiter decides.
    #[must_use]
    pub fn source(&self) -> Source {
        self.store.source()
    }

    /// Admits and charges the call, or refuses it and changes nothing.
    ///
    /// The returned future holds neither `limit` nor `key`. On the embedded store the decision is
    /// made by this call itself, and the future is ready. On Redis it is made once the future is
    /// polled; a future dropped after that may have charged the key.
    ///
    /// # Errors
    ///
    /// [`Rejection::Limited`] when the limit is reached, [`Rejection::CostExceedsCapacity`] when
    /// `cost` is more than can ever be admitted, [`Rejection::Unavailable`] when the store cannot
    /// decide.
    pub fn check(&self, limit: &Limit, key: impl Key, cost: u32) -> Check {
        self.ask(Op::Decide, limit, &key, cost)
    }

    /// Says what [`check`](Self::check) would, and changes nothing. A refusal is a decision that is
    /// not `allowed`.
    ///
    /// # Errors
    ///
    /// [`Rejection::CostExceedsCapacity`] and [`Rejection::Unavailable`], as for
    /// [`check`](Self::check).
    pub fn peek(&self, limit: &Limit, key: impl Key, cost: u32) -> Check {
        self.ask(Op::Peek, limit, &key, cost)
    }

    /// Gives back `cost` units that were charged, the newest first, and never more than are
    /// charged; for calls that turned out not to count.
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError) when the store does not answer; the units may have been
    /// given back.
    pub fn refund(&self, limit: &Limit, key: impl Key, cost: u32) -> Answer<Decision> {
        self.store.apply(Op::Refund, limit, &key, cost)
    }

    /// Forgets `key`: the next call finds it unused.
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError) when the store does not answer; the key may have been
    /// forgotten.
    pub fn reset(&self, limit: &Limit, key: impl Key) -> Answer<()> {
        self.store.reset(limit, &key)
    }

    fn ask(&self, op: Op, limit: &Limit, key: &dyn Key, cost: u32) -> Check {
        let (name, capacity) = (limit.name(), limit.capacity());
        if cost > capacity {
            return Check::refused(Rejection::CostExceedsCapacity { name, cost, capacity });
        }
        Check::asked(op, name, self.store.apply(op, limit, key, cost))
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("store", &self.store.source()).finish_non_exhaustive()
    }
}
