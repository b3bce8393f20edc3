//! Obeying a service: while it admits nothing, the key is blocked in the whole fleet; while few requests remain, or
//! after a pause, requests are spread.
//!
//! A request that has passed its limits passes a second one while the service has a pace: a leaky bucket of the key,
//! which all processes share. The pace comes from the newest response: the time to the reset, divided by the requests
//! that remain. This process also sends no more requests than remain. After a pause and after a reset that requests
//! have waited for, and if no response has come while a request waited, nobody knows what the service admits: one
//! request a second then tries it, until one is answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};

use super::service_limits::{RemainingRequests, ServiceLimits};
use crate::clock::before;
use crate::key::{KeyId, OwnedKey};
use crate::limit::{Limit, Name};
use crate::limiter::RateLimiter;
use crate::reply::Rejection;
use crate::threads::{Mutex, lock};

/// The time from one request to the next until one is answered.
const PROBE: Duration = Duration::from_secs(1);

/// How long requests are spread after a pause if none is answered.
const PROBED: Duration = Duration::from_secs(60);

/// A service has few requests left if this part of its limit remains, or as many as twice those that are sent here.
const FEW: u64 = 5;

/// A request that waited for less was not held up, in microseconds.
const HELD_UP: u64 = 10_000;

const DAY: Duration = Duration::from_secs(86_400);

/// How a layer obeys: at most for a time, and what it knows of the services behind keys.
pub(super) struct Obedience {
    pub(super) at_most: Duration,
    paces: Mutex<HashMap<KeyId, Pace>>,
}

/// What this process knows of the service behind a key. Kept while requests are under way or a pace is in force.
struct Pace {
    /// The requests that have begun and not ended, and those of them that were sent.
    under_way: usize,
    sent: u64,
    /// The time from one request to the next, zero without one, and how many requests this process can send. Both are
    /// in force until a time.
    gap: Duration,
    credit: u64,
    until: u64,
    /// Whether that is the end of a pause.
    is_paused: bool,
    /// The number of the newest request that was sent, and of the newest one whose response counts: a response to an
    /// earlier request says what was before, and one to a request before a pause does not end it.
    newest: u64,
    heard: u64,
    /// The number of responses without a pause.
    answered: u64,
    /// Notified when the pace has changed.
    changed: Arc<Notify>,
    /// One permit: the turn of the first request that waits.
    turns: Arc<Semaphore>,
}

/// A request to a service that is obeyed.
pub(super) struct ObeyedRequest {
    obedience: Arc<Obedience>,
    limiter: RateLimiter,
    limit: Limit,
    key: OwnedKey,
    key_id: KeyId,
    arrived: u64,
    answered: u64,
    /// Its number, once it is sent.
    number: Option<u64>,
    changed: Arc<Notify>,
    turns: Arc<Semaphore>,
}

impl Obedience {
    pub(super) fn new(at_most: Duration) -> Arc<Self> {
        Arc::new(Self { at_most, paces: Mutex::default() })
    }

    /// Begins a request that `limit` limits by `key`.
    pub(super) fn begin(
        self: &Arc<Self>,
        limiter: &RateLimiter,
        limit: Limit,
        key: OwnedKey,
    ) -> ObeyedRequest {
        let backend = &limiter.checker().backend;
        let (key_id, arrived) = (backend.key_id(limit.terms(), &key), backend.clock().steady());
        let mut paces = lock(&self.paces);
        if paces.len() == paces.capacity() {
            // Before it grows: those whose services may never be called again.
            paces.retain(|_, pace| pace.under_way > 0 || pace.until > arrived);
        }
        let pace = paces.entry(key_id).or_insert_with(|| Pace {
            under_way: 0,
            sent: 0,
            gap: Duration::ZERO,
            credit: u64::MAX,
            until: 0,
            is_paused: false,
            newest: 0,
            heard: 0,
            answered: 0,
            changed: Arc::default(),
            turns: Arc::new(Semaphore::new(1)),
        });
        pace.under_way += 1;
        let (answered, changed) = (pace.answered, Arc::clone(&pace.changed));
        let turns = Arc::clone(&pace.turns);
        drop(paces);
        let (obedience, limiter) = (Arc::clone(self), limiter.clone());
        ObeyedRequest {
            obedience,
            limiter,
            limit,
            key,
            key_id,
            arrived,
            answered,
            number: None,
            changed,
            turns,
        }
    }
}

impl ObeyedRequest {
    /// Waits until the pace of the service admits this request, which its limits have admitted.
    pub(super) async fn paced(&mut self) -> Result<(), Rejection> {
        let clock = self.limiter.checker().backend.clock().clone();
        let wait = self.limit.policy().wait.unwrap_or_default();
        let (deadline, mut is_held) = (self.arrived.saturating_add(micros(wait)), false);
        // Only the first request that waits asks for the pace; in its order, each follows.
        let turns = Arc::clone(&self.turns);
        let _turn = before(clock.sleep_until_steady(deadline), turns.acquire()).await;
        loop {
            // Receives notifications from now on.
            let (changed, now) = (self.changed.notified(), self.now());
            let turn = self.with_pace(|pace| {
                let waited = now.saturating_sub(self.arrived);
                is_held |= waited >= HELD_UP && pace.answered == self.answered;
                pace.turn(now, is_held)
            });
            let Some((gap, until)) = turn else { break };
            is_held = true;
            let mut next = until;
            if now >= deadline && gap.is_zero() {
                // A key that is blocked rejects it.
                self.limiter.check(&self.limit, &self.key, 0).await?;
            }
            if now >= deadline || !gap.is_zero() {
                let gap = if gap.is_zero() { PROBE } else { gap };
                let Some(limit) = self.limit_of(gap) else { break };
                match self.limiter.check(&limit, &self.key, 1).await {
                    Ok(_) => break,
                    Err(rejection) if now >= deadline => return Err(rejection),
                    Err(rejection) => {
                        let retry = rejection.retry_after().unwrap_or(PROBE);
                        next = until.min(now.saturating_add(micros(retry)));
                    }
                }
            }
            let _ = before(clock.sleep_until_steady(next.min(deadline)), changed).await;
        }
        self.number = Some(self.with_pace(|pace| {
            pace.sent += 1;
            pace.newest += 1;
            pace.newest
        }));
        Ok(())
    }

    /// Obeys the response to this request: blocks the key while the service admits nothing, and sets the pace.
    pub(super) async fn obey(&self, limits: ServiceLimits) {
        let (now, at_most) = (self.now(), self.obedience.at_most);
        if let Some(pause) = limits.pause {
            let pause = pause.min(at_most);
            self.with_pace(|pace| {
                pace.heard = pace.newest;
                let before = if pace.is_paused { pace.until } else { 0 };
                pace.set(Duration::ZERO, 0, before.max(now + micros(pause)));
                pace.is_paused = true;
            });
            // Without Redis, the block holds for this process.
            let _ = self.limiter.block(&self.limit, &self.key, pause).await;
            return;
        }
        self.with_pace(|pace| {
            let Some(number) = self.number.filter(|number| *number > pace.heard) else { return };
            pace.heard = number;
            pace.answered += 1;
            let Some(requests) = limits.requests else {
                return pace.set(Duration::ZERO, u64::MAX, now + micros(PROBED));
            };
            let RemainingRequests { remaining, limit, reset } = requests;
            let is_few = remaining <= (limit.unwrap_or(0) / FEW).max(2 * pace.sent);
            let gap = if is_few { rounded(requests.gap()) } else { Duration::ZERO };
            // Without those that are under way; this one is answered.
            let credit = remaining.saturating_sub(pace.sent - 1);
            pace.set(gap, credit, now + micros(reset.min(at_most)));
        });
    }

    /// Returns the limit of requests with this time between them.
    fn limit_of(&self, gap: Duration) -> Option<Limit> {
        let (policy, name) = (self.limit.policy(), format!("{} pace", self.limit.name()));
        let a_day = (DAY.as_nanos() / gap.as_nanos().max(1)).clamp(1, DAY.as_micros()) as u64;
        let pace = Limit::leaky_bucket(Name::kept(&name).ok()?.as_str(), a_day, DAY);
        let pace = pace.scope(policy.scope).hidden(true);
        Some(policy.on_error.map_or(pace, |on_error| pace.on_error(on_error)))
    }

    fn with_pace<T>(&self, change: impl FnOnce(&mut Pace) -> T) -> T {
        let mut paces = lock(&self.obedience.paces);
        // It is there while the request is.
        change(paces.get_mut(&self.key_id).expect("the pace of a request under way"))
    }

    fn now(&self) -> u64 {
        self.limiter.checker().backend.clock().steady()
    }
}

impl Drop for ObeyedRequest {
    fn drop(&mut self) {
        let (now, mut paces) = (self.now(), lock(&self.obedience.paces));
        if let Some(pace) = paces.get_mut(&self.key_id) {
            pace.under_way -= 1;
            pace.sent -= u64::from(self.number.is_some());
            if pace.under_way == 0 && pace.until <= now {
                paces.remove(&self.key_id);
            }
        }
    }
}

impl Pace {
    /// Returns the time from one request to the next, or zero if the credit is spent, and until when this holds; `None`
    /// if a request may be sent now. `is_held` says whether it has waited for that.
    fn turn(&mut self, now: u64, is_held: bool) -> Option<(Duration, u64)> {
        if self.until <= now {
            (self.gap, self.credit) = (Duration::ZERO, u64::MAX);
            if is_held || self.is_paused {
                (self.gap, self.until, self.is_paused) = (PROBE, now + micros(PROBED), false);
            }
        }
        if self.gap.is_zero() && self.credit > 0 {
            self.credit -= 1;
            return None;
        }
        Some((self.gap, self.until))
    }

    /// Sets the pace, and tells the requests that wait if it has changed, or if they wait for credit.
    fn set(&mut self, gap: Duration, credit: u64, until: u64) {
        let has_changed = gap != self.gap || gap.is_zero();
        (self.gap, self.credit, self.until, self.is_paused) = (gap, credit, until, false);
        if has_changed {
            self.changed.notify_waiters();
        }
    }
}

/// Rounds a time down by less than a quarter, so that responses seldom change the pace.
fn rounded(gap: Duration) -> Duration {
    let micros = (gap.as_micros() as u64).max(1);
    let step = 1 << micros.ilog2().saturating_sub(2);
    Duration::from_micros(micros - micros % step)
}

/// Returns the microseconds of a time, a century at most: added to a clock, it does not overflow.
fn micros(time: Duration) -> u64 {
    time.min(36_525 * DAY).as_micros() as u64
}
