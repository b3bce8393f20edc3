//! A line within this process: only the first in it asks the store; it sleeps as long as it is told
//! and asks again. The others are asleep until it is their turn. Nothing is charged before it is
//! admitted, so a waiter that gives up has taken nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{InFlight, Wanted, before, lock};
use crate::decision::Decision;
use crate::limit::{Algorithm, Limit};
use crate::limiter::RateLimiter;
use crate::question::Finding;
use crate::rejection::Rejection;

/// The lines of a limiter, by what is waited for. A line exists while somebody is in it.
#[derive(Default)]
pub(super) struct Lines {
    lines: Mutex<HashMap<u128, Arc<Line>>>,
}

#[derive(Default)]
struct Line {
    /// Held by the first; the mutex is fair.
    turn: tokio::sync::Mutex<()>,
    ahead: Mutex<Ahead>,
}

#[derive(Default)]
struct Ahead {
    waiters: usize,
    /// What all in the line want together.
    units: u64,
    /// When the first expects to be admitted; nothing when it is not waiting.
    first: Option<u64>,
}

/// Waits in line, and then for the store.
pub(super) async fn admitted(wanted: &Wanted, limit: &Limit, cost: u32, deadline: u64) -> Finding {
    let clock = wanted.clock();
    let mut place = Place::join(&wanted.limiter, wanted.place, cost);
    if place.earliest(limit) > deadline {
        return refused(wanted, place.earliest(limit), clock.local()).await;
    }
    let line = Arc::clone(&place.line);
    let Some(_turn) = before(clock.sleep_until(deadline), line.turn.lock()).await else {
        return refused(wanted, place.earliest(limit), clock.local()).await;
    };
    loop {
        let asked = clock.local();
        let undo = {
            let wanted = wanted.clone();
            async move |answer: Finding| {
                if let Ok(verdict) = answer {
                    wanted.refund(verdict.decision.source).await;
                }
            }
        };
        let answer = InFlight::new(wanted.ask(), undo).await;
        let Err(Rejection::Limited { decision, .. }) = &answer else { return answer };
        let retry = decision.retry_after.as_micros() as u64;
        if asked.saturating_add(retry) > deadline {
            return answer;
        }
        // The answer was true somewhere between `asked` and now: asking too early would be in
        // vain, so it is the later of the two.
        let at = clock.local().saturating_add(retry).min(deadline);
        place.expects(at);
        clock.sleep_until(at).await;
    }
}

/// The rejection of a call that those before it leave no time: the state of its first limit, and
/// the wait until it would be its turn.
async fn refused(wanted: &Wanted, earliest: u64, now: u64) -> Finding {
    let Some((limit, key, cost)) = wanted.parts.first() else { return wanted.ask().await };
    let peek = wanted.limiter.peek(limit, key, *cost).await?;
    let turn = Duration::from_micros(earliest.saturating_sub(now));
    let retry_after = peek.retry_after.max(turn);
    let decision = Decision { allowed: false, retry_after, ..peek };
    Err(Rejection::limited(limit, decision))
}

/// A place in a line, given up on drop.
struct Place<'a> {
    lines: &'a Lines,
    line: Arc<Line>,
    at: u128,
    cost: u32,
    is_first: bool,
}

impl<'a> Place<'a> {
    fn join(limiter: &'a RateLimiter, at: u128, cost: u32) -> Self {
        let lines = &limiter.waiters().lines;
        let mut all = lock(&lines.lines);
        let line = Arc::clone(all.entry(at).or_default());
        let mut ahead = lock(&line.ahead);
        ahead.waiters += 1;
        ahead.units += u64::from(cost);
        drop(ahead);
        // Only now, or the last to leave might not see who comes.
        drop(all);
        Self { lines, line, at, cost, is_first: false }
    }

    /// This is the first in the line, and expects to be admitted `at`.
    fn expects(&mut self, at: u64) {
        self.is_first = true;
        lock(&self.line.ahead).first = Some(at);
    }

    /// When the last in the line can be admitted at the earliest, by what the first was told; 0 if
    /// that is not known.
    fn earliest(&self, limit: &Limit) -> u64 {
        let ahead = lock(&self.line.ahead);
        let Some(at) = ahead.first.filter(|_| ahead.waiters > 1) else { return 0 };
        let (units, threshold) = (ahead.units, u64::from(limit.threshold()));
        // The first takes the last unit there is when it is admitted, or it would not have waited.
        let windows = |whole: u64| units.div_ceil(threshold).saturating_sub(whole);
        let after = match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                // It may be another of its limits that the first waits for.
                let between = u128::from(units.saturating_sub(limit.capacity().into()));
                let after = between * u128::from(limit.rate.token) / u128::from(limit.rate.drain);
                u64::try_from(after).unwrap_or(u64::MAX)
            }
            Algorithm::Sliding => windows(1).saturating_mul(limit.period_us()),
            Algorithm::Fixed | Algorithm::SlidingCounter => {
                windows(2).saturating_mul(limit.period_us())
            }
        };
        at.saturating_add(after)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = lock(&self.lines.lines);
        let mut ahead = lock(&self.line.ahead);
        ahead.waiters -= 1;
        ahead.units -= u64::from(self.cost);
        if self.is_first {
            ahead.first = None;
        }
        if ahead.waiters == 0 {
            lines.remove(&self.at);
        }
    }
}
