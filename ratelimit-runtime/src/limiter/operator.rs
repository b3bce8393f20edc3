//! What operators see of a limiter, and of its fleet.

use super::RateLimiter;
use crate::key::Key;
use crate::limit::Limit;
use crate::reply::{Answer, Usage};
use crate::report::RejectedKey;

/// What operators see and change while services run: [`RateLimiter::operator`]. With the feature `rules`, also the
/// processes of a fleet, their keys, and the rules that they share.
#[derive(Clone, Copy, Debug)]
pub struct Operator<'a>(pub(super) &'a RateLimiter);

impl RateLimiter {
    /// Returns what operators see and change.
    #[must_use]
    pub fn operator(&self) -> Operator<'_> {
        Operator(self)
    }
}

impl Operator<'_> {
    /// Returns the units of a key that are in use. They do not depend on the amounts of the limit, so a limit whose
    /// amounts [differ from call to call](Limit::try_amounts) has one answer, whatever amounts `limit` has:
    /// [`peek`](RateLimiter::peek) compares with the amounts of `limit`. Rules do not matter either. The units that
    /// other processes have [leased](Limit::lease) count as used, those of this process do not. A bucket with a lease
    /// also counts the tokens that it withholds.
    ///
    /// Calls of a bucket with other amounts can change its rate. Its units are counted at the rate of the last call
    /// that was charged.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, RateLimiter};
    ///
    /// const API: Limit = Limit::sliding("api", 1, Duration::from_secs(60));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::embedded();
    /// limiter.check(&API.try_amounts(50, None)?, "acme", 40).await?;
    /// let usage = limiter.operator().usage(&API, "acme").await?;
    /// assert_eq!((usage.used, usage.blocked_for), (40, None));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError) when the store does not reply and [`OnError`](crate::OnError) is not `Local`.
    /// With `Local`, the units are those that this process has counted, and [`Usage::source`] is
    /// [`Source::Fallback`](crate::Source::Fallback).
    pub fn usage(&self, limit: &Limit, key: impl Key) -> Answer<Usage> {
        self.0.checker.count(limit, &key).usage()
    }

    /// Returns the keys of which this limiter and its clones have rejected the most calls in this process, at most
    /// `most` of them, the ones with the most rejections first.
    ///
    /// A rejection is [`Rejection::Limited`](crate::Rejection::Limited),
    /// [`Rejection::Blocked`](crate::Rejection::Blocked) or [`Rejection::Busy`](crate::Rejection::Busy), or what a
    /// [shadow](crate::Limit::shadow) reports in place of one. If several limits are decided together, only the limit
    /// that the rejection names counts it.
    ///
    /// The list is bounded: it takes 256 KiB at most, and with [`log_keys`](crate::Builder::log_keys) the texts of its
    /// keys. A key whose rejections are a large share of all of them is always
    /// in it. Under a flood of other keys, a key with few rejections can leave the list and begin again, so
    /// [`rejected`](RejectedKey::rejected) is the number of rejections since [`since`](RejectedKey::since). A key
    /// leaves ten minutes after its last rejection.
    ///
    /// At least the first 256 rejections of a second count one by one. Of the rest, the limiter samples about one in
    /// 64, which counts for all calls since the sample before. So a rejected call of a flood costs a few instructions.
    /// An admitted call costs nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, RateLimiter};
    ///
    /// const LOGIN: Limit = Limit::sliding("login", 2, Duration::from_secs(60));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder().log_keys(true).build()?;
    /// for _ in 0..5 {
    ///     let _ = limiter.check(&LOGIN, "alice", 1).await;
    /// }
    /// let keys = limiter.operator().rejected_keys(20);
    /// assert_eq!((keys[0].limit, &*keys[0].key, keys[0].rejected), ("login", "alice", 3));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn rejected_keys(&self, most: usize) -> Vec<RejectedKey> {
        self.0.checker.backend.rejected_keys(most)
    }
}
