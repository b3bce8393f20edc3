//! A line: the calls of this process that wait for the same counts, in the order of their arrival.
//!
//! A line is a state machine: it reads no clock, sends no request and wakes no task. Its driver does. A task of the
//! background thread drives the lines of Redis (`waiting/driver.rs`). The waiting calls themselves drive a line of the
//! embedded store (`waiting/call.rs`).
//!
//! In `calls.rs`, calls enter, are polled and leave. `requests.rs` makes the requests and applies the replies.
//! `turns.rs` passes grants to calls. `late.rs` rejects the calls that cannot be admitted in time. `overdue.rs`
//! measures how long calls in flight of other processes hold up the line.
//!
//! A request decides the longest prefix of the line that the store admits. The store charges a call before the call
//! takes its turn: the call holds a [`Grant`]. A bucket also grants moments ahead: up to a second, and to the first
//! call at any distance. A call that leaves the line passes its grant to the next call. If no call can use it, it goes
//! back to the store.

mod calls;
mod estimate;
mod grant;
mod late;
#[cfg(model)]
#[path = "../../../../models/src/lines/mod.rs"]
pub mod model;
mod overdue;
mod requests;
mod time;
mod turns;

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use self::estimate::Estimate;
pub(super) use self::grant::ReturnedGrant;
use self::grant::{Grant, returned};
use self::overdue::OverdueWait;
pub(super) use self::requests::Asked;
use self::requests::PAUSE;
use self::time::ReplyTimes;
pub(super) use self::time::{Now, WakeTimes};
use super::ticket::{Destination, Ticket};
use crate::key::KeyId;
use crate::limit::OnError;
use crate::one_or_many::OneOrMany;
use crate::reply::{Source, StoreError};
use crate::store::{Charge, Reply};

/// The number of calls of a long line, which an event reports.
const LONG_LINE: usize = 1_000;

pub(super) struct Line {
    /// The counts. Their costs have no meaning.
    counts: OneOrMany<Arc<Charge>>,
    /// Whether the line waits for one bucket, which grants moments ahead.
    is_bucket: bool,
    settings: LineSettings,
    waiters: HashMap<u64, Waiter>,
    /// The calls without a grant that are polled, by arrival.
    queued: BTreeSet<u64>,
    /// The units that the queued calls take from each count.
    queued_units: Vec<u128>,
    /// The moments of the calls with a grant, and the arrivals of these calls.
    granted: BTreeSet<(u64, u64)>,
    /// How much later the moments of a store are used, because calls with moments of another store are before them.
    delay: Option<(Source, u64)>,
    /// The latest arrival of a call that has entered.
    last_arrival: u64,
    /// The grants of calls that do not use them, before they pass to the calls behind.
    passing: Vec<(u64, Grant)>,
    /// Grants that no call uses. They go back to the store: a moment ahead once no call has a later one.
    spares: Vec<Grant>,
    /// When the first queued call can be admitted; `None` if the line has not asked since it changed.
    estimate: Option<Estimate>,
    /// The wait for units in flight.
    overdue: OverdueWait,
    /// The time of the next request, by the clock of the limiter.
    next_request: u64,
    last_request: Option<Now>,
    /// The time before which no request is made, if the next one must not follow the last one at once.
    pause_end: Option<Instant>,
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
    /// The calls whose waits have ended, but which the next reply may admit: it wakes them.
    overstaying: BTreeSet<u64>,
    wakers: Vec<Waker>,
    /// The number of calls from which the line is reported as long.
    long: usize,
}

#[derive(Clone, Copy)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub(super) struct LineSettings {
    pub(super) is_shared: bool,
    /// Whether rules block the calls. The line then sends no request.
    pub(super) is_blocked: bool,
    /// Whether the clock of the limiter moves only when the program moves it. Real time then says nothing about a
    /// moment.
    pub(super) is_virtual: bool,
    /// How long a grant is valid once its moment has come.
    pub(super) validity: Duration,
}

/// A call in a line.
pub(super) struct Waiter {
    pub(super) ticket: Arc<Ticket>,
    costs: OneOrMany<u64>,
    /// The end of the wait, by the clock of the limiter.
    pub(super) deadline: u64,
    on_error: OnError,
    waker: Waker,
    /// The time of a wake-up after which the call was not polled yet.
    pinged: Option<Instant>,
    stage: WaiterStage,
    /// Whether rules have changed after its turn had come. Without its grant, the call leaves the line.
    has_old_rules: bool,
}

#[derive(Debug)]
enum WaiterStage {
    Queued,
    /// The call is part of the pending request.
    Asked,
    Granted(Grant),
    /// The call was not polled when its turn came. It queues again when it is polled.
    Asleep,
    Ended(Result<Reply, StoreError>),
}

/// The next step of the driver of a line.
pub(super) enum Duty {
    Request(Box<Asked>),
    /// Gives grants back to their stores. The line of a bucket sends no request before this has
    /// [ended](Line::returned).
    Return(Vec<ReturnedGrant>),
    /// Resolves the rules again, because one of them has ended.
    FollowRules,
    /// Sleeps until one of these times, or until the line changes.
    Sleep(WakeTimes),
    /// No call waits.
    Rest,
}

impl Line {
    pub(super) fn new(counts: OneOrMany<Arc<Charge>>, settings: LineSettings) -> Self {
        Self {
            queued_units: vec![0; counts.len()],
            is_bucket: matches!(&counts[..], [only] if only.terms.is_bucket()),
            counts,
            settings,
            waiters: HashMap::new(),
            queued: BTreeSet::new(),
            granted: BTreeSet::new(),
            delay: None,
            last_arrival: 0,
            passing: Vec::new(),
            spares: Vec::new(),
            estimate: None,
            overdue: OverdueWait::default(),
            next_request: 0,
            last_request: None,
            pause_end: None,
            last_scan: None,
            is_asking: false,
            returning: 0,
            changed_counts: Vec::new(),
            has_changed: false,
            changes_at: None,
            overstaying: BTreeSet::new(),
            wakers: Vec::new(),
            long: LONG_LINE,
        }
    }

    /// Returns whether calls with this destination wait in this line: counts and amounts agree.
    pub(super) fn is_of(&self, destination: &Destination) -> bool {
        let Destination { charges, is_shared, is_blocked, .. } = destination;
        let same =
            |(a, b): (&Arc<Charge>, &Arc<Charge>)| a.key_id == b.key_id && a.terms == b.terms;
        self.settings.is_shared == *is_shared
            && self.settings.is_blocked == *is_blocked
            && self.counts.len() == charges.len()
            && self.counts.iter().zip(&**charges).all(same)
    }

    pub(super) fn counts(&self) -> &[Arc<Charge>] {
        &self.counts
    }

    pub(super) fn is_shared(&self) -> bool {
        self.settings.is_shared
    }

    /// Returns whether the line holds nothing: no call, no grant.
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && !self.holds_units()
    }

    /// Returns whether a driver has something to do, now or later.
    pub(super) fn has_work(&self) -> bool {
        !(self.queued.is_empty() && self.granted.is_empty()) || self.has_spares()
    }

    pub(super) fn validity(&self) -> Duration {
        self.settings.validity
    }

    /// Returns whether the driver has to be woken. While a request is pending, the reply wakes it.
    pub(super) fn has_duty(&self, now: Now) -> bool {
        // A blocked line waits for the end of a rule.
        !self.is_asking && (!self.is_idle(now) || self.settings.is_blocked)
    }

    /// Returns whether the line has nothing to do before the clock of the limiter moves.
    pub(super) fn is_idle(&self, now: Now) -> bool {
        let is_later = |time: WakeTimes| {
            !time.has_come(now) && time.real.is_none_or(|at| at > now.real + 2 * PAUSE)
        };
        !self.is_asking
            && self.changes_at.is_none_or(|at| at > now.local)
            && self.returning == 0
            && !self.has_returns(now)
            && self.request_time(now).is_none_or(is_later)
    }

    /// Returns the number of calls if the line has become long, or twice as long as before.
    pub(super) fn outgrown(&mut self) -> Option<usize> {
        let calls = self.waiters.len();
        let is_long = calls >= self.long;
        if is_long {
            self.long *= 2;
        }
        is_long.then_some(calls)
    }

    /// Returns whether no call is in the line.
    pub(super) fn is_deserted(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns the last moment ahead that a call has. Only a bucket has moments: the clock can have stepped back since
    /// another grant.
    fn last_moment(&self, now: Now) -> Option<u64> {
        let last = self.granted.last().map(|(at, _)| *at);
        last.filter(|at| self.is_bucket && *at > now.local)
    }

    /// Returns the only count of the line if it is a bucket.
    pub(super) fn bucket(&self) -> Option<KeyId> {
        self.counts.first().filter(|_| self.is_bucket).map(|count| count.key_id)
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
        self.is_bucket && (self.has_returns(now) || self.returning > 0)
    }

    /// Returns whether units are charged for calls of the line, or may be.
    pub(super) fn holds_units(&self) -> bool {
        !self.granted.is_empty() || self.has_spares() || self.returning > 0 || self.is_asking
    }

    /// Returns what the driver does next. `others_return` says whether other lines of its bucket give moments back.
    pub(super) fn duty(&mut self, others_return: bool, now: Now) -> Duty {
        if self.changes_at.take_if(|at| *at <= now.local).is_some() {
            return Duty::FollowRules;
        }
        let mut wake = self.expire(now);
        wake = wake.or_earlier(WakeTimes { local: self.changes_at, real: None });
        self.pass_all_on(now);
        if self.has_returns(now) {
            let last = self.last_moment(now);
            let spares = self.spares.extract_if(.., |grant| grant.returns(last, now)).collect();
            self.returning += 1;
            return Duty::Return(returned(&self.counts, spares));
        }
        // No other spare goes back before its moment.
        let spare = self.spares.iter().map(|grant| grant.at).min();
        wake = wake.or_earlier(WakeTimes { local: spare, real: None });
        // A moment that is about to go back would be before the ones that a request reserves.
        if self.is_asking || self.is_bucket && self.returning > 0 {
            return Duty::Sleep(wake);
        }
        if others_return {
            // Soon again: they may pass the moments to calls of their own, and give none back.
            let soon = WakeTimes { local: None, real: Some(now.real + PAUSE) };
            return Duty::Sleep(wake.or_earlier(soon));
        }
        match self.request_time(now) {
            Some(time) if time.has_come(now) => {
                if let Some(asked) = self.ask(now) {
                    return Duty::Request(Box::new(asked));
                }
            }
            Some(time) => wake = wake.or_earlier(time),
            None => {}
        }
        if !self.has_work() {
            return Duty::Rest;
        }
        Duty::Sleep(wake)
    }

    pub(super) fn has_wakers(&self) -> bool {
        !self.wakers.is_empty()
    }

    /// Takes the wakers of the calls that have changed. The driver wakes them once the line is unlocked.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        mem::take(&mut self.wakers)
    }

    /// Wakes the call that drives a line of the embedded store: the first queued call, or the first with a moment.
    fn wake_first(&mut self) {
        let ahead = self.granted.first().map(|(_, arrival)| arrival);
        let first = self.queued.first().or(ahead).and_then(|first| self.waiters.get(first));
        self.wakers.extend(first.map(|waiter| waiter.waker.clone()));
    }
}

impl Waiter {
    pub(super) fn new(ticket: Arc<Ticket>, on_error: OnError) -> Self {
        Self {
            deadline: ticket.deadline,
            ticket,
            costs: Vec::new().into(),
            on_error,
            waker: Waker::noop().clone(),
            pinged: None,
            stage: WaiterStage::Queued,
            has_old_rules: false,
        }
    }

    fn into_grant(self) -> Option<Grant> {
        match self.stage {
            WaiterStage::Granted(grant) => Some(grant),
            _ => None,
        }
    }
}

impl LineSettings {
    fn validity_us(&self) -> u64 {
        u64::try_from(self.validity.as_micros()).unwrap_or(u64::MAX)
    }
}

fn add_units(sums: &mut [u128], costs: &[u64]) {
    for (sum, cost) in sums.iter_mut().zip(costs) {
        *sum += u128::from(*cost);
    }
}
