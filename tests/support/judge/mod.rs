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
mod event;
mod holders;
#[cfg(test)]
mod tests;
mod windows;

use ratelimit_runtime::{Algorithm, Limit};

pub use self::blocks::{BlockJudge, GrantedCall, Moment};
pub use self::event::Breach;
use self::event::{Event, What};
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

/// What an algorithm promises.
#[derive(Clone, Copy, Debug)]
enum Promise {
    /// At most the threshold in any trailing period.
    Trailing,
    /// At most the threshold in any window of the calendar, `shift` microseconds before a multiple of the period.
    Calendar { shift: u64 },
    /// At most the threshold in any window of this limit, as the days of its time zone say.
    OfZone(Limit),
    /// At most the threshold in a period that begins with an admitted call, outside of the period before.
    Opened,
    /// At most the threshold in any window of the calendar, and less in a window after a full one.
    Counter,
    /// At most the burst, and what refills, in any stretch of time.
    Refill,
}

/// An admitted call.
#[derive(Clone, Copy, Debug)]
pub struct JudgedCall {
    /// The earliest and the latest time at which the call may have started.
    pub starts: (u64, u64),
    /// When the call was decided; before its start if it has waited for a moment.
    pub decided: u64,
    /// The units that it was charged.
    pub charged: u64,
    /// The limit under which it was admitted.
    pub threshold: u64,
    /// The most that it admits at once.
    pub capacity: u64,
}

/// What rule 1 excepts.
#[derive(Clone, Copy, Debug)]
pub enum Exception {
    /// The count was reset, flushed, evicted or lost in a failover: it starts anew.
    Lost,
    /// An operator has given units back. As many come on top.
    Refund {
        /// How many.
        units: u64,
    },
    /// Processes hold units of a lost count. They can give them back to the new count until a time.
    Return {
        /// How many.
        units: u64,
        /// The latest time.
        until: u64,
    },
    /// A primary was lost before its replica received its last writes. What they had counted comes on top.
    Unreplicated {
        /// The most units that they have counted.
        units: u64,
    },
}

/// The name of a call in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId(usize);

impl Judge {
    /// A judge of calls of one key. `align` is the offset of aligned windows from UTC in minutes.
    #[must_use]
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

    /// Adds an admitted call.
    pub fn admitted(&mut self, call: JudgedCall) -> CallId {
        let JudgedCall { starts: (first, last), decided, charged, threshold, capacity } = call;
        let what = What::Call { charged, threshold, capacity };
        let event = Event { first, last, decided, ..Event::at(last, charged, what) };
        self.push(event);
        CallId(self.events.len() - 1)
    }

    /// Records at the time `at` what a call has really used.
    pub fn settled(&mut self, call: CallId, at: u64, used: u64) {
        let event = &mut self.events[call.0];
        let What::Call { charged, threshold, .. } = event.what else { return };
        event.units = used.min(charged);
        if used > charged {
            self.push(Event::at(at, used - charged, What::Surplus { threshold }));
        }
    }

    /// Takes a call out of the history: it is excepted.
    pub fn except_call(&mut self, call: CallId) {
        let event = &mut self.events[call.0];
        (event.units, event.what) = (0, What::Unseen);
    }

    /// Excepts the start of a call: it counts for the calls after it.
    pub fn except_start(&mut self, call: CallId) {
        self.events[call.0].is_judged = false;
    }

    /// Records that calls were decided under this threshold. On one bucket, calls with different rates are promised no
    /// more than the larger rate gives.
    pub fn in_force(&mut self, at: u64, threshold: u64) {
        self.push(Event::at(at, 0, What::InForce { threshold }));
    }

    /// Records that a call may have been charged, but its units do not count: it was dropped, or the judge does not
    /// know it. It can have begun a window.
    pub fn unseen(&mut self, starts: (u64, u64)) {
        let (first, last) = starts;
        self.push(Event { first, ..Event::at(last, 0, What::Unseen) });
    }

    /// Records what rule 1 excepts.
    pub fn excepted(&mut self, at: u64, exception: Exception) {
        let what = match exception {
            Exception::Lost => What::Lost,
            Exception::Refund { units } | Exception::Unreplicated { units } => {
                What::Gift { units, until: at }
            }
            Exception::Return { units, until } => What::Gift { units, until: until + self.skew },
        };
        self.push(Event::at(at, 0, what));
    }

    /// Adds a call of the limit that may have started at any time of an interval.
    pub fn admitted_between(&mut self, limit: &Limit, starts: (u64, u64), units: u64) -> CallId {
        self.admitted(JudgedCall {
            starts,
            decided: starts.0,
            charged: units,
            threshold: limit.threshold(),
            capacity: limit.capacity(),
        })
    }

    /// Adds the calls that processes have written.
    pub fn admitted_all<'a>(&mut self, calls: impl IntoIterator<Item = &'a AdmittedCall>) {
        for call in calls {
            let AdmittedCall { starts, charged, used, threshold, capacity } = *call;
            let (decided, charged) = (starts.0, charged);
            let id = self.admitted(JudgedCall { starts, decided, charged, threshold, capacity });
            self.settled(id, starts.1, used);
        }
    }

    /// Returns whether one more call of `units`, after all others, would be a breach. So the history reaches the limit,
    /// and the judge has seen each call of it.
    #[must_use]
    pub fn objects_to_more(&self, limit: &Limit, units: u64) -> bool {
        let end = self.events.iter().map(|event| event.last).max().unwrap_or(0);
        let mut judge = self.clone();
        judge.admitted_between(limit, (end, end), units);
        !judge.breaches().is_empty()
    }

    /// Returns the most units that can still count in a window: those of all calls that started within `period` until
    /// `at`. It is longer than that of the limit if units are leased.
    #[must_use]
    pub fn used_within(&self, period: u64, at: u64) -> u64 {
        let lost = |event: &Event| matches!(event.what, What::Lost);
        let history = self.events.rsplit(lost).next().unwrap_or(&[]);
        let counts = |event: &&Event| event.last.saturating_add(period) > at;
        history.iter().filter(counts).map(|event| event.units).sum()
    }

    /// Returns the stretches in which more was admitted than the limit promises.
    #[must_use]
    pub fn breaches(&self) -> Vec<Breach> {
        let mut breaches = Vec::new();
        let lost = |event: &Event| matches!(event.what, What::Lost);
        for history in self.events.split(lost) {
            breaches.extend(match self.promise {
                Promise::Trailing => self.stretches(
                    history,
                    |_| 1,
                    |judge, at, end| at.first.saturating_add(judge.period) > end,
                ),
                Promise::Calendar { shift } => {
                    self.windows(history, |at| (at + shift) / self.period)
                }
                Promise::OfZone(limit) => self.windows_of_zone(history, &limit),
                Promise::Counter => {
                    let mut breaches = self.windows(history, |at| at / self.period);
                    breaches.extend(self.estimates(history));
                    breaches
                }
                Promise::Opened => self.opened_windows(history),
                Promise::Refill => self.refills(history),
            });
        }
        breaches
    }
}
