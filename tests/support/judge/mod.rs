//! The judge of the promise "never more than the limit": it knows a limit and a history, and nothing else.
//!
//! A history is what was really admitted: when each call may have started, and the units that it has really used. The
//! judge has no counts and no states of an algorithm. It looks at stretches of time, and compares the units that were
//! used in them with what the limit promises for them. So it also objects where the stores and their models agree on
//! a rule that is wrong.
//!
//! Tests pass what the promise excepts as an [`Exception`]. The page `guarantees.md` has the same list.

mod blocks;
mod bucket;
mod holders;
#[cfg(test)]
mod tests;
mod windows;

use ratelimit_runtime::{Algorithm, Limit};

pub use self::blocks::{BlockJudge, GrantedCall, Moment};
pub use self::holders::{HolderId, HolderJudge};
use crate::calendar;
use crate::history::AdmittedCall;

/// The units that were admitted under one key of a limit, in the order of admission.
#[derive(Clone, Debug)]
pub struct Judge {
    promise: Promise,
    /// The period in microseconds.
    period: u64,
    events: Vec<Event>,
    /// By how much the times of the history may differ from those by which the store has decided.
    skew: u64,
}

/// What an algorithm promises: at most the threshold, or less, in a stretch of time.
#[derive(Clone, Copy, Debug)]
enum Promise {
    // Any trailing period.
    Trailing,
    // Any window of the calendar, `shift` microseconds before a multiple of the period.
    Calendar { shift: u64 },
    // Any window of this limit, as the days of its time zone say.
    OfZone(Limit),
    // A period that begins with an admitted call, outside of the period before.
    Opened,
    // Any window of the calendar, and less in a window after a full one.
    Counter,
    // Any stretch of time: the burst, and what refills.
    Refill,
}

/// An admitted call, and the limit under which it was admitted.
#[derive(Clone, Copy, Debug)]
pub struct JudgedCall {
    /// The earliest and the latest time at which the call may have started.
    pub starts: (u64, u64),
    /// When the call was decided; before its start if it has waited for a moment.
    pub decided: u64,
    pub charged: u64,
    pub threshold: u64,
    pub capacity: u64,
}

/// What rule 1 excepts.
#[derive(Clone, Copy, Debug)]
pub enum Exception {
    /// The count was reset, flushed, evicted or lost in a failover: it starts anew.
    Lost,
    /// An operator has given so many units back, or a lost primary has counted them. As many come on top.
    Refund(u64),
    /// Processes hold units of a lost count. They can give them back to the new count until a time.
    Return { units: u64, until: u64 },
}

/// The name of a call in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId(usize);

impl Judge {
    /// A judge of calls of one key. `align` is the offset of aligned windows from UTC in minutes.
    pub fn new(limit: &Limit, align: Option<i64>) -> Self {
        let period = limit.period().as_micros() as u64;
        let promise = match limit.algorithm() {
            Algorithm::Sliding => Promise::Trailing,
            Algorithm::Fixed if calendar::window(limit, 0).is_some() => Promise::OfZone(*limit),
            Algorithm::Fixed => align.map_or(Promise::Opened, |minutes| {
                let week = 7 * 86_400_000_000;
                // 1970-01-01 was a Thursday; weeks begin on Monday.
                let days = if period == week { 3 * 86_400_000_000 } else { 0 };
                let shift = (minutes * 60_000_000 + days).rem_euclid(period as i64);
                Promise::Calendar { shift: shift as u64 }
            }),
            Algorithm::SlidingCounter => Promise::Counter,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Promise::Refill,
            other => panic!("the judge does not know what {other} promises"),
        };
        Self { promise, period, events: Vec::new(), skew: 0 }
    }

    /// A judge of processes whose clocks differ by up to `skew` microseconds.
    #[must_use]
    pub fn with_skew(self, skew: u64) -> Self {
        Self { skew, ..self }
    }

    fn push(&mut self, event: Event) {
        let first = event.first.saturating_sub(self.skew);
        self.events.push(Event { first, last: event.last + self.skew, ..event });
    }

    pub fn admitted(&mut self, call: JudgedCall) -> CallId {
        let JudgedCall { starts: (first, last), decided, charged, threshold, capacity } = call;
        let (units, rate, event) = (charged, threshold, Event::at(last, Kind::Call));
        self.push(Event { first, decided, units, charged, threshold, capacity, rate, ..event });
        CallId(self.events.len() - 1)
    }

    /// Records at the time `at` what a call has really used.
    pub fn settled(&mut self, call: CallId, at: u64, used: u64) {
        let event = &mut self.events[call.0];
        let Event { kind: Kind::Call, charged, rate, .. } = *event else { return };
        event.units = used.min(charged);
        if used > charged {
            self.push(Event { units: used - charged, rate, ..Event::at(at, Kind::Surplus) });
        }
    }

    /// Takes a call out of the history: it is excepted.
    pub fn except_call(&mut self, call: CallId) {
        let Event { first, last, decided, .. } = self.events[call.0];
        self.events[call.0] = Event { first, decided, ..Event::at(last, Kind::Unseen) };
    }

    /// Excepts the start of a call: it counts for the calls after it.
    pub fn except_start(&mut self, call: CallId) {
        self.events[call.0].is_excepted = true;
    }

    /// Records that calls were decided under this threshold. On one bucket, calls with different rates are promised no
    /// more than the larger rate gives.
    pub fn in_force(&mut self, at: u64, threshold: u64) {
        self.push(Event { threshold, rate: threshold, ..Event::at(at, Kind::InForce) });
    }

    /// Records that a call may have been charged, but its units do not count: it was dropped, or the judge does not
    /// know it. It can have begun a window.
    pub fn unseen(&mut self, starts: (u64, u64)) {
        let (first, last) = starts;
        self.push(Event { first, ..Event::at(last, Kind::Unseen) });
    }

    pub fn excepted(&mut self, at: u64, exception: Exception) {
        let (kind, gift, until) = match exception {
            Exception::Lost => (Kind::Lost, 0, at),
            Exception::Refund(units) => (Kind::Gift, units, at),
            Exception::Return { units, until } => (Kind::Gift, units, until + self.skew),
        };
        self.push(Event { gift, until, ..Event::at(at, kind) });
    }

    /// Adds a call of the limit that may have started at any time of an interval.
    pub fn admitted_between(&mut self, limit: &Limit, starts: (u64, u64), units: u64) -> CallId {
        let (decided, threshold, capacity) = (starts.0, limit.threshold(), limit.capacity());
        self.admitted(JudgedCall { starts, decided, charged: units, threshold, capacity })
    }

    pub fn admitted_all<'a>(&mut self, calls: impl IntoIterator<Item = &'a AdmittedCall>) {
        for call in calls {
            let AdmittedCall { starts, charged, used, threshold, capacity } = *call;
            let decided = starts.0;
            let id = self.admitted(JudgedCall { starts, decided, charged, threshold, capacity });
            self.settled(id, starts.1, used);
        }
    }

    /// Returns whether one more call of `units`, after all others, would be a breach. So the history reaches the limit,
    /// and the judge has seen each call of it.
    pub fn objects_to_more(&self, limit: &Limit, units: u64) -> bool {
        let end = self.events.iter().map(|event| event.last).max().unwrap_or(0);
        let mut judge = self.clone();
        judge.admitted_between(limit, (end, end), units);
        !judge.breaches().is_empty()
    }

    /// Returns the most units that can still count in a window: those of all calls that started within `period` until
    /// `at`. It is longer than that of the limit if units are leased.
    pub fn used_within(&self, period: u64, at: u64) -> u64 {
        let mut histories = self.events.rsplit(|event| event.kind == Kind::Lost);
        let history = histories.next().unwrap_or(&[]);
        let counts = |event: &&Event| event.last.saturating_add(period) > at;
        history.iter().filter(counts).map(|event| event.units).sum()
    }

    pub fn breaches(&self) -> Vec<Breach> {
        let period = self.period;
        let histories = self.events.split(|event| event.kind == Kind::Lost);
        let breaches = histories.flat_map(|history| match self.promise {
            Promise::Trailing => self.trailing(history, |_| 1),
            Promise::Calendar { shift } => Self::windows(history, |at| (at + shift) / period),
            Promise::OfZone(limit) => Self::windows_of_zone(history, &limit),
            Promise::Counter => {
                [Self::windows(history, |at| at / period), self.estimates(history)].concat()
            }
            Promise::Opened => self.opened_windows(history),
            Promise::Refill => self.refills(history),
        });
        breaches.collect()
    }
}

// The events of a history.

#[derive(Clone, Copy, Debug, Default)]
struct Event {
    kind: Kind,
    /// The earliest and the latest time.
    first: u64,
    last: u64,
    decided: u64,
    /// The units that a call has used, and the units that it was charged.
    units: u64,
    charged: u64,
    /// The limit under which a call was admitted.
    threshold: u64,
    capacity: u64,
    /// The threshold of the rate at which the units drain.
    rate: u64,
    /// Units that come on top of the promise, at the time of the event or up to a later one.
    gift: u64,
    until: u64,
    is_excepted: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Call,
    /// Units that a call has used beyond its charge. They count from their settlement.
    Surplus,
    /// A threshold that was in force, although no call was admitted.
    InForce,
    Gift,
    /// A call may have been charged, but its units do not count: it was dropped, or the judge does not know it.
    Unseen,
    /// Nothing that was admitted before counts any more.
    Lost,
}

/// A stretch of time in which more was admitted than the limit promises: its end, the units that were used in it, and
/// by how many, rounded up, they are above the promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach {
    pub at: u64,
    pub used: u64,
    pub over: u64,
}

impl Event {
    fn at(at: u64, kind: Kind) -> Self {
        Self { kind, first: at, last: at, decided: at, until: at, ..Self::default() }
    }

    /// Returns whether nothing above the promise may be used when the call starts.
    fn ends_stretch(&self) -> bool {
        self.is_call() && !self.is_excepted
    }

    fn is_call(&self) -> bool {
        self.charged > 0
    }

    fn is_surplus(&self) -> bool {
        self.kind == Kind::Surplus
    }

    fn is_unseen(&self) -> bool {
        self.kind == Kind::Unseen
    }

    /// Returns whether a call was decided before this time, and starts at it or later.
    fn is_booked(&self, at: u64) -> bool {
        (self.is_call() || self.is_unseen()) && self.decided < at && at <= self.last
    }

    /// Returns whether the event took units, perhaps none in the end, or gave some.
    fn counts(&self) -> bool {
        self.units > 0 || self.charged > 0 || self.gift > 0
    }

    /// Returns whether the event can still give units at this time.
    fn gives_at(&self, at: u64) -> bool {
        self.kind == Kind::Gift && self.until >= at
    }
}

/// Sorts events by their time. Calls of one moment may have been decided in any order: if the limit holds in one order,
/// it holds in the order in which those with the smallest limits are first.
fn sort_by_time(events: &mut [Event]) {
    events.sort_by_key(|event| event.last);
    let together =
        |one: &Event, next: &Event| one.last == next.last && one.is_call() && next.is_call();
    for moment in events.chunk_by_mut(together) {
        moment.sort_by_key(|event| event.capacity);
    }
}

/// What the events of a history have added up to, until each time.
struct Until<T>(Vec<(u64, T)>);

impl<T: Copy + Default + Ord> Until<T> {
    fn of(history: &[Event], value: impl Fn(&Event) -> (u64, T), add: impl Fn(T, T) -> T) -> Self {
        let mut values: Vec<_> = history.iter().map(value).collect();
        values.sort_unstable();
        let mut sum = T::default();
        for (_, value) in &mut values {
            sum = add(sum, *value);
            *value = sum;
        }
        Self(values)
    }

    fn get(&self, end: u64) -> T {
        let length = self.0.partition_point(|(at, _)| *at <= end);
        self.0[..length].last().map_or(T::default(), |(_, sum)| *sum)
    }
}

impl Breach {
    fn new(at: u64, used: u64, promised: u64) -> Option<Self> {
        Self::scaled(at, used.into(), promised.into(), 1)
    }

    /// Compares numbers that are `scale` times as large.
    fn scaled(at: u64, used: u128, promised: u128, scale: u128) -> Option<Self> {
        let over = used.saturating_sub(promised).div_ceil(scale) as u64;
        (over > 0).then_some(Self { at, used: used.div_ceil(scale) as u64, over })
    }
}
