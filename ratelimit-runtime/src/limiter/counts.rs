//! Looks at counts and changes them by hand: credits units, resets counts, blocks and unblocks keys.

use std::time::Duration;

use super::RateLimiter;
use crate::algorithm::{BlockChange, MOST};
use crate::key::Key;
use crate::limit::Limit;
use crate::reply::{Answer, Decision};

impl RateLimiter {
    /// Credits `units` to a key, as a gift of an operator: so many of its charged units no longer count, the newest
    /// first, and never more than are charged. The decision reports the remaining units after the credit.
    ///
    /// | to | use |
    /// | --- | --- |
    /// | give back what a call has not used | [`acquire`](Self::acquire), then [`Permit::settle`] |
    /// | let a key make more calls | `credit` |
    /// | let a key start anew | [`reset`](Self::reset) |
    ///
    /// A permit gives back the units of its own call, exactly. A credit can cancel the units of another call, because
    /// the store does not know for which call a unit was charged: if the charge of a call has left the window, a credit
    /// for that call reduces the charge of a later one, and the window admits more than its limit.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, RateLimiter};
    ///
    /// const EXPORTS: Limit = Limit::fixed("exports", 3, Duration::from_secs(86_400));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::embedded();
    /// limiter.check(&EXPORTS, "acme", 3).await?;
    /// // Two more exports today, after a failure of ours.
    /// assert_eq!(limiter.credit(&EXPORTS, "acme", 2).await?.remaining, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Permit::settle`]: crate::Permit::settle
    /// [`Permit::refund`]: crate::Permit::refund
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError) when the store does not reply; the units may have been credited.
    pub fn credit(&self, limit: &Limit, key: impl Key, units: u64) -> Answer<Decision> {
        self.checker.count(limit, &key).credit(units.min(MOST))
    }

    /// Removes the count of `key`, and unblocks the key if it is [blocked](Self::block): the next call is decided as if
    /// the key had never been used. Returns whether the store had a count of the key. `false` means that the key was
    /// not used for a while, or that calls use another limit or another key. `true` can also mean a count that has
    /// expired, because the store keeps it a little longer.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, RateLimiter};
    ///
    /// const LOGIN: Limit = Limit::sliding("login", 5, Duration::from_secs(900));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::embedded();
    /// limiter.check(&LOGIN, "alice", 1).await?;
    /// assert!(limiter.reset(&LOGIN, "alice").await?);
    /// assert!(!limiter.reset(&LOGIN, "Alice").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError) when the store does not reply; the count may have been removed.
    pub fn reset(&self, limit: &Limit, key: impl Key) -> Answer<bool> {
        self.checker.count(limit, &key).reset()
    }

    /// Blocks `key` for `duration`, rounded up to a microsecond, at most 100 years. Until then, the limit rejects every
    /// call of the key, also calls of cost 0, with [`Rejection::Blocked`](crate::Rejection::Blocked). Calls that
    /// [wait](Limit::wait) are admitted after the end of the block, first come, first served. A waiting call whose turn
    /// has come before the block still starts if it is polled within one [deadline](crate::Builder::deadline) of its
    /// turn. Use it to obey a `Retry-After`, or to stop a client.
    ///
    /// If the key is blocked, the later end holds; a `duration` of zero changes nothing. While a key is blocked, its
    /// window ages and its bucket refills as before.
    ///
    /// With Redis, the key is blocked in all processes. Another process obeys with its next request; a rejection in its
    /// cache, leased units and reservations can delay that by a second. While Redis is down, only the process that
    /// blocked the key rejects its calls. [`unblock`](Self::unblock) and [`reset`](Self::reset) end the block before
    /// its time.
    ///
    /// The attribute blocks a key by the result of a call: see `block` of
    /// [`rate_limit`](macro@crate::rate_limit).
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, RateLimiter, Rejection};
    ///
    /// const UPSTREAM: Limit = Limit::leaky_bucket("upstream", 10, Duration::from_secs(1));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::embedded();
    /// limiter.block(&UPSTREAM, "api.example.com", Duration::from_secs(30)).await?;
    ///
    /// let rejection = limiter.check(&UPSTREAM, "api.example.com", 1).await.unwrap_err();
    /// assert!(matches!(rejection, Rejection::Blocked { .. }));
    /// assert!(rejection.retry_after() > Some(Duration::from_secs(29)));
    ///
    /// assert!(limiter.unblock(&UPSTREAM, "api.example.com").await?);
    /// limiter.check(&UPSTREAM, "api.example.com", 1).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError) when Redis does not reply: other processes may or may not find the key
    /// blocked. This process then rejects the calls that it decides without Redis.
    pub fn block(&self, limit: &Limit, key: impl Key, duration: Duration) -> Answer<()> {
        self.checker.count(limit, &key).block(BlockChange::block_for(duration)).map(drop)
    }

    /// Ends the block of a key: see [`block`](Self::block). Returns whether it was blocked: `false` can mean another
    /// limit or another key. Units are not given back.
    ///
    /// Waiting calls of this process continue at once, those of other processes within a second. Other processes can
    /// also reject calls from their caches for a second.
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError) when Redis does not reply; the key may have been unblocked.
    pub fn unblock(&self, limit: &Limit, key: impl Key) -> Answer<bool> {
        self.checker.count(limit, &key).block(BlockChange::Unblock)
    }
}
