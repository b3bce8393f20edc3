//! The events of a history, and the breaches of a promise.

#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    /// The earliest and the latest time.
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) decided: u64,
    /// The units that count.
    pub(super) units: u64,
    pub(super) what: What,
    pub(super) is_judged: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Call {
        charged: u64,
        threshold: u64,
        capacity: u64,
    },
    /// Units that a call has used beyond its charge. They count from their settlement.
    Surplus {
        threshold: u64,
    },
    /// A threshold that was in force, although no call was admitted.
    InForce {
        threshold: u64,
    },
    /// Units that come on top of the promise, at the time of the event or up to a later one.
    Gift {
        units: u64,
        until: u64,
    },
    /// A call may have been charged, but its units do not count: it was dropped, or the judge does not know it.
    Unseen,
    /// Nothing that was admitted before counts any more.
    Lost,
}

/// A stretch of time in which more was admitted than the limit promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The end of the stretch.
    pub at: u64,
    /// The units that were used in it.
    pub used: u64,
    /// The units by which they are above the promise, rounded up.
    pub over: u64,
}

impl Event {
    pub(super) fn at(at: u64, units: u64, what: What) -> Self {
        Self { first: at, last: at, decided: at, units, what, is_judged: true }
    }

    /// Returns whether nothing above the promise may be used when the call starts.
    pub(super) fn ends_stretch(&self) -> bool {
        self.is_call() && self.is_judged
    }

    pub(super) fn is_call(&self) -> bool {
        self.charged() > 0
    }

    pub(super) fn is_surplus(&self) -> bool {
        matches!(self.what, What::Surplus { .. })
    }

    pub(super) fn is_unseen(&self) -> bool {
        matches!(self.what, What::Unseen)
    }

    /// Returns whether a call was decided before this time, and starts at it or later.
    pub(super) fn is_booked(&self, at: u64) -> bool {
        (self.is_call() || self.is_unseen()) && self.decided < at && at <= self.last
    }

    /// Returns whether the event took units, perhaps none in the end, or gave some.
    pub(super) fn counts(&self) -> bool {
        self.units > 0 || self.charged() > 0 || self.gift() > 0
    }

    pub(super) fn gift(&self) -> u64 {
        match self.what {
            What::Gift { units, .. } => units,
            What::Call { .. }
            | What::Surplus { .. }
            | What::InForce { .. }
            | What::Unseen
            | What::Lost => 0,
        }
    }

    /// Returns whether the event can still give units at this time.
    pub(super) fn gives_at(&self, at: u64) -> bool {
        matches!(self.what, What::Gift { until, .. } if until >= at)
    }

    pub(super) fn charged(&self) -> u64 {
        match self.what {
            What::Call { charged, .. } => charged,
            What::Surplus { .. }
            | What::InForce { .. }
            | What::Gift { .. }
            | What::Unseen
            | What::Lost => 0,
        }
    }

    /// Returns the threshold of the rate at which the units of the event drain.
    pub(super) fn rate(&self) -> u64 {
        match self.what {
            What::Surplus { threshold } => threshold,
            What::Call { .. }
            | What::InForce { .. }
            | What::Gift { .. }
            | What::Unseen
            | What::Lost => self.threshold(),
        }
    }

    pub(super) fn threshold(&self) -> u64 {
        match self.what {
            What::Call { threshold, .. } | What::InForce { threshold } => threshold,
            What::Surplus { .. } | What::Gift { .. } | What::Unseen | What::Lost => 0,
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        match self.what {
            What::Call { capacity, .. } => capacity,
            What::Surplus { .. }
            | What::InForce { .. }
            | What::Gift { .. }
            | What::Unseen
            | What::Lost => 0,
        }
    }
}

/// Sorts events by their time. Calls of one moment may have been decided in any order: if the limit holds in one order,
/// it holds in the order in which those with the smallest limits are first.
pub(super) fn sort_by_time(events: &mut [Event]) {
    events.sort_by_key(|event| event.last);
    let together =
        |one: &Event, next: &Event| one.last == next.last && one.is_call() && next.is_call();
    for moment in events.chunk_by_mut(together) {
        moment.sort_by_key(Event::capacity);
    }
}

impl Breach {
    pub(super) fn new(at: u64, used: u64, promised: u64) -> Option<Self> {
        let over = used.saturating_sub(promised);
        (over > 0).then_some(Self { at, used, over })
    }

    /// Compares numbers that are `scale` times as large.
    pub(super) fn scaled(at: u64, used: u128, promised: u128, scale: u128) -> Option<Self> {
        let over = used.saturating_sub(promised).div_ceil(scale) as u64;
        (over > 0).then_some(Self { at, used: used.div_ceil(scale) as u64, over })
    }
}
