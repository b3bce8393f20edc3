//! [`RateLimiter`]: the stores, leases and waiting calls of a limiter as one value. It checks calls, looks at counts,
//! and changes them by hand: credits units, resets counts, blocks and unblocks keys.

mod annotated;
mod builder;
mod global;
mod operator;
#[cfg(feature = "rules")]
pub(crate) mod rules;
mod settings;
mod shutdown;
#[cfg(feature = "actix")]
mod workers;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::annotated::{AnnotatedLimit, limits};
pub use self::builder::Builder;
pub(crate) use self::global::with_current;
pub use self::global::{SetGlobalError, current, in_scope, set_global};
pub use self::operator::Operator;
pub use self::settings::RateLimiterSettings;
use crate::algorithm::{BlockChange, MOST};
use crate::background::is_in_runtime;
use crate::check::{Acquire, AcquireAll, Check, Checker, Part};
use crate::key::{Key, KeySecret};
use crate::limit::Limit;
use crate::reply::{Answer, Decision, Mistake, Rejection, Source};
use crate::rules::{RuleSet, RuleSetError};

/// A timer.
pub(crate) type Pause = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// Checks calls against limits. A clone is cheap, and shares the store, the leases and the waiting calls.
///
/// The attribute uses the process-wide limiter (see [`set_global`](crate::set_global)). Code can also use a
/// limiter directly:
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
///
/// # Futures and errors
///
/// Each future borrows nothing, is `Send`, and is ready at once on the embedded store.
///
/// | methods | future | error |
/// | --- | --- | --- |
/// | `check`, `check_all`, `peek` | [`Check`] | [`Rejection`] |
/// | `acquire` | [`Acquire`] | [`Rejection`] |
/// | `acquire_all` | [`AcquireAll`] | [`Rejection`] |
/// | all others, such as `credit`, `reset`, `block`, `ping` | [`Answer`] | [`StoreError`](crate::StoreError) |
///
/// The first four rows decide a call, or return the decision about one. The others read or change counts, rules and the
/// limiter.
#[derive(Clone)]
pub struct RateLimiter {
    checker: Checker,
    #[cfg(feature = "rules")]
    feed: Option<Arc<rules::RuleFeed>>,
}

impl RateLimiter {
    /// Creates a limiter on the embedded store, as `RateLimiter::builder().build()` does.
    #[must_use]
    #[cfg_attr(feature = "actix", track_caller)]
    pub fn embedded() -> Self {
        let limiter = Self::builder().build();
        limiter.unwrap_or_else(|error| unreachable!("the defaults are valid: {error}"))
    }

    /// Returns a builder: it sets the store of a limiter, and how the limiter uses it.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns where this limiter decides: [`Source::Redis`], or [`Source::Embedded`] if no Redis is configured.
    /// A single decision can have another source: see [`Decision::source`].
    #[must_use]
    pub fn source(&self) -> Source {
        self.checker.backend.source()
    }

    /// Returns the secret under which this limiter hashes credentials. Calls by hand and the key functions of layers
    /// use it; an annotated function writes `key = hashed(token)`.
    ///
    /// # Errors
    ///
    /// [`Mistake::NoKeySecret`] if this limiter counts on Redis and has no [`key_secret`](Builder::key_secret): no
    /// other process could share the counts. Without Redis, it has a random one.
    pub fn key_secret(&self) -> Result<KeySecret, Mistake> {
        let backend = &self.checker.backend;
        let secret = &backend.settings.key_secret;
        if !secret.is_given() && backend.shared.is_some() {
            return Err(Mistake::NoKeySecret);
        }
        Ok(secret.clone())
    }

    /// Admits and charges the call, or rejects it and changes nothing.
    ///
    /// The returned future borrows neither `limit` nor `key`. On the embedded store, and if this process holds
    /// enough [leased](Limit::lease) units, this method decides and charges the call, and the future is ready.
    /// Otherwise, Redis decides once the future is polled; a future that is dropped after that may have charged
    /// the key.
    ///
    /// # Errors
    ///
    /// [`Rejection::Limited`] when the limit is reached, [`Rejection::Blocked`] while the key is
    /// [blocked](Self::block), [`Rejection::CostExceedsCapacity`] when `cost` is
    /// more than the limit can ever admit at once, [`Rejection::Unavailable`] when Redis cannot decide
    /// and [`OnError`](crate::OnError) is `Deny`, [`Rejection::Mistake`] when the program has a mistake.
    #[inline]
    pub fn check(&self, limit: &Limit, key: impl Key, cost: u64) -> Check {
        self.checker.check(Part::of(limit, &key, cost))
    }

    /// Like [`check`](Self::check), for code that is not async. If Redis counts the limit, or if the limit has a
    /// [`wait`](Limit::wait), blocks this thread until the call is decided: for the deadline and the wait at most.
    /// Otherwise, the call is decided at once.
    ///
    /// In async code, await [`check`](Self::check) instead: a thread that is blocked runs no other task. The call does
    /// not depend on a runtime.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, RateLimiter};
    ///
    /// const WARNINGS: Limit = Limit::token_bucket("warnings", 1, Duration::from_secs(60));
    ///
    /// let limiter = RateLimiter::embedded();
    /// if limiter.check_blocking(&WARNINGS, "disk", 1).is_ok() {
    ///     eprintln!("the disk is almost full");
    /// }
    /// assert!(limiter.check_blocking(&WARNINGS, "disk", 1).is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check).
    #[inline]
    pub fn check_blocking(
        &self,
        limit: &Limit,
        key: impl Key,
        cost: u64,
    ) -> Result<Decision, Rejection> {
        self.check(limit, key, cost).0.blocking(&self.checker.backend, || *limit)
    }

    /// Returns the decision that [`check`](Self::check) would make, and charges nothing. The result is `Ok` even if the
    /// call would be rejected: see [`Decision::allowed`].
    ///
    /// # Errors
    ///
    /// [`Rejection::CostExceedsCapacity`], [`Rejection::Unavailable`] and [`Rejection::Mistake`], as for
    /// [`check`](Self::check).
    pub fn peek(&self, limit: &Limit, key: impl Key, cost: u64) -> Check {
        self.checker.count(limit, &key).peek(cost)
    }

    /// Checks a call against several limits in one decision: all of them admit the call and are charged, or none is
    /// charged. On Redis, one script decides atomically over all keys. In a Redis Cluster, this holds for limits with
    /// the same key. There, limits with different keys are charged one after the other, and the charges are rolled back
    /// if one of the limits rejects the call. A call can be rejected because of a concurrent call that is later rolled
    /// back; after a rollback, a limit never admits more than if that call had charged nothing.
    ///
    /// If several limits reject the call, the [`Rejection`] names the limit with the longest wait. If all limits
    /// admit the call, the decision reports the limit with the fewest remaining units. A limit that occurs twice
    /// with one key is charged once, with the sum of the costs. The limits must have the same
    /// [`Scope`](crate::Scope), [`OnError`](crate::OnError), `shadow` and `wait`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, Part, RateLimiter};
    ///
    /// const BY_USER: Limit = Limit::sliding("login.user", 5, Duration::from_secs(60));
    /// const BY_ADDRESS: Limit = Limit::token_bucket("login.address", 20, Duration::from_secs(60));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let (user, address) = ("alice", std::net::Ipv4Addr::LOCALHOST);
    /// let parts = [Part::new(&BY_USER, &user, 1), Part::new(&BY_ADDRESS, &address, 1)];
    /// let decision = RateLimiter::embedded().check_all(&parts).await.unwrap();
    /// assert_eq!((decision.limit, decision.remaining), (5, 4));
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check). [`Rejection::Mistake`] also reports a wrong list of limits: an empty
    /// list, limits that differ in scope, `on_error`, shadow or wait, or two different limits that share a
    /// count.
    pub fn check_all(&self, parts: &[Part<'_>]) -> Check {
        self.checker.check_all(parts)
    }

    /// Admits and charges the call like [`check`](Self::check), and returns a [`Permit`](crate::Permit), which corrects
    /// the charge once the real cost is known.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, RateLimiter};
    ///
    /// const TOKENS: Limit = Limit::sliding("tokens", 10_000, Duration::from_secs(60));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::embedded();
    /// // An answer takes 1,000 tokens at most.
    /// let permit = limiter.acquire(&TOKENS, "acme", 1_000).await?;
    /// assert_eq!(permit.decision().remaining, 9_000);
    ///
    /// // It has taken 120.
    /// permit.settle(120);
    /// assert_eq!(limiter.peek(&TOKENS, "acme", 1).await?.remaining, 9_880);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check). For a limit with a [lease](Limit::lease), [`Mistake::Leased`](crate::Mistake).
    pub fn acquire(&self, limit: &Limit, key: impl Key, cost: u64) -> Acquire {
        self.checker.start_all(&[Part::of(limit, &key, cost)], true).into()
    }

    /// Checks a call against several limits in one decision like [`check_all`](Self::check_all), and returns a
    /// [`Permit`](crate::Permit) for each part, in their order.
    ///
    /// # Errors
    ///
    /// As for [`check_all`](Self::check_all). If a limit has a [lease](Limit::lease),
    /// [`Mistake::Leased`](crate::Mistake).
    pub fn acquire_all(&self, parts: &[Part<'_>]) -> AcquireAll {
        let parts: Vec<_> = parts.iter().map(Part::any).collect();
        self.checker.start_all(&parts, true).into()
    }

    /// Succeeds if the store of this limiter would decide now; for readiness probes. On the embedded store, it
    /// always succeeds. On Redis, it tests everything that a decision needs: a connection, and a script that
    /// writes; in a cluster, on each node. It charges nothing.
    ///
    /// If [`OnError`](crate::OnError) is `Local` or `Allow`, the process serves calls without Redis: an error is then
    /// no reason to take the process out of service.
    ///
    /// ```
    /// use ratelimit_runtime::RateLimiter;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let limiter = RateLimiter::embedded();
    /// match limiter.ping().await {
    ///     Ok(()) => println!("ready"),
    ///     Err(error) => println!("limits are not shared: {error}"),
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError) when Redis would not decide within the
    /// [deadline](crate::Builder::deadline).
    #[must_use]
    pub fn ping(&self) -> Answer<()> {
        let ping = self.checker.backend.ping();
        #[cfg(feature = "rules")]
        if let Some(feed) = self.feed.clone() {
            return self.checker.backend.answer(|_| async move {
                ping.await?;
                feed.ready().await
            });
        }
        ping
    }

    /// Returns a pause by the clock of this limiter.
    pub(crate) fn pause(&self, wait: Duration) -> Pause {
        let backend = Arc::clone(&self.checker.backend);
        let clock = backend.clock().clone();
        let until = clock.steady().saturating_add(wait.as_micros() as u64);
        let can_sleep = clock.is_virtual() || is_in_runtime();
        let pause: Pause = Box::pin(async move { clock.sleep_until_steady(until).await });
        if can_sleep {
            return pause;
        }
        // Without a pause if the thread cannot start.
        Box::pin(async move { drop(backend.background.enter(pause).await) })
    }

    pub(crate) fn checker(&self) -> &Checker {
        &self.checker
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("source", &self.source()).finish_non_exhaustive()
    }
}

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
        let blocked = self.checker.count(limit, &key).block(BlockChange::block_for(duration));
        Box::pin(async move { blocked.await.map(drop) })
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

impl RateLimiter {
    /// Replaces the rules of this limiter and its clones. Calls that begin after it and calls that
    /// [wait](crate::Limit::wait) obey the new rules, and [leases](crate::Limit::lease) obey them within their term.
    ///
    /// Rules change neither counts nor what was charged: with a new threshold, the next call is decided by what is
    /// charged already. An amount that does not fit a limit is reported by an `ERROR` event and ignored; the rest is in
    /// force. See [`RuleSet`] for an example.
    ///
    /// # Errors
    ///
    /// If the limiter reads its rules from a file or from Redis. The rules in force then stay.
    pub fn set_rules(&self, rules: RuleSet) -> Result<(), RuleSetError> {
        #[cfg(feature = "rules")]
        if let Some(feed) = &self.feed {
            return Err(feed.owns_rules());
        }
        self.checker.waiting.replace_rules(rules);
        Ok(())
    }

    /// Returns the rules in force.
    #[must_use]
    pub fn rules(&self) -> RuleSet {
        self.checker.rules.set()
    }
}
