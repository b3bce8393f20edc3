//! [`RateLimiter`]: limits, a store, a clock, as an ordinary value.

mod asking;
mod booking;
mod checking;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use self::checking::Left;
use crate::algorithm::Op;
use crate::background::Background;
use crate::builder::Builder;
use crate::check::{Answer, Check};
use crate::decision::{Answered, Decision, Source};
use crate::error::StoreError;
use crate::key::Key;
use crate::lease::{self, Leases};
use crate::limit::{Limit, OnError};
use crate::part::{Charge, Part};
use crate::question::Question;
use crate::refusals::Refusals;
#[cfg(doc)]
use crate::rejection::Rejection;
use crate::report::{self, Began, Report};
use crate::store::Store;
use crate::store::embedded::Embedded;
use crate::waiting::{Waiters, Wanted};

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
    inner: Arc<Inner>,
}

struct Inner {
    /// Counts in this process: all of them, or those of [`Scope::Process`](crate::Scope::Process)
    /// and those of times when the shared store does not decide.
    local: Embedded,
    shared: Option<Box<dyn Store>>,
    on_error: OnError,
    /// How many processes there are, which share a limit while Redis does not decide.
    instances: u32,
    refusals: Refusals,
    waiters: Waiters,
    leases: Arc<Leases>,
    /// When it was last said that the shared store does not decide; 0 when it does.
    said: AtomicU64,
    background: Arc<Background>,
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

    pub(crate) fn new(
        local: Embedded,
        shared: Option<Box<dyn Store>>,
        on_error: OnError,
        instances: u32,
        remembers: bool,
        background: Arc<Background>,
    ) -> Self {
        report::describe();
        let (waiters, said) = (Waiters::default(), AtomicU64::new(0));
        let refusals = Refusals::new(remembers && shared.is_some());
        let leases = Arc::default();
        let inner = Inner {
            local,
            shared,
            on_error,
            instances,
            refusals,
            waiters,
            leases,
            said,
            background,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Where this limiter decides, unless a limit or a failure says otherwise.
    #[must_use]
    pub fn source(&self) -> Source {
        self.inner.shared.as_ref().map_or(Source::Embedded, |store| store.source())
    }

    /// Admits and charges the call, or refuses it and changes nothing.
    ///
    /// The returned future holds neither `limit` nor `key`. On the embedded store the decision is
    /// made by this call itself, and the future is ready; so it is where units are
    /// [leased](Limit::lease) and held. Else it is made on Redis once the future is polled; a future
    /// dropped after that may have charged the key.
    ///
    /// # Errors
    ///
    /// [`Rejection::Limited`] when the limit is reached, [`Rejection::CostExceedsCapacity`] when
    /// `cost` is more than can ever be admitted, [`Rejection::Unavailable`] when the store cannot
    /// decide and [`OnError`] says so.
    #[inline]
    pub fn check(&self, limit: &Limit, key: impl Key, cost: u32) -> Check {
        let (began, mut outcome) = (Began::now(), None);
        let Left { is_all, remaining, reset_us } =
            self.decide_here(limit, &key, cost, &mut outcome);
        if is_all {
            // Made where the caller wants it: what is copied has to wait until it was written.
            return Check::admitted_unheard(limit, remaining, reset_us, Source::Embedded);
        }
        self.check_further(began, limit, &key, cost, outcome.as_ref())
    }

    /// Says what [`check`](Self::check) would, and changes nothing. It is `Ok` as well where the call
    /// would be refused: see [`Decision::allowed`].
    ///
    /// # Errors
    ///
    /// [`Rejection::CostExceedsCapacity`] and [`Rejection::Unavailable`], as for
    /// [`check`](Self::check).
    pub fn peek(&self, limit: &Limit, key: impl Key, cost: u32) -> Check {
        if self.is_leased(limit) {
            return Check::peek(limit, lease::peek(self, limit, &key, cost));
        }
        if self.shared(limit).is_some() || cost > limit.capacity() {
            return Check::peek(limit, self.ask(Op::Peek, limit, &key, cost));
        }
        let local = &self.inner.local;
        let outcome = local.apply_at(local.place(limit, &key), Op::Peek, limit, cost);
        Check::peeked(limit, Answered { outcome, source: Source::Embedded })
    }

    /// Checks a call against several limits in one decision: all admit it and are charged, or none
    /// is. On Redis that is one script, atomic over all of their keys. In a Redis Cluster that is so
    /// for limits of one key; those of several keys are charged one after the other, and given back
    /// if one refuses. Other calls can be rejected in between; a rollback never admits more than if nothing
    /// had been charged.
    ///
    /// The decision is that of the limit that is hardest on the caller: of those that refuse, the
    /// one with the longest wait, which the rejection names; else the one with the least left.
    /// A limit that comes twice with one key is charged once, with both costs. The limits must agree
    /// on [`Scope`](crate::Scope), [`OnError`], `shadow` and `wait`.
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
    /// As for [`check`](Self::check).
    pub fn check_all(&self, parts: &[Part<'_>]) -> Check {
        self.check_charges(&parts.iter().map(Part::charge).collect::<Vec<_>>())
    }

    pub(crate) fn check_charges(&self, parts: &[Charge<'_>]) -> Check {
        let Some(first) = parts.first().map(|part| part.limit) else {
            return Check::failed("", StoreError::NoLimits);
        };
        let report = Report::begin();
        if !parts.iter().all(|part| part.limit.agrees_with(first)) {
            return Check::failed(first.name(), StoreError::MixedLimits);
        }
        report::together(parts);
        let report = report.about_all(parts, |part| self.inner.local.place(part.limit, part.key));
        let question = match (self.merge(parts), first.patience()) {
            (Err(name), _) => return Check::failed(name, StoreError::SharedCount { name }),
            (Ok(parts), Some(wait)) => self.wait_for(&parts, wait),
            (Ok(parts), None) if parts.iter().any(|part| self.is_leased(part.limit)) => {
                let limits: Vec<_> = parts.iter().map(|part| self.counted(part.limit)).collect();
                let parts =
                    parts.iter().zip(&limits).map(|(part, limit)| Charge { limit, ..*part });
                self.ask_all(&parts.collect::<Vec<_>>())
            }
            (Ok(parts), None) => self.ask_all(&parts),
        };
        Check::new(report, first, question)
    }

    /// Gives back `cost` units that were charged, the newest first, and never more than are
    /// charged; for calls that turned out not to count.
    ///
    /// Give back soon: nobody remembers who was charged for which unit, so that one given back after
    /// its own charge has left the window is somebody else's, and the window admits one more.
    ///
    /// A bucket takes nothing back while more is taken than its `burst`: after the burst was lowered, until
    /// the rest has drained, and while a call that [waits](Limit::wait) has reserved a moment. Then this
    /// changes nothing, and is no error.
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError) when the store does not answer; the units may have been
    /// given back.
    pub fn refund(&self, limit: &Limit, key: impl Key, cost: u32) -> Answer<Decision> {
        let limit = &self.counted(limit);
        let capacity = limit.capacity();
        let answer = self.decide(Op::Refund, limit, &key, cost);
        answer.map(move |answered| Decision::new(capacity, answered))
    }

    /// Says whether the store of this limiter would decide now; for readiness probes. The embedded store
    /// always would. Redis is asked for what a decision needs: a connection, a script, a write; in a cluster
    /// on each node. Nothing is charged.
    ///
    /// An error is no reason to take traffic from a process whose limits fall back: see
    /// [`OnError`](crate::OnError).
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
    /// [`StoreError`](crate::StoreError) when a decision would not be made now, within the
    /// [deadline](crate::Builder::deadline).
    pub fn ping(&self) -> Answer<()> {
        match &self.inner.shared {
            Some(shared) => shared.ping(),
            None => self.inner.local.ping(),
        }
    }

    /// Forgets `key`: the next call finds it unused.
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError) when the store does not answer; the key may have been
    /// forgotten.
    pub fn reset(&self, limit: &Limit, key: impl Key) -> Answer<()> {
        let leased = self.is_leased(limit).then(|| self.inner.local.place(limit, &key));
        let limit = &self.counted(limit);
        let local = self.inner.local.reset(limit, &key);
        // What was counted here while Redis was away is forgotten with the rest.
        let Some(shared) = self.shared(limit) else { return local };
        let answer = self.and_forget(limit, &key, shared.reset(limit, &key));
        let Some(place) = leased else { return answer };
        let limiter = self.clone();
        Answer::later(async move {
            limiter.inner.leases.forget(place);
            let answer = answer.await;
            limiter.inner.leases.forget(place);
            answer
        })
    }

    /// Adds up the costs of a limit that comes twice with one key. Two different limits of one count
    /// are an error, of which this gives the name.
    fn merge<'a>(&self, parts: &[Charge<'a>]) -> Result<Vec<Charge<'a>>, &'static str> {
        let mut places = Vec::with_capacity(parts.len());
        let mut merged: Vec<Charge<'a>> = Vec::with_capacity(parts.len());
        for part in parts {
            let place = self.inner.local.place(part.limit, part.key);
            match places.iter().position(|at| *at == place).map(|at| &mut merged[at]) {
                None => {
                    places.push(place);
                    merged.push(*part);
                }
                Some(one) if one.limit == part.limit => {
                    one.cost = one.cost.saturating_add(part.cost);
                }
                Some(one) => return Err(one.limit.name()),
            }
        }
        Ok(merged)
    }

    fn wait_for(&self, parts: &[Charge<'_>], wait: Duration) -> Question {
        if let Some(part) = parts.iter().find(|part| part.cost > part.limit.capacity()) {
            return Question::never(part.limit, part.cost);
        }
        Question::waits(Wanted::new(self, parts, wait).admitted())
    }

    pub(crate) fn local(&self) -> &Embedded {
        &self.inner.local
    }

    pub(crate) fn waiters(&self) -> &Waiters {
        &self.inner.waiters
    }

    pub(crate) fn background(&self) -> &Background {
        &self.inner.background
    }

    pub(crate) fn leases(&self) -> &Arc<Leases> {
        &self.inner.leases
    }

    /// Gives this limiter as long as somebody else has it.
    pub(crate) fn downgrade(&self) -> impl Fn() -> Option<Self> + Send + Sync + use<> {
        let inner = Arc::downgrade(&self.inner);
        move || inner.upgrade().map(|inner| Self { inner })
    }

    /// How long an answer of the shared store may take.
    pub(crate) fn deadline(&self) -> Duration {
        self.inner.shared.as_ref().map_or(Duration::MAX, |shared| shared.deadline())
    }

    /// Whether units of this limit are charged in advance.
    fn is_leased(&self, limit: &Limit) -> bool {
        limit.permits() > 0 && limit.patience().is_none() && self.shared(limit).is_some()
    }

    /// The limit by which the store counts.
    fn counted(&self, limit: &Limit) -> Limit {
        if self.is_leased(limit) { limit.leased() } else { *limit }
    }

    /// The answer of the shared store, after which no refusal of the key is remembered.
    fn and_forget<T: Send + Unpin + 'static>(
        &self,
        limit: &Limit,
        key: &dyn Key,
        answer: Answer<T>,
    ) -> Answer<T> {
        let (limiter, place) = (self.clone(), self.inner.local.place(limit, key));
        Answer::later(async move {
            let answer = answer.await;
            limiter.inner.refusals.forget(place);
            answer
        })
    }

    /// Gives back to `source` what it charged and nobody used.
    pub(crate) fn give_back(
        &self,
        source: Source,
        op: Op,
        limit: &Limit,
        key: &dyn Key,
        cost: u32,
    ) -> Answer<Answered> {
        match self.shared(limit) {
            Some(shared) if source == shared.source() => {
                self.and_forget(limit, key, shared.apply(op, limit, key, cost))
            }
            // As it was charged.
            Some(_) => {
                let limit = limit.share(self.inner.instances);
                self.inner.local.apply(op, &limit, key, cost.min(limit.capacity()))
            }
            None => self.inner.local.apply(op, limit, key, cost),
        }
    }
}

/// What was charged in advance is given back.
impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            lease::return_to(&**shared, &self.leases, &self.background);
        }
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("source", &self.source()).finish_non_exhaustive()
    }
}
