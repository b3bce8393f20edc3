//! The lines of a process. Only the first call in a line sends requests: it sleeps for the `retry_after` of the
//! reply, and then sends the next request. The other calls sleep until it is their turn. A waiting call is charged
//! only when it is admitted, so a call that is dropped has taken nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::{UndoOnDrop, WaitingCall, lock};
use crate::algorithm::Op;
use crate::clock::before;
use crate::key::KeyId;
use crate::limit::{Algorithm, Terms};
use crate::reply::StoreError;
use crate::store::{OneOrMany, Reply, Request};

/// The lines of a limiter. A line exists while a call is in it.
#[derive(Default)]
pub(super) struct Lines {
    lines: Mutex<HashMap<KeyId, Arc<Line>>>,
}

#[derive(Default)]
struct Line {
    /// Locked by the first call. The mutex is fair: it is locked in the order in which the calls came.
    turn: tokio::sync::Mutex<()>,
    state: Mutex<LineState>,
}

#[derive(Default)]
struct LineState {
    waiters: usize,
    /// The sum of the costs of the calls in the line.
    units: u64,
    /// The time at which the first call expects to be admitted; `None` if that is not known.
    first: Option<u64>,
}

/// Waits for the turn of a call, and then until the store admits it.
pub(super) async fn admit(call: &WaitingCall, deadline: u64) -> Result<Reply, StoreError> {
    let clock = call.clock();
    let mut position = LinePosition::enter(call);
    if position.earliest() > deadline {
        return reject(call, position.earliest()).await;
    }
    let line = Arc::clone(&position.line);
    let Some(_turn) = before(clock.sleep_until_local(deadline), line.turn.lock()).await else {
        return reject(call, position.earliest()).await;
    };
    loop {
        let sent = clock.local();
        let undo = {
            let call = call.clone();
            async move |reply: Result<Reply, StoreError>| {
                if let Ok(reply) = reply
                    && reply.is_allowed()
                {
                    call.refund(reply.source).await;
                }
            }
        };
        let request = Request::Apply(Op::Decide, call.charges.clone());
        let reply = UndoOnDrop::new(call.clone().execute(request), undo).await?;
        if reply.is_allowed() {
            return Ok(reply);
        }
        let retry = reply.outcomes.iter().map(|outcome| outcome.retry_us).max().unwrap_or(0);
        if sent.saturating_add(retry) > deadline {
            return Ok(reply);
        }
        // The store decided between `sent` and now. Counts from now, because a request that comes too early is
        // rejected again.
        let at = clock.local().saturating_add(retry).min(deadline);
        position.expect_at(at);
        clock.sleep_until_local(at).await;
    }
}

/// Rejects a call whose turn comes too late. Returns the state of its counts, and at least the wait until its turn.
async fn reject(call: &WaitingCall, earliest: u64) -> Result<Reply, StoreError> {
    let turn = earliest.saturating_sub(call.clock().local());
    let request = Request::Apply(Op::Peek, call.charges.clone());
    let reply = call.clone().execute(request).await?;
    let mut outcomes = reply.outcomes.to_vec();
    if let Some(first) = outcomes.first_mut() {
        first.allowed = false;
        first.retry_us = first.retry_us.max(turn);
    }
    Ok(Reply { outcomes: OneOrMany::from(outcomes), ..reply })
}

/// A position in a line. Dropping it leaves the line.
struct LinePosition<'a> {
    call: &'a WaitingCall,
    line: Arc<Line>,
    cost: u32,
    is_first: bool,
}

impl<'a> LinePosition<'a> {
    fn enter(call: &'a WaitingCall) -> Self {
        let cost = call.charges.first().map_or(0, |charge| charge.cost);
        let mut lines = lock(&call.waiting.lines.lines);
        let line = Arc::clone(lines.entry(call.key_id).or_default());
        let mut state = lock(&line.state);
        state.waiters += 1;
        state.units += u64::from(cost);
        drop(state);
        // Unlocked last, so that another call that leaves the line observes this call.
        drop(lines);
        Self { call, line, cost, is_first: false }
    }

    /// Records that this call is the first, and expects to be admitted at the time `at`.
    fn expect_at(&mut self, at: u64) {
        self.is_first = true;
        lock(&self.line.state).first = Some(at);
    }

    /// Returns the earliest time at which the last call in the line can be admitted; 0 if that is not known.
    fn earliest(&self) -> u64 {
        let state = lock(&self.line.state);
        let Some(at) = state.first.filter(|_| state.waiters > 1) else { return 0 };
        let rest = self.call.charges.first();
        at.saturating_add(rest.map_or(0, |charge| least_time(&charge.terms, state.units)))
    }
}

/// Returns the shortest time between the first and the last admission of a line whose calls take `units` units in
/// total.
fn least_time(terms: &Terms, units: u64) -> u64 {
    let threshold = u64::from(terms.threshold());
    // When the first call is admitted, it takes the last free unit: otherwise it would not have waited.
    let windows = |whole: u64| {
        units.div_ceil(threshold).saturating_sub(whole).saturating_mul(terms.period_us())
    };
    match terms.algorithm() {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            // The bucket can be full when the first call is admitted, because that call may wait for another limit.
            let missing = u128::from(units.saturating_sub(terms.capacity().into()));
            let refill = missing * u128::from(terms.rate().token) / u128::from(terms.rate().drain);
            u64::try_from(refill).unwrap_or(u64::MAX)
        }
        Algorithm::Sliding => windows(1),
        Algorithm::Fixed | Algorithm::SlidingCounter => windows(2),
    }
}

impl Drop for LinePosition<'_> {
    fn drop(&mut self) {
        let mut lines = lock(&self.call.waiting.lines.lines);
        let mut state = lock(&self.line.state);
        state.waiters -= 1;
        state.units -= u64::from(self.cost);
        if self.is_first {
            state.first = None;
        }
        if state.waiters == 0 {
            lines.remove(&self.call.key_id);
        }
    }
}
