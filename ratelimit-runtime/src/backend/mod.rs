//! The layer between a check and the stores. It picks the store, applies `on_error`, and gives units back to the store
//! that charged them. It reports when the shared store stops and starts to decide. The last step of a rejection counts
//! it for its key.

mod settlements;

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::Notify;

use crate::algorithm::{Op, Outcome, Verdict};
use crate::background::{Background, is_in_runtime};
use crate::clock::Clock;
use crate::key::{Key, KeyId, KeySecret, OwnedKey};
use crate::limit::{Limit, OnError, Policy, Scope, Terms};
use crate::local::Local;
use crate::one_or_many::OneOrMany;
use crate::owner::{Notices, Owner, ended, foreign};
use crate::reply::{Answer, Source, StoreError};
use crate::report::{self, RejectedKey, RejectedKeys, ReportSettings};
use crate::store::{Calls, Charge, Reply, SharedStore, Statement};

/// The stores of a limiter, and its settings for a shared store that fails.
pub(crate) struct Backend {
    /// The store of this process: of all counts, or of the counts of [`Scope::Process`] and of fallbacks.
    local: Local,
    pub(crate) shared: Option<SharedStore>,
    /// What notifies of counts that this process changes.
    pub(crate) notices: Arc<Notices>,
    /// The owner of what outlives a call, if there is a shared store.
    pub(crate) owner: Option<Arc<Owner>>,
    /// Notified when units in flight of this process may have been lost.
    in_flight_changed: Notify,
    /// The time of the last report that the shared store does not decide; 0 if it decides.
    outage_reported: AtomicU64,
    pub(crate) settings: BackendSettings,
    pub(crate) background: Arc<Background>,
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
    /// Whether rejections of the shared store are cached.
    pub(crate) caches_rejections: bool,
    pub(crate) key_secret: KeySecret,
    pub(crate) reports: ReportSettings,
}

impl Backend {
    pub(crate) fn new(
        local: Local,
        shared: Option<SharedStore>,
        background: Arc<Background>,
        settings: BackendSettings,
    ) -> Self {
        let notices = Notices::new(shared.is_some() && settings.caches_rejections);
        let owner = shared.as_ref();
        let owner = owner.map(|shared| Owner::new(shared, &notices, &background, local.clock()));
        Self {
            local,
            shared,
            notices,
            owner,
            in_flight_changed: Notify::new(),
            outage_reported: AtomicU64::new(0),
            settings,
            background,
            rejected_keys: RejectedKeys::default(),
        }
    }

    /// Returns where decisions are made, unless a limit or a failure requires otherwise.
    pub(crate) fn source(&self) -> Source {
        if self.shared.is_some() { Source::Redis } else { Source::Embedded }
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.local.clock()
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

    /// Returns whether units of a limit are leased.
    pub(crate) fn leases(&self, limit: &Limit) -> bool {
        limit.leases_units() && self.shared.is_some()
    }

    /// Returns whether this process decides a check at once, by one count.
    #[inline]
    pub(crate) fn decides_here(&self, limit: &Limit, cost: u64) -> bool {
        !self.is_shared(limit.policy().scope)
            && limit.decides_at_once()
            && cost <= limit.terms().capacity
    }

    #[inline]
    pub(crate) fn key_id(&self, terms: &Terms, key: &(impl Key + ?Sized)) -> KeyId {
        self.local.key_id(terms, key)
    }

    /// Awaits what `work` creates. Requests to a shared store need a runtime: outside of one, the work enters that of
    /// the background thread. `work` is a closure, so that its future is created where it is kept.
    pub(crate) async fn run<F>(self: Arc<Self>, work: impl FnOnce() -> F + Send) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let work = work();
        if self.shared.is_none() || is_in_runtime() {
            return work.await;
        }
        match self.background.enter(Box::pin(work)).await {
            Ok(result) => result,
            // The thread cannot start, so the work fails.
            Err(work) => work.await,
        }
    }

    /// Returns the answer to a request of a caller, as [`run`](Self::run) does. `request` receives this backend.
    pub(crate) fn answer<T: Send + 'static, F>(
        self: &Arc<Self>,
        request: impl FnOnce(Arc<Self>) -> F + Send + 'static,
    ) -> Answer<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (is_shared, backend) = (self.shared.is_some(), Arc::clone(self));
        Box::pin(Arc::clone(self).run(move || async move {
            // The thread could not start, and timers panic without a runtime.
            if is_shared && !is_in_runtime() {
                return Err(ended());
            }
            request(backend).await
        }))
    }

    /// Returns a rejection of the shared store that still holds for a charge.
    pub(crate) fn cached_rejection(&self, charge: &Charge) -> Option<Reply> {
        if charge.cost != 1 {
            return None;
        }
        self.notices.rejections.get(&charge.terms, charge.key_id, self.clock().local())
    }

    /// Executes a request on the embedded store. The caller knows that [no other store](Self::is_shared) decides it.
    pub(crate) fn execute_here(&self, calls: &Calls) -> Reply {
        self.local.apply(calls, Source::Embedded)
    }

    /// Executes a request. If the shared store fails, applies the `on_error` of the policy.
    pub(crate) async fn execute(&self, policy: Policy, calls: &Calls) -> Result<Reply, StoreError> {
        let result = self.try_execute(policy, calls).await;
        result.or_else(|error| self.fall_back(policy, calls, error))
    }

    /// Executes a request, and records what the shared store replies. If it fails, the caller may
    /// [fall back](Self::fall_back).
    pub(crate) async fn try_execute(
        &self,
        policy: Policy,
        calls: &Calls,
    ) -> Result<Reply, StoreError> {
        let (Some(shared), Some(owner)) = (self.shared_for(policy.scope), &self.owner) else {
            return Ok(self.execute_here(calls));
        };
        if let Some(rejection) = self.blocked_here(owner, calls) {
            return Ok(rejection);
        }
        let stamp = self.notices.rejections.stamp(self.clock().local());
        let has_slots = calls.charges.iter().any(|charge| charge.statement.is_some());
        let give_back = |charge, charged| owner.give_back(charge, charged);
        let mut result = match calls.op {
            Op::ACQUIRE if has_slots => self.in_time(owner.take(calls.clone())).await,
            _ if has_slots => shared.execute(&owner.peek(calls), &give_back).await,
            _ => shared.execute(calls, &give_back).await,
        };
        if let Ok(reply) = &mut result
            && has_slots
        {
            // The ends of calls in flight are unknown.
            let charges = calls.charges.iter().cycle();
            for (outcome, charge) in reply.outcomes.iter_mut().zip(charges) {
                if charge.terms.is_in_flight() && outcome.retry_us == 0 {
                    outcome.reset_us = 0;
                }
            }
        }
        // A rejection of several limits may hold for one of them only.
        if let Ok(reply) = &result
            && !matches!(calls.op, Op::Peek | Op::Measure)
            && let (Some(charge), [outcome]) = (calls.only_charge(), &reply.outcomes[..])
            && !charge.terms.is_in_flight()
        {
            let now = self.clock().local();
            self.notices.rejections.record(&charge, stamp, now, outcome, reply.source);
        }
        let name = calls.charges.first().map_or("", |charge| charge.terms.identity.name);
        // The reply can hold slots.
        foreign(|| self.record_outage(name, self.on_error(policy), &result));
        result
    }

    /// Returns the rejection of a call of a key that this process has blocked while the shared store does not know it.
    fn blocked_here(&self, owner: &Owner, calls: &Calls) -> Option<Reply> {
        if !calls.op.is_take() {
            return None;
        }
        let (charges, now) = (&calls.charges, self.clock().steady());
        let blocked = |charge: &Arc<Charge>| {
            let wait = owner.blocked_until(charge.key_id)?.checked_sub(now).filter(|it| *it > 0)?;
            let verdict = Verdict::Blocked { also_limited: false };
            Some(Outcome { verdict, retry_us: wait, reset_us: wait, ..Outcome::UNDECIDED })
        };
        charges.iter().find_map(blocked)?;
        let outcomes = charges.iter().map(|it| blocked(it).unwrap_or(Outcome::UNDECIDED));
        Some(Reply::new(outcomes.collect(), Source::Cache))
    }

    /// Applies the `on_error` of the policy to a request that failed.
    pub(crate) fn fall_back(
        &self,
        policy: Policy,
        calls: &Calls,
        error: StoreError,
    ) -> Result<Reply, StoreError> {
        match self.on_error(policy) {
            OnError::Local => Ok(self.apply_share(calls)),
            OnError::Allow => {
                let outcomes = calls.charges.iter().map(|_| Outcome::UNDECIDED).collect();
                Ok(Reply::new(outcomes, Source::Fallback))
            }
            OnError::Deny => Err(error),
        }
    }

    /// Succeeds if the store would decide now.
    pub(crate) fn ping(self: &Arc<Self>) -> Answer<()> {
        let Some(shared) = self.shared.clone() else { return Box::pin(ready(Ok(()))) };
        self.answer(|_| async move { shared.ping().await })
    }

    /// Executes a request on the embedded store, under the share of this process.
    pub(crate) fn apply_share(&self, calls: &Calls) -> Reply {
        self.local.apply(&calls.share(self.settings.instances), Source::Fallback)
    }

    pub(crate) fn on_error(&self, policy: Policy) -> OnError {
        policy.on_error.unwrap_or(self.settings.on_error)
    }

    #[inline]
    fn shared_for(&self, scope: Scope) -> Option<&SharedStore> {
        self.shared.as_ref().filter(|_| scope == Scope::Global)
    }
}

/// A count, and the units that a call takes from it. Borrows the key.
pub(crate) struct ChargedCount<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) key: &'a dyn Key,
    pub(crate) charge: Charge,
}

/// The counts of a call, each with what all parts of the call take from it.
pub(crate) struct MergedCounts<'a> {
    pub(crate) counts: OneOrMany<ChargedCount<'a>>,
    /// The index of the count of each part. Empty if there is one part.
    pub(crate) count_of: Vec<usize>,
}

impl Backend {
    /// Returns the count of `key`, with a charge of `cost` units, under the terms that [`counted`](Self::counted)
    /// returns.
    pub(crate) fn count<'a>(
        &self,
        limit: &'a Limit,
        key: &'a dyn Key,
        cost: u64,
    ) -> ChargedCount<'a> {
        ChargedCount::under(self.counted(limit), limit, key, cost, self)
    }

    /// Returns the terms under which the store counts a call: those of leases, unless the limit leases nothing or is a
    /// bucket that leases busy keys only.
    pub(crate) fn counted(&self, limit: &Limit) -> Terms {
        if self.leases(limit) { limit.counted_beside_leases() } else { *limit.terms() }
    }
}

impl<'a> ChargedCount<'a> {
    /// Returns the count of `key` under `terms`, which are those of the limit or of its leases.
    pub(crate) fn under(
        terms: Terms,
        limit: &'a Limit,
        key: &'a dyn Key,
        cost: u64,
        backend: &Backend,
    ) -> Self {
        let key_id = backend.key_id(&terms, key);
        let charge = Charge { key_id, terms, count_name: Vec::new(), cost, statement: None };
        Self { limit, key, charge }
    }

    /// Returns the id of the count under the terms of the limit.
    fn unleased_id(&self) -> KeyId {
        self.charge.key_id.under(&self.charge.terms.identity, &self.limit.terms().identity)
    }

    /// Returns the charge for a request. If the shared store decides the call, the charge has the name of the count
    /// there, and what this process holds of calls in flight.
    pub(crate) fn address(self, backend: &Backend) -> Arc<Charge> {
        let Self { limit, key, mut charge } = self;
        if let Some(shared) = backend.shared_for(limit.policy().scope) {
            charge.count_name = shared.count_name(&charge.terms, key);
            if charge.terms.is_in_flight() {
                let hold_us = limit.policy().hold.unwrap_or_default().as_micros() as u64;
                charge.statement = Some(Statement { hold_us, ..Statement::default() });
            }
        }
        Arc::new(charge)
    }
}

impl<'a> MergedCounts<'a> {
    /// Returns the counts of a call with these parts. Adds up the costs of parts that have one limit and one key. If
    /// two different limits share a count, also without their leases, returns one of them.
    pub(crate) fn of(parts: &mut dyn Iterator<Item = ChargedCount<'a>>) -> Result<Self, &'a Limit> {
        let several = match (parts.next(), parts.next()) {
            // Nothing is allocated for the usual call.
            (Some(only), None) => {
                return Ok(Self { counts: OneOrMany::from([only]), count_of: Vec::new() });
            }
            (first, second) => first.into_iter().chain(second).chain(parts),
        };
        let (mut counts, mut count_of) = (Vec::<ChargedCount<'a>>::new(), Vec::new());
        for part in several {
            let known = counts.iter().position(|other| {
                other.charge.key_id == part.charge.key_id
                    || other.unleased_id() == part.unleased_id()
            });
            count_of.push(known.unwrap_or(counts.len()));
            match known.map(|index| &mut counts[index]) {
                None => counts.push(part),
                Some(known) if known.limit == part.limit => {
                    known.charge.cost = known.charge.cost.saturating_add(part.charge.cost);
                }
                Some(known) => return Err(known.limit),
            }
        }
        Ok(Self { counts: counts.into(), count_of })
    }
}

/// The shortest time between two reports of an outage.
const PAUSE: Duration = Duration::from_secs(10);

impl Backend {
    /// Records the result of a request about the limit `name` to the shared store. Reports when the store stops and
    /// starts to decide.
    fn record_outage<T>(&self, name: &str, on_error: OnError, result: &Result<T, StoreError>) {
        let reported = self.outage_reported.load(Relaxed);
        if reported == 0 && result.is_ok() {
            return;
        }
        let now = self.clock().local();
        if reported > 0 && now.saturating_sub(reported) < PAUSE.as_micros() as u64 {
            return;
        }
        let next = if result.is_ok() { 0 } else { now.max(1) };
        if self.outage_reported.compare_exchange(reported, next, Relaxed, Relaxed).is_err() {
            return;
        }
        match result {
            Err(error) => report::outage(name, on_error, error),
            Ok(_) => report::outage_ended(),
        }
    }

    /// Counts a call that was rejected at `at`, by the clock of this process. `key_id` is the id of its key under the
    /// identity of `limit`. Few calls of a flood call `key`.
    #[inline]
    pub(crate) fn count_rejection(
        &self,
        limit: &Limit,
        key_id: KeyId,
        at: u64,
        key: impl FnOnce() -> OwnedKey,
    ) {
        // Most calls of a flood end here, with few instructions (`benches/all -- embedded`).
        if let Some(calls) = self.rejected_keys.weight(at) {
            self.rejected_keys.count(limit, key_id, at, calls, || {
                self.settings.reports.logged(limit.terms(), key_id, || key().to_string())
            });
        }
    }

    /// Reports a charge that was admitted, if it reaches the percentage of [`Limit::notify_at`].
    pub(crate) fn notify(
        &self,
        policy: Policy,
        charge: &Charge,
        outcome: &Outcome,
        key: impl FnOnce() -> OwnedKey,
    ) {
        let Some(percent) = policy.notify_at else { return };
        let Charge { terms, key_id, cost, .. } = charge;
        let used = terms.capacity.saturating_sub(outcome.remaining);
        let reached = (terms.capacity * u64::from(percent)).div_ceil(100);
        if used.saturating_sub(*cost) < reached && reached <= used {
            let key = self.settings.reports.logged(terms, *key_id, || key().to_string());
            // The reply can hold leased units.
            foreign(|| report::notify(terms, &key, percent, used));
        }
    }

    /// Returns the keys with the most rejected calls.
    pub(crate) fn rejected_keys(&self, most: usize) -> Vec<RejectedKey> {
        self.rejected_keys.most(most, self.clock().local())
    }
}
