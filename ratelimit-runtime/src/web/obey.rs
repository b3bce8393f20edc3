//! Obeying a service: while it admits nothing, the key is blocked in the whole fleet; while few requests remain, or
//! after a pause, requests are spread.
//!
//! A request that has passed its limits passes a second one while the service has a pace: a leaky bucket of the key,
//! which all processes share. The pace comes from the newest response: the time to the reset, divided by the requests
//! that remain. This process also sends no more requests than remain.
//!
//! After a pause, the fleet does not know what the service admits. It sends one request a second until the service has
//! answered one of them. The same holds after a reset if requests have waited for it, and if no response comes while a
//! request waits.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};

use super::service_limits::{RemainingRequests, ServiceLimits};
use crate::clock::before;
use crate::key::{KeyId, OwnedKey};
use crate::limit::Limit;
use crate::limiter::{self, RateLimiter};
use crate::reply::Rejection;
use crate::threads::{Mutex, lock};

/// The time from one request to the next until one is answered.
const PROBE: Duration = Duration::from_secs(1);

/// How long requests are spread after a pause if none is answered.
const PROBED: Duration = Duration::from_secs(60);

const DAY: Duration = Duration::from_secs(86_400);

/// How a layer obeys: at most for a time, and what it knows of the services behind keys.
pub(super) struct Obedience {
    pub(super) at_most: Duration,
    services: Mutex<HashMap<KeyId, Arc<ObeyedService>>>,
}

/// The service behind a key. Kept while requests are under way or a pace is in force.
struct ObeyedService {
    pace: Mutex<Pace>,
    /// Notified when the pace has changed.
    changed: Notify,
    /// The requests that are held. The first of them has its permit.
    queue: Semaphore,
}

/// What this process knows of a service.
#[derive(Default)]
struct Pace {
    /// The requests under way that were sent.
    sent: u64,
    /// The time from one request to the next, zero without one, and how many requests this process can send; `None` for
    /// any number. Both are in force until a time.
    gap: Duration,
    credit: Option<u64>,
    until: u64,
    /// Whether that is the end of a pause, whether the key is not blocked for it yet, and the number of pauses so far.
    is_paused: bool,
    is_blocking: bool,
    pauses: u64,
    /// The number of the newest request that was sent, and of the newest one whose response counts: a response to an
    /// earlier request says what was before, and one to a request before a pause does not end it.
    newest: u64,
    heard: u64,
    has_changed: bool,
}

/// Why a request is held until a time: one request is sent in each gap, or none.
type HeldBy = (Option<Duration>, u64);

/// A request to a service that is obeyed.
pub(super) struct ObeyedRequest {
    at_most: Duration,
    service: Arc<ObeyedService>,
    limiter: RateLimiter,
    limit: Limit,
    key: OwnedKey,
    arrived: u64,
    /// The number of the newest request whose response counted when this one arrived.
    heard: u64,
    /// Its number, once it is sent.
    number: Option<u64>,
}

impl Obedience {
    pub(super) fn new(at_most: Duration) -> Arc<Self> {
        Arc::new(Self { at_most, services: Mutex::default() })
    }

    /// Begins a request that `limit` limits by `key`; `None` if there is no limiter. Without `given`, uses the current
    /// one.
    pub(super) fn begin(
        &self,
        given: Option<&RateLimiter>,
        limit: Limit,
        key: OwnedKey,
    ) -> Option<ObeyedRequest> {
        let scope = || limit.policy().scope;
        let limiter = limiter::with_current(given, scope, |it| Some(it.clone()), |_| None)?;
        let backend = &limiter.checker().backend;
        let (key_id, arrived) = (backend.key_id(limit.terms(), &key), backend.clock().steady());
        let mut services = lock(&self.services);
        if services.len() == services.capacity() && !services.contains_key(&key_id) {
            // Before it grows: those whose services may never be called again.
            services.retain(|_, service| service.is_known_at(arrived));
        }
        let service = services.entry(key_id).or_default();
        if !service.is_known_at(arrived) {
            *service = Arc::default();
        }
        let service = Arc::clone(service);
        let heard = lock(&service.pace).heard;
        let (at_most, number) = (self.at_most, None);
        Some(ObeyedRequest { at_most, service, limiter, limit, key, arrived, heard, number })
    }
}

impl ObeyedService {
    /// Returns whether something is known of the service: requests are under way, a pace is in force, or a pause has
    /// just ended.
    fn is_known_at(self: &Arc<Self>, now: u64) -> bool {
        let pace = lock(&self.pace);
        let probed = if pace.is_paused { micros(PROBED) } else { 0 };
        Arc::strong_count(self) > 1 || pace.until.saturating_add(probed) > now
    }
}

impl Default for ObeyedService {
    fn default() -> Self {
        Self { pace: Mutex::default(), changed: Notify::new(), queue: Semaphore::new(1) }
    }
}

impl ObeyedRequest {
    /// Waits until the pace of the service admits this request, which its limits have admitted.
    pub(super) async fn paced(&mut self) -> Result<(), Rejection> {
        let (now, entered) = (self.now(), self.with_pace(|pace| pace.pauses));
        let waited = now.saturating_sub(self.arrived);
        let is_first = self.service.queue.available_permits() > 0;
        self.number = self.with_pace(|pace| {
            // Nothing was heard of the service meanwhile: another process may have paused for it.
            if waited >= micros(PROBE)
                && pace.until <= now
                && (pace.sent, pace.heard) == (0, self.heard)
            {
                pace.probe(now);
            }
            let is_next = is_first || pace.is_open_for(entered);
            is_next.then(|| pace.send(now, entered, false).ok()).flatten()
        });
        if self.number.is_none() {
            self.number = Some(self.hold(entered).await?);
        }
        Ok(())
    }

    /// Waits as long as a call of its limit may wait. Only the first request that is held asks for the pace; the others
    /// follow in their order. `entered` is the number of pauses before it. Returns its number.
    async fn hold(&self, entered: u64) -> Result<u64, Rejection> {
        let wait = self.limit.policy().wait.unwrap_or_default();
        let deadline = self.arrived.saturating_add(micros(wait));
        let rest = |now: u64, until: u64| Duration::from_micros(until.saturating_sub(now));
        let place = self.limiter.pause(rest(self.now(), deadline));
        let _place = before(place, self.service.queue.acquire()).await;
        loop {
            // Receives notifications from now on.
            let (changed, now) = (self.service.changed.notified(), self.now());
            let (gap, until) = match self.with_pace(|pace| pace.send(now, entered, true)) {
                Ok(number) => return Ok(number),
                Err((gap, until)) => (gap.or((now >= deadline).then_some(PROBE)), until),
            };
            let mut next = until;
            if let Some(gap) = gap {
                match self.ask(gap).await {
                    Ok(()) => return Ok(self.with_pace(Pace::sent_one)),
                    Err(rejection) if now >= deadline => return Err(rejection),
                    Err(Rejection::Blocked { decision, .. }) => {
                        self.pause(decision.retry_after);
                        continue;
                    }
                    Err(rejection) => {
                        let retry = rejection.retry_after().unwrap_or(PROBE);
                        next = until.min(now.saturating_add(micros(retry)));
                    }
                }
            }
            let pause = self.limiter.pause(rest(now, next.min(deadline)));
            let _ = before(pause, changed).await;
        }
    }

    /// Asks for the pace. A key that was blocked since the limits have admitted this request rejects it.
    async fn ask(&self, gap: Duration) -> Result<(), Rejection> {
        let limit = self.limit.wait(Duration::ZERO);
        if let Err(rejection @ Rejection::Blocked { .. }) =
            self.limiter.check(&limit, &self.key, 0).await
        {
            return Err(rejection);
        }
        self.limiter.check(&self.limit_of(gap), &self.key, 1).await.map(drop)
    }

    /// Learns from a rejection of this request whether the key was blocked by which the service counts.
    pub(super) fn rejected(&self, rejection: &Rejection) {
        if let Rejection::Blocked { name, decision, .. } = rejection
            && *name == self.limit.terms().identity.name
        {
            self.pause(decision.retry_after);
        }
    }

    fn pause(&self, pause: Duration) {
        let (now, pause) = (self.now(), pause.min(self.at_most));
        self.with_pace(|pace| {
            pace.heard = pace.newest;
            let before = if pace.is_paused { pace.until } else { 0 };
            pace.set(Duration::ZERO, Some(0), before.max(now + micros(pause)));
            (pace.is_paused, pace.pauses) = (true, pace.pauses + 1);
        });
    }

    /// Obeys the response to this request: blocks the key while the service admits nothing, and sets the pace.
    pub(super) async fn obey(&self, limits: ServiceLimits) {
        let (now, at_most) = (self.now(), self.at_most);
        if let Some(pause) = limits.pause {
            self.pause(pause);
            self.with_pace(|pace| pace.is_blocking = true);
            // Without Redis, the block holds for this process.
            let _ = self.limiter.block(&self.limit, &self.key, pause.min(at_most)).await;
            // Requests that came meanwhile have found a key that was not blocked yet.
            return self.with_pace(|pace| {
                pace.is_blocking = false;
                pace.pauses += 1;
            });
        }
        self.with_pace(|pace| {
            let Some(number) = self.number.filter(|number| *number > pace.heard) else { return };
            pace.heard = number;
            let Some(requests) = limits.requests else {
                return pace.set(Duration::ZERO, None, now + micros(PROBED));
            };
            let RemainingRequests { remaining, reset, .. } = requests;
            // The service has not counted the other requests under way yet.
            let credit = remaining.saturating_sub(pace.sent - 1);
            let is_few = requests.is_scarce() || remaining <= 2 * pace.sent;
            let spread = RemainingRequests { remaining: credit, ..requests };
            let gap = if is_few { spread.gap() } else { Duration::ZERO };
            pace.set(gap, Some(credit), now + micros(reset.min(at_most)));
        });
    }

    /// Returns the limit of requests with this time between them.
    fn limit_of(&self, gap: Duration) -> Limit {
        let policy = self.limit.policy();
        let name = Limit::kept_name(&format!("{} pace", self.limit.name()));
        // A process makes few names. Its limit has another algorithm or period, so it has another count.
        let name = name.unwrap_or(self.limit.terms().identity.name);
        let a_day = (DAY.as_nanos() / gap.as_nanos().max(1)).clamp(1, DAY.as_micros()) as u64;
        let pace = Limit::leaky_bucket(name, a_day, DAY).scope(policy.scope).hidden(true);
        policy.on_error.map_or(pace, |on_error| pace.on_error(on_error))
    }

    /// Changes the pace, and tells the requests that wait.
    fn with_pace<T>(&self, change: impl FnOnce(&mut Pace) -> T) -> T {
        let mut pace = lock(&self.service.pace);
        let result = change(&mut pace);
        if mem::take(&mut pace.has_changed) {
            self.service.changed.notify_waiters();
        }
        result
    }

    fn now(&self) -> u64 {
        self.limiter.checker().backend.clock().steady()
    }
}

impl Drop for ObeyedRequest {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        self.with_pace(|pace| {
            pace.sent -= 1;
            if number < pace.heard
                && !pace.is_paused
                && let Some(credit) = &mut pace.credit
            {
                // A response to a later request has left it out of the credit.
                *credit += 1;
                pace.has_changed = true;
            }
        });
    }
}

impl Pace {
    /// Sends a request that its limits have admitted after so many pauses, and returns its number, or why it is held.
    /// `is_held` says whether it was held before.
    fn send(&mut self, now: u64, entered: u64, is_held: bool) -> Result<u64, HeldBy> {
        let is_open = self.is_open_for(entered);
        if self.until <= now || is_open {
            let was_in_force = self.credit == Some(0) || !self.gap.is_zero();
            (self.gap, self.credit) = (Duration::ZERO, None);
            if is_held && was_in_force || self.is_paused {
                self.probe(now);
            }
            self.has_changed |= is_open;
        }
        if self.credit == Some(0) {
            Err((None, self.until))
        } else if self.gap.is_zero() {
            Ok(self.sent_one())
        } else {
            Err((Some(self.gap), self.until))
        }
    }

    /// Counts a request that is sent. Returns its number.
    fn sent_one(&mut self) -> u64 {
        self.credit = self.credit.map(|credit| credit.saturating_sub(1));
        (self.sent, self.newest) = (self.sent + 1, self.newest + 1);
        self.newest
    }

    /// Returns whether a request has found a key that is not blocked, after this pause began: the pause is over, or was
    /// ended by hand.
    fn is_open_for(&self, entered: u64) -> bool {
        self.is_paused && !self.is_blocking && self.pauses == entered
    }

    /// Lets one request in each second try the service.
    fn probe(&mut self, now: u64) {
        (self.gap, self.credit, self.until) = (PROBE, None, now + micros(PROBED));
        self.is_paused = false;
    }

    /// Sets the pace, and tells the requests that wait.
    fn set(&mut self, gap: Duration, credit: Option<u64>, until: u64) {
        (self.gap, self.credit, self.until) = (gap, credit, until);
        (self.is_paused, self.is_blocking) = (false, false);
        self.has_changed = true;
    }
}

/// Returns the microseconds of a time, a century at most: added to a clock, it does not overflow.
fn micros(time: Duration) -> u64 {
    time.min(36_525 * DAY).as_micros() as u64
}
