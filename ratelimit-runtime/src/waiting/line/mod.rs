//! A line: the calls of this process that wait for the same counts, in the order of their arrival.
//!
//! A line is a state machine: it reads no clock, sends no request and wakes no task. Its driver does
//! (`waiting/driver.rs`).
//!
//! `waiters.rs` has the calls by their stages. In `calls.rs`, calls enter, get grants, are polled and leave.
//! `requests.rs` makes the requests, applies the replies, and rejects the calls that cannot be admitted in time.
//!
//! A request decides the longest prefix of the line that the store admits. The store charges a call before the call
//! takes its turn: the call holds a [`Grant`]. A bucket also grants moments ahead: up to a second, and to the first
//! call at any distance. A call that leaves the line passes its grant to the next call. If no call can use it, it goes
//! back to the store.
//!
//! A process hands units that its calls release to its own line, so a busy process could keep them for itself. After a
//! second, a line states for how long it has waited, and Redis keeps the next units for the process that has waited for
//! longest (`lua/slots.lua`).

mod calls;
#[cfg(model)]
#[path = "../../../../models/src/lines/mod.rs"]
pub mod model;
mod requests;
mod waiters;

use std::cmp::Reverse;
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

pub(super) use self::requests::Asked;
use self::requests::{LOOK_AGAIN, PAUSE};
pub(super) use self::waiters::Waiter;
use self::waiters::Waiters;
use crate::algorithm::{Charged, Outcome, Reservation, Verdict};
use crate::key::KeyId;
use crate::limit::{Algorithm, Name, Terms};
use crate::one_or_many::OneOrMany;
use crate::reply::Source;
use crate::store::{Charge, Reply};

/// The number of calls of a long line, which an event reports.
const LONG_LINE: usize = 1_000;

#[derive(Default)]
pub(super) struct Line {
    spec: Arc<LineSpec>,
    waiters: Waiters,
    /// The grants of calls that do not use them, before they pass to the calls behind.
    passing: Vec<(u64, Grant)>,
    /// Grants that no call uses. They go back to the store: a moment ahead once no call has a later one.
    spares: Vec<Grant>,
    /// When a call can be admitted that was the first queued one; `None` if the line has not asked since it changed.
    estimate: Option<Estimate>,
    /// When the store has rejected the first call for the first time since it has admitted one, if calls in flight hold
    /// the units; by the clock of the limiter.
    busy_since: Option<u64>,
    last_request: Option<Now>,
    /// Whether the next request must not follow the last one at once.
    pauses: bool,
    last_scan: Option<Instant>,
    is_asking: bool,
    /// The number of pending give-backs.
    returning: usize,
    /// The counts, by index, to which units were given back since the pending request was sent.
    changed_counts: Vec<usize>,
    /// Whether units were given back, or a key was blocked or unblocked, since the last request was sent.
    has_changed: bool,
    /// When a rule of a call ends, by the clock of the limiter.
    changes_at: Option<u64>,
    /// The calls whose waits have ended, but which the next reply may admit.
    overstaying: Vec<u64>,
    /// The time up to which calls were woken at their moments.
    woken: u64,
    wakers: Vec<Waker>,
    /// The number of calls from which the line is reported as long.
    long: usize,
}

/// The line of a call under the rules in force: what all calls of a line have in common.
#[derive(Clone, Default)]
pub(super) struct LineSpec {
    /// The counts. The costs are those of the call, and have no meaning in a line.
    pub(super) counts: OneOrMany<Arc<Charge>>,
    pub(super) is_shared: bool,
    /// Whether rules block the calls, until a time before their waits end. The line then sends no request.
    pub(super) is_blocked: bool,
    /// Whether the clock of the limiter moves only when the program moves it. Real time then says nothing about a
    /// moment.
    pub(super) is_virtual: bool,
    /// How long a grant is valid once its moment has come.
    pub(super) validity: Duration,
    /// When the first rule of a call ends, by the clock of the limiter. A line has a time of its own.
    pub(super) changes_at: Option<u64>,
}

/// The next step of the driver of a line.
pub(super) enum Duty {
    Request(Box<Asked>),
    /// Gives grants back to their stores. The line of a bucket sends no request before this has
    /// [ended](Line::returned).
    Return(Vec<ReturnedGrant>),
    /// Resolves the rules again, because one of them has ended.
    FollowRules,
    /// Sleeps until one of these times, or until the line changes. Without times, no call waits.
    Sleep(WakeTimes),
}

impl LineSpec {
    /// Returns whether calls of both kinds wait in one line: counts and amounts agree.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let same =
            |(a, b): (&Arc<Charge>, &Arc<Charge>)| a.key_id == b.key_id && a.terms == b.terms;
        self.is_shared == other.is_shared
            && self.is_blocked == other.is_blocked
            && self.counts.len() == other.counts.len()
            && self.counts.iter().zip(&other.counts).all(same)
    }

    /// Returns the only count of the line if it is a bucket, which grants moments ahead.
    pub(super) fn bucket(&self) -> Option<KeyId> {
        match &self.counts[..] {
            [only] if only.terms.is_bucket() => Some(only.key_id),
            _ => None,
        }
    }

    /// Returns the name of the first limit.
    pub(super) fn name(&self) -> Name {
        self.counts.first().map_or("", |charge| charge.terms.identity.name)
    }

    fn is_bucket(&self) -> bool {
        self.bucket().is_some()
    }

    fn validity_us(&self) -> u64 {
        u64::try_from(self.validity.as_micros()).unwrap_or(u64::MAX)
    }
}

impl Line {
    pub(super) fn new(spec: Arc<LineSpec>) -> Self {
        Self { spec, long: LONG_LINE, ..Self::default() }
    }

    /// Returns the rejection of the first queued call, if the line has one.
    fn estimate(&self) -> Option<&Estimate> {
        self.estimate.as_ref().filter(|estimate| self.waiters.first() == Some(estimate.of))
    }

    /// Returns whether the line has to be driven now. While a request is pending, the reply drives it.
    pub(super) fn has_duty(&self, now: Now) -> bool {
        // A blocked line waits for the end of a rule.
        !self.is_asking && (!self.is_idle(now) || self.spec.is_blocked)
    }

    /// Returns when the wait of a call ends, its store is late, or a rule ends.
    pub(super) fn first_look(&self) -> Option<u64> {
        self.waiters.looks.first().into_iter().chain(self.changes_at).min()
    }

    /// Returns whether the line has nothing to do before the clock of the limiter moves.
    pub(super) fn is_idle(&self, now: Now) -> bool {
        let is_later = |time: WakeTimes| {
            !time.has_come(now) && time.real.is_none_or(|at| at > now.real + 2 * PAUSE)
        };
        !self.is_asking
            && self.first_look().is_none_or(|at| at > now.local)
            && self.returning == 0
            && !self.has_returns(now)
            && self.request_time(now).is_none_or(is_later)
    }

    /// Returns the number of calls if the line has become long, or twice as long as before.
    pub(super) fn outgrown(&mut self) -> Option<usize> {
        let calls = Some(self.waiters.len()).filter(|calls| *calls >= self.long)?;
        self.long *= 2;
        Some(calls)
    }

    /// Returns whether no call is in the line.
    pub(super) fn is_deserted(&self) -> bool {
        self.waiters.len() == 0
    }

    /// Returns the last moment ahead that a call has.
    fn last_moment(&self, now: Now) -> Option<u64> {
        self.last_ahead(now).map(|(_, grant)| grant.at)
    }

    /// Returns the call with the last moment ahead, and its grant. Only a bucket has moments: the clock can have
    /// stepped back since another grant.
    fn last_ahead(&self, now: Now) -> Option<(u64, &Grant)> {
        let last = self.waiters.granted.last();
        let (_, arrival) = *last.filter(|(at, _)| self.spec.is_bucket() && *at > now.local)?;
        Some((arrival, self.waiters.get(arrival)?.grant()?))
    }

    /// Returns whether grants go back now.
    pub(super) fn has_returns(&self, now: Now) -> bool {
        let last = self.last_moment(now);
        !self.passing.is_empty() || self.spares.iter().any(|grant| grant.returns(last, now))
    }

    fn has_spares(&self) -> bool {
        !(self.passing.is_empty() && self.spares.is_empty())
    }

    /// Returns whether grants are about to go back.
    pub(super) fn is_returning(&self, now: Now) -> bool {
        self.spec.is_bucket() && (self.has_returns(now) || self.returning > 0)
    }

    /// Returns whether units are charged for calls of the line, or may be.
    pub(super) fn holds_units(&self) -> bool {
        !self.waiters.granted.is_empty()
            || self.has_spares()
            || self.returning > 0
            || self.is_asking
    }

    /// Returns what the driver does next. `others_return` says whether other lines of its bucket give moments back.
    pub(super) fn duty(&mut self, others_return: bool, now: Now) -> Duty {
        if self.changes_at.take_if(|at| *at <= now.local).is_some() {
            return Duty::FollowRules;
        }
        self.end_waits(now);
        let mut wake = self.expire(now);
        wake = wake.or_earlier(WakeTimes { local: self.first_look(), real: None });
        self.pass_all_on(now);
        if self.has_returns(now) {
            let last = self.last_moment(now);
            let spares = self.spares.extract_if(.., |grant| grant.returns(last, now)).collect();
            self.returning += 1;
            return Duty::Return(returned(&self.spec.counts, spares));
        }
        // No other spare goes back before its moment.
        let spare = self.spares.iter().map(|grant| grant.at).min();
        wake = wake.or_earlier(WakeTimes { local: spare, real: None });
        // A moment that is about to go back would be before the ones that a request reserves.
        if self.is_asking || self.spec.is_bucket() && self.returning > 0 {
            return Duty::Sleep(wake);
        }
        if others_return {
            // Soon again: they may pass the moments to calls of their own, and give none back.
            let soon = WakeTimes { local: None, real: Some(now.real + PAUSE) };
            return Duty::Sleep(wake.or_earlier(soon));
        }
        match self.request_time(now) {
            Some(time) if time.has_come(now) => {
                let replaced = self.replaced(now);
                if let Some(asked) = self.ask_for(replaced, now) {
                    return Duty::Request(Box::new(asked));
                }
            }
            Some(time) => wake = wake.or_earlier(time),
            None => {}
        }
        let has_calls = !(self.waiters.queued.is_empty() && self.waiters.granted.is_empty());
        let is_over = !has_calls && !self.has_spares();
        Duty::Sleep(if is_over { WakeTimes::default() } else { wake })
    }

    pub(super) fn has_wakers(&self) -> bool {
        !self.wakers.is_empty()
    }

    /// Takes the wakers of the calls that have changed. The driver wakes them once the line is unlocked.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        mem::take(&mut self.wakers)
    }
}

/// The time, by both clocks that a line uses.
#[derive(Clone, Copy, Debug)]
pub(in crate::waiting) struct Now {
    /// By the clock of the limiter: of moments, waits and `retry_after`.
    pub(in crate::waiting) local: u64,
    /// Real time: of grants that are not taken, and of the pauses between requests.
    pub(in crate::waiting) real: Instant,
}

/// The times at which the driver of a line acts next.
#[derive(Clone, Copy, Default, PartialEq)]
pub(in crate::waiting) struct WakeTimes {
    pub(in crate::waiting) local: Option<u64>,
    pub(in crate::waiting) real: Option<Instant>,
}

impl WakeTimes {
    pub(in crate::waiting) fn now() -> Self {
        Self { local: None, real: Some(Instant::now()) }
    }

    fn has_come(self, now: Now) -> bool {
        self.local.is_some_and(|at| at <= now.local) || self.real.is_some_and(|at| at <= now.real)
    }

    pub(in crate::waiting) fn or_earlier(self, other: Self) -> Self {
        let local = self.local.into_iter().chain(other.local).min();
        let real = self.real.into_iter().chain(other.real).min();
        Self { local, real }
    }
}

/// The time until the first look of a line for which Redis keeps units, in microseconds. Each later look takes twice as
/// long, up to [`LOOK_AGAIN`]: units that are released often come soon, and no line asks Redis all the time.
const FIRST_LOOK: u64 = 50_000;

impl Line {
    /// Returns for how long the line has waited for units in flight; 0 for less than a second.
    fn waited(&self, now: u64) -> u64 {
        let waited = self.busy_since.map_or(0, |since| now.saturating_sub(since));
        if waited < LOOK_AGAIN { 0 } else { waited }
    }

    /// Records that a call waits for units in flight. Returns when the line looks again.
    fn next_look(&mut self, now: u64) -> u64 {
        self.busy_since.get_or_insert(now);
        let pause = match self.waited(now) {
            0 => LOOK_AGAIN,
            waited => (waited - LOOK_AGAIN + FIRST_LOOK).min(LOOK_AGAIN),
        };
        now.saturating_add(pause)
    }
}

/// Units that are charged for a call which has not taken its turn yet.
#[derive(Clone, Debug)]
struct Grant {
    costs: OneOrMany<u64>,
    reply: Reply,
    /// The moment from which the call can take its turn, by the clock of the limiter.
    at: u64,
    /// The real time of the moment; on a virtual clock, the time at which the line observed that the moment has come.
    due: Option<Instant>,
    /// By how much `at` is after the moment of the store, because calls with moments of another store are before it.
    shift: u64,
}

/// Units that go back: the store that has charged them, and the charge.
pub(in crate::waiting) type ReturnedGrant = (Source, Arc<Charge>, Charged);

impl Grant {
    /// Returns the moment that a bucket has reserved; `None` if it has admitted the call at once.
    fn reservation(&self) -> Option<Reservation> {
        let outcome = self.reply.outcomes.first().filter(|outcome| outcome.retry_us > 0)?;
        let receipt = *self.reply.receipts.first()?;
        Some(Reservation { receipt, moment: outcome.clock + outcome.retry_us })
    }

    /// Returns whether a grant that no call uses goes back now. `last` is the last moment ahead that a call has: before
    /// that, a bucket would not give all of a moment back.
    fn returns(&self, last: Option<u64>, now: Now) -> bool {
        self.at <= now.local || last.is_none_or(|last| self.at > last)
    }

    /// Returns the reply to a call for which the grant comes too late.
    fn rejection(&self, retry_us: u64) -> Reply {
        let outcomes = self.reply.outcomes.iter().map(|outcome| Outcome {
            verdict: Verdict::Rejected,
            remaining: 0,
            retry_us,
            reset_us: outcome.reset_us.max(retry_us),
            ..*outcome
        });
        Reply::new(outcomes.collect(), self.reply.source)
    }

    /// Returns the reply to the call that takes its turn.
    fn into_reply(mut self) -> Reply {
        for outcome in &mut self.reply.outcomes {
            outcome.reset_us = outcome.reset_us.saturating_sub(outcome.retry_us);
            outcome.retry_us = 0;
        }
        self.reply
    }
}

/// Returns the charges of grants that go back.
fn returned(counts: &[Arc<Charge>], mut grants: Vec<Grant>) -> Vec<ReturnedGrant> {
    // The last charge first: a bucket gives back a moment as a whole while no later one is reserved.
    grants.sort_by_key(|grant| Reverse(grant.reply.receipts.first().map(|receipt| receipt.place)));
    let mut returned: Vec<ReturnedGrant> = Vec::new();
    for grant in grants {
        let reserved = grant.reservation().map(Charged::Reserved);
        let receipts = &grant.reply.receipts;
        for ((charge, cost), receipt) in counts.iter().zip(&grant.costs).zip(receipts) {
            if *cost > 0 {
                let (source, charged) =
                    (grant.reply.source, reserved.unwrap_or(Charged::By(*receipt)));
                // Grants of one request to a window have one receipt, so their units go back together. A fallback has
                // charged each call at most its share.
                let is_same = |(of, to, by): &&mut ReturnedGrant| {
                    source != Source::Fallback
                        && (*of, to.key_id, *by) == (source, charge.key_id, charged)
                };
                match returned.iter_mut().rev().take(counts.len()).find(is_same) {
                    Some((_, to, _)) => *to = to.with_cost(to.cost + *cost),
                    None => returned.push((source, charge.with_cost(*cost), charged)),
                }
            }
        }
    }
    returned
}

/// The rejection of a call that was the first queued one.
#[derive(Debug)]
struct Estimate {
    /// The arrival of the call.
    of: u64,
    /// The time at which the call can be admitted, by the clock of the limiter; the earliest possible one if it is
    /// [busy](Self::is_busy).
    at: u64,
    /// The time of the next request, by the clock of the limiter.
    next: u64,
    costs: OneOrMany<u64>,
    reply: Reply,
    received: u64,
    /// Whether the call needs units that calls in flight hold. Their ends are unknown.
    is_busy: bool,
}

impl Estimate {
    /// Returns the earliest time at which the last of several queued calls can be admitted. `units` has the sums of the
    /// costs of all of them, the first included.
    fn earliest(&self, counts: &[Arc<Charge>], units: &[u128]) -> u64 {
        // The time at which a block ends does not tell how many units the limit has left then.
        let is_only_blocked =
            |outcome: &Outcome| outcome.verdict == Verdict::Blocked { also_limited: false };
        let is_exact = counts.len() == 1 && !self.reply.outcomes.iter().any(is_only_blocked);
        let of = |((charge, units), first): ((&Arc<Charge>, &u128), &u64)| {
            least_time(&charge.terms, *first, *units, is_exact)
        };
        let counts = counts.iter().zip(units).zip(&*self.costs);
        self.at.saturating_add(counts.map(of).max().unwrap_or(0))
    }

    /// Returns the rejection of a queued call that can be admitted after `retry` microseconds at the earliest.
    fn rejection(&self, retry: u64, now: u64) -> Reply {
        let passed = now.saturating_sub(self.received);
        let mut reply = self.reply.clone();
        for outcome in &mut reply.outcomes {
            outcome.retry_us = outcome.retry_us.saturating_sub(passed);
            outcome.reset_us = outcome.reset_us.saturating_sub(passed);
        }
        // The limit that rejects the first call for longest also holds up the calls behind it.
        let rejecting = reply.outcomes.iter_mut().filter(|outcome| !outcome.is_allowed());
        if let Some(outcome) = rejecting.max_by_key(|outcome| outcome.retry_us) {
            // For calls in flight alone, no time is known.
            if outcome.retry_us > 0 || !self.is_busy {
                outcome.retry_us = outcome.retry_us.max(retry);
                outcome.reset_us = outcome.reset_us.max(outcome.retry_us);
            }
        }
        reply
    }
}

/// Returns the shortest time between the first and the last admission of calls that take `units` units in total, of
/// which the first takes `first`. `is_exact` says whether the first call is admitted as soon as this limit admits it.
fn least_time(terms: &Terms, first: u64, units: u128, is_exact: bool) -> u64 {
    // When the first call is admitted, it takes the last free unit: otherwise it would not have waited.
    let windows = |whole: u128| {
        let windows = units.div_ceil(terms.threshold.into()).saturating_sub(whole);
        u64::try_from(windows).unwrap_or(u64::MAX).saturating_mul(terms.period_us())
    };
    match terms.identity.algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            // Otherwise, the bucket may refill while the first call waits for something else.
            let free = if is_exact { first } else { terms.capacity };
            let missing = units.saturating_sub(free.into());
            let rate = terms.rate;
            let units = missing.saturating_mul(rate.token.into());
            let refill = units.div_ceil(rate.drain.into());
            u64::try_from(refill).unwrap_or(u64::MAX)
        }
        Algorithm::Sliding => windows(1),
        // The first call opens a window. If it waits for something else, it may be late in a window.
        Algorithm::Fixed if is_exact => windows(1),
        Algorithm::Fixed | Algorithm::SlidingCounter => windows(2),
        // All calls in flight can end at the same time.
        Algorithm::InFlight => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::OwnedKey;
    use crate::limit::{Access, Limit, OnError};
    use crate::waiting::{OwnedPart, Ticket};

    /// A thread reads the time, another one grants the call later, and wakes it before the line has its waker.
    #[test]
    fn a_call_that_was_woken_takes_its_turn_at_an_earlier_time() {
        let limit = Limit::fixed("raced", 1, Duration::from_secs(60)).wait(Duration::from_secs(1));
        let charge = Charge {
            terms: *limit.terms(),
            key_id: KeyId::from_bits(1),
            count_name: Vec::new(),
            cost: 1,
            statement: None,
        };
        let validity = Duration::from_secs(60);
        let spec =
            LineSpec { counts: vec![Arc::new(charge)].into(), validity, ..LineSpec::default() };
        let part = OwnedPart { limit, key: OwnedKey::of(&"key"), cost: 1, access: Access::Limited };
        let ticket = Ticket::new(vec![part].into(), false, 1, 99);
        let at = |local| Now { local, real: Instant::now() };
        let mut line = Line::new(Arc::new(spec.clone()));
        let waiter = Waiter::new(ticket, OnError::Local);
        line.enter(waiter, &spec, at(99));
        let Duty::Request(asked) = line.duty(false, at(100)) else { panic!("it asks") };
        let admitted = Outcome { verdict: Verdict::Admitted, ..Outcome::UNDECIDED };
        line.replied(*asked, Reply::one(admitted, Source::Embedded), at(100));
        assert!(matches!(line.duty(false, at(100)), Duty::Sleep(_)));
        line.take_wakers();
        assert!(line.poll(1, Waker::noop(), at(99)).is_ready(), "nobody wakes it again");
    }

    #[test]
    fn looks_soon_after_a_second_and_then_ever_more_rarely() {
        let (mut line, mut now, mut looks) = (Line::default(), 7, Vec::new());
        assert_eq!(line.waited(now), 0);
        for _ in 0..8 {
            let next = line.next_look(now);
            looks.push((next - now) / 1_000);
            now = next;
        }
        assert_eq!(looks, [1_000, 50, 100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(line.waited(now), now - 7);
        line.busy_since = None;
        assert_eq!(line.waited(now), 0);
        assert_eq!(line.next_look(now), now + LOOK_AGAIN);
    }
}
