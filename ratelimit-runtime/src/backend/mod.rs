//! The layer between a check and the stores. It picks the store, applies `on_error`, keeps the rejection cache and
//! the outage log, and gives units back to the store that charged them.

mod agenda;
mod call_deadline;
mod closings;
mod counts;
mod give_backs;
mod holders;
mod outage;
mod rejected_keys;
mod rejections;
mod settlements;
mod statements;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use self::call_deadline::CallDeadline;
pub(crate) use self::closings::PendingClosing;
use self::closings::PendingClosings;
pub(crate) use self::counts::{ChargedCount, MergedCounts};
pub(crate) use self::give_backs::{GiveBacks, GivenBack};
use self::holders::Holders;
use self::outage::OutageLog;
use crate::algorithm::{Op, Outcome};
use crate::background::Background;
use crate::clock::Clock;
use crate::key::{Key, KeyId};
use crate::limit::{Limit, OnError, Policy, Scope, Terms};
use crate::local::Local;
use crate::reply::{Answer, Source, StoreError};
use crate::report::{RejectedKeys, ReportSettings};
use crate::store::{Charge, Reply, Request, SharedStore, Store};

/// The stores of a limiter, and its settings for a shared store that fails.
pub(crate) struct Backend {
    /// The store of this process: of all counts, or of the counts of [`Scope::Process`] and of fallbacks.
    local: Local,
    shared: Option<SharedStore>,
    give_backs: Arc<GiveBacks>,
    closings: Option<Arc<PendingClosings>>,
    holders: Option<Arc<Holders>>,
    /// Notified when units in flight may have been lost, or their release has become known to the shared store.
    in_flight_changed: Notify,
    outages: OutageLog,
    settings: BackendSettings,
    background: Arc<Background>,
    rejected_keys: RejectedKeys,
}

#[derive(Clone)]
pub(crate) struct BackendSettings {
    /// The `on_error` of limits that do not set it.
    pub(crate) on_error: OnError,
    /// The number of processes that share a limit while Redis does not decide.
    pub(crate) instances: u32,
    /// The longest time that a decision may take.
    pub(crate) deadline: Duration,
    pub(crate) reports: ReportSettings,
}

impl Backend {
    /// Creates a backend. The shared store reports the counts of a rollback to `give_backs`.
    pub(crate) fn new(
        local: Local,
        shared: Option<SharedStore>,
        give_backs: Arc<GiveBacks>,
        background: Arc<Background>,
        settings: BackendSettings,
    ) -> Self {
        let closings = shared.as_ref().map(|_| Arc::default());
        let holders = shared.as_ref().map(|_| Arc::default());
        let (in_flight_changed, outages, rejected_keys) = Default::default();
        Self {
            local,
            shared,
            give_backs,
            closings,
            holders,
            in_flight_changed,
            outages,
            settings,
            background,
            rejected_keys,
        }
    }

    /// Sets the function that is called with each count to which this process has given units back.
    pub(crate) fn on_give_back(&self, listener: impl Fn(GivenBack) + Send + Sync + 'static) {
        self.give_backs.listen(listener);
    }

    /// Sets the function that is called with each key that this process closes: once the process obeys, and again once
    /// the shared store has closed the key.
    pub(crate) fn on_closing(&self, listener: impl Fn(KeyId) + Send + Sync + 'static) {
        self.give_backs.listen_to_closings(listener);
    }

    /// Returns where decisions are made, unless a limit or a failure requires otherwise.
    pub(crate) fn source(&self) -> Source {
        self.shared.as_ref().map_or(Source::Embedded, Store::source)
    }

    pub(crate) fn shared_store(&self) -> Option<&SharedStore> {
        self.shared.as_ref()
    }

    /// Returns the value that `make` makes, if there is a shared store.
    pub(crate) fn of_shared<T>(&self, make: impl FnOnce() -> T) -> Option<T> {
        self.shared.as_ref().map(|_| make())
    }

    /// Returns the longest time that a decision may take.
    pub(crate) fn deadline(&self) -> Duration {
        self.settings.deadline
    }

    pub(crate) fn reports(&self) -> &ReportSettings {
        &self.settings.reports
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.local.clock()
    }

    pub(crate) fn background(&self) -> &Background {
        &self.background
    }

    /// Returns the embedded store, for decisions that need no request.
    #[inline]
    pub(crate) fn local(&self) -> &Local {
        &self.local
    }

    /// Returns whether the shared store decides calls of this scope.
    #[inline]
    pub(crate) fn is_shared(&self, scope: Scope) -> bool {
        cfg!(feature = "redis") && self.shared_for(scope).is_some()
    }

    /// Returns whether this process decides calls of a limit, by one count.
    #[inline]
    pub(crate) fn counts_here(&self, limit: &Limit) -> bool {
        !self.is_shared(limit.policy().scope())
    }

    /// Returns whether this process decides a call at once, by one count.
    #[inline]
    pub(crate) fn decides_here(&self, limit: &Limit, cost: u64) -> bool {
        self.counts_here(limit) && limit.decides_at_once() && cost <= limit.terms().capacity()
    }

    #[inline]
    pub(crate) fn key_id(&self, terms: &Terms, key: &(impl Key + ?Sized)) -> KeyId {
        self.local.key_id(terms, key)
    }

    /// Returns a rejection of the shared store that still holds for a charge.
    pub(crate) fn cached_rejection(&self, charge: &Charge) -> Option<Reply> {
        if charge.cost != 1 {
            return None;
        }
        self.give_backs.rejections.get(&charge.terms, charge.key_id, self.clock().local())
    }

    /// Executes a request on the embedded store. The caller knows that [no other store](Self::is_shared) decides it.
    pub(crate) fn execute_here(&self, request: &Request) -> Reply {
        let reply = self.local.apply(request, Source::Embedded);
        self.notify_give_back(request, Some(&reply));
        reply
    }

    /// Executes a request. If the shared store fails, applies the `on_error` of the policy.
    pub(crate) async fn execute(
        &self,
        policy: Policy,
        request: Request,
    ) -> Result<Reply, StoreError> {
        let result = self.try_execute(policy, &request).await;
        result.or_else(|error| self.fall_back(policy, &request, error))
    }

    /// Executes a request, and records what the shared store replies. If it fails, the caller may
    /// [fall back](Self::fall_back).
    pub(crate) async fn try_execute(
        &self,
        policy: Policy,
        request: &Request,
    ) -> Result<Reply, StoreError> {
        let Some(shared) = self.shared_for(policy.scope()) else {
            return Ok(self.execute_here(request));
        };
        let key_ids = request.charges().iter().map(|charge| charge.key_id);
        let mut end = CallDeadline::default();
        let closed = self.prepare(&mut end, self.wait_until_closed(key_ids)).await;
        let stamp = self.give_backs.rejections.stamp(self.clock().local());
        let result = match closed {
            Ok(()) => self.execute_taking(shared, request, end).await,
            Err(error) => Err(error),
        };
        // A rejection of several limits may hold for one of them only.
        if let (Request::Decide(calls), Ok(reply)) = (request, &result)
            && !matches!(calls.op, Op::Peek | Op::Measure)
            && let (Some(charge), [outcome]) = (calls.only_charge(), &reply.outcomes[..])
            && !charge.terms.is_in_flight()
        {
            let now = self.clock().local();
            self.give_backs.rejections.record(&charge, stamp, now, outcome, reply.source);
        }
        self.notify_give_back(request, result.as_ref().ok());
        let name = request.charges().first().map_or("", |charge| charge.terms.name().as_str());
        self.outages.record(self.clock(), name, self.on_error(policy), &result);
        result
    }

    /// Applies the `on_error` of the policy to a request that failed. A call without a runtime is a mistake of the
    /// program, and fails.
    pub(crate) fn fall_back(
        &self,
        policy: Policy,
        request: &Request,
        error: StoreError,
    ) -> Result<Reply, StoreError> {
        match self.on_error(policy) {
            _ if error == StoreError::NoRuntime => Err(error),
            OnError::Local => Ok(self.apply_share(request)),
            OnError::Allow if !request.gives_back() => {
                let outcomes = request.charges().iter().map(|_| Outcome::UNDECIDED);
                let outcomes = outcomes.collect::<Vec<_>>().into();
                Ok(Reply::new(outcomes, Source::Fallback))
            }
            OnError::Allow | OnError::Deny => Err(error),
        }
    }

    /// Gives units back to `source`, the store that charged them.
    pub(crate) async fn give_back(
        &self,
        policy: Policy,
        source: Source,
        request: Request,
    ) -> Result<Reply, StoreError> {
        match self.shared_for(policy.scope()) {
            Some(shared) if source == shared.source() => {
                if let Some(reply) = self.release_grant(&request, source) {
                    return Ok(reply);
                }
                let result = shared.execute(request.clone()).await;
                self.notify_give_back(&request, result.as_ref().ok());
                result
            }
            Some(_) => Ok(self.apply_share(&request)),
            None => Ok(self.execute_here(&request)),
        }
    }

    /// Notifies of the units that a request has given back. After a failure, it may have.
    fn notify_give_back(&self, request: &Request, reply: Option<&Reply>) {
        match request {
            Request::GiveBack(_, charge) => {
                let outcome = reply.map(|reply| (reply.source, reply.first()));
                let given_back = GivenBack { key_id: charge.key_id, outcome, is_reset: false };
                self.give_backs.notify(given_back);
            }
            // A line that cancels reservations knows of it.
            Request::Decide(calls) if calls.cancels() => {
                let charges = request.charges().iter();
                charges.for_each(|charge| self.give_backs.rejections.forget(charge.key_id));
            }
            Request::Decide(_) => {}
        }
    }

    /// Removes a count: in this process at once, then in the shared store. Returns whether it was there.
    pub(crate) fn reset(self: &Arc<Self>, policy: Policy, charge: Arc<Charge>) -> Answer<bool> {
        // Also removes the units that this process counted during an outage.
        let was_here = self.local.remove(charge.key_id);
        let given_back = GivenBack { key_id: charge.key_id, outcome: None, is_reset: true };
        self.in_flight_changed.notify_waiters();
        if !self.is_shared(policy.scope()) {
            self.give_backs.notify(given_back);
            return Answer::ready(Ok(was_here));
        }
        let backend = Arc::clone(self);
        Answer::pending(async move {
            let Some(shared) = backend.shared_for(policy.scope()) else { return Ok(was_here) };
            // A closing that is still queued would close the key again.
            let mut end = CallDeadline::default();
            backend.prepare(&mut end, backend.wait_until_closed([charge.key_id])).await?;
            let result = backend.complete(&end, pin!(shared.reset(&charge))).await;
            if let Some(holder) = &charge.holder {
                holder.reset(result.as_ref().ok().map(|(_, receipt)| *receipt));
            }
            backend.give_backs.notify(given_back);
            result.map(|(was_there, _)| was_there || was_here)
        })
    }

    /// Succeeds if the store would decide now.
    pub(crate) fn ping(self: &Arc<Self>) -> Answer<()> {
        if self.shared.is_none() {
            return Answer::ready(Ok(()));
        }
        let backend = Arc::clone(self);
        Answer::pending(async move {
            let Some(shared) = &backend.shared else { return Ok(()) };
            shared.ping().await
        })
    }

    /// Executes a request on the embedded store, under the share of this process.
    pub(crate) fn apply_share(&self, request: &Request) -> Reply {
        let share = request.share(self.settings.instances);
        let reply = self.local.apply(&share, Source::Fallback);
        self.notify_give_back(request, Some(&reply));
        reply
    }

    pub(crate) fn on_error(&self, policy: Policy) -> OnError {
        policy.on_error().unwrap_or(self.settings.on_error)
    }

    #[inline]
    fn shared_for(&self, scope: Scope) -> Option<&SharedStore> {
        self.shared.as_ref().filter(|_| scope == Scope::Global)
    }
}
