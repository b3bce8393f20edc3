//! Which keys are limited in this process, for operators.

use super::RateLimiter;
use crate::report::RejectedKey;

impl RateLimiter {
    /// Returns the keys of which this limiter and its clones have rejected the most calls in this process, at most
    /// `most` of them, the ones with the most rejections first.
    ///
    /// A rejection is [`Rejection::Limited`](crate::Rejection::Limited),
    /// [`Rejection::Closed`](crate::Rejection::Closed) or [`Rejection::Busy`](crate::Rejection::Busy), or what a
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
    /// let keys = limiter.rejected_keys(20);
    /// assert_eq!((keys[0].limit.as_str(), &*keys[0].key, keys[0].rejected), ("login", "alice", 3));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn rejected_keys(&self, most: usize) -> Vec<RejectedKey> {
        self.checker.backend.rejected_keys(most)
    }
}
