//! What the model keeps of the admitted calls of a key, and what of it still counts at a moment.

use ratelimit_runtime::Algorithm;

use super::Model;
use crate::calendar;

/// The data about the admitted calls of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    // The time and the units of each record, oldest first, and the latest time of one that charges of several ticks
    // share.
    Sliding { log: Vec<(u64, u64)>, joined: u64 },
    // The admitted cost in the window.
    Fixed { start: u64, count: u64 },
    // The admitted cost in the window before, and in the current one.
    SlidingCounter { start: u64, previous: u64, current: u64 },
    Bucket(Bucket),
}

/// A token bucket or a leaky bucket: both fill with each call and drain at the rate of the limit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bucket {
    /// The time to which the level belongs: the units in the bucket, times the period in microseconds.
    pub(super) at: u64,
    pub(super) level: u128,
    /// The threshold under which the level was last changed.
    pub(super) threshold: u64,
    pub(super) lease: BucketLease,
    /// The charges that can be settled, all under this threshold; the level before them, and its time.
    pub(super) charges: Vec<BucketCharge>,
    before: (u64, u128),
}

impl Bucket {
    /// Sets the level that follows from the charges.
    pub(super) fn settle(&mut self, period: u128) {
        let drained = |from: u64, to: u64| u128::from(to - from) * u128::from(self.threshold);
        let (mut since, mut left) = self.before;
        for charge in &self.charges {
            left = left.saturating_sub(drained(since, charge.at));
            left += u128::from(charge.units) * period;
            since = charge.at;
        }
        self.level = left.saturating_sub(drained(since, self.at));
    }
}

/// The units that the call of a charge has used, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BucketCharge {
    pub(super) number: u64,
    pub(super) at: u64,
    pub(super) units: u64,
}

/// Units of a bucket that a process charged in advance and spends until a moment. They count as if they were
/// spent at the last possible moment, so the level does not drain below them before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct BucketLease {
    /// The moment until which the units may be spent.
    pub(super) until: u64,
    /// The units below which the level does not drain before that moment.
    pub(super) kept: u128,
}

impl State {
    /// The state of a key that was never used.
    pub(super) fn unused(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sliding => Self::Sliding { log: Vec::new(), joined: 0 },
            Algorithm::Fixed => Self::Fixed { start: 0, count: 0 },
            Algorithm::SlidingCounter => Self::SlidingCounter { start: 0, previous: 0, current: 0 },
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                Self::bucket(0, 0, 1, BucketLease::default())
            }
            other => panic!("the model has no rule for {other}"),
        }
    }

    /// A bucket of whose charges only the level is known.
    pub(super) fn bucket(at: u64, level: u128, threshold: u64, lease: BucketLease) -> Self {
        let (charges, before) = (Vec::new(), (at, level));
        Self::Bucket(Bucket { at, level, threshold, lease, charges, before })
    }

    /// Returns whether nothing counts, so that the state can be dropped.
    pub(super) fn is_unused(&self) -> bool {
        match self {
            Self::Sliding { log, .. } => log.is_empty(),
            Self::Fixed { count, .. } => *count == 0,
            Self::SlidingCounter { previous, current, .. } => *previous == 0 && *current == 0,
            Self::Bucket(bucket) => bucket.level == 0,
        }
    }

    pub(super) fn newest(&self) -> u64 {
        match self {
            Self::Sliding { log, .. } => log.last().map_or(0, |(at, _)| *at),
            Self::Fixed { start, .. } | Self::SlidingCounter { start, .. } => *start,
            Self::Bucket(bucket) => bucket.at,
        }
    }
}

/// How a sliding window counts time. The guide `algorithms.md` says how exact that is.
#[derive(Clone, Copy)]
pub(super) struct Ticks {
    /// The microseconds of a tick: a power of two, with which a period has less than 2^32 - 1 ticks.
    tick: u64,
    /// The ticks of a thousandth of a period.
    cell: u64,
}

impl Ticks {
    pub(super) fn of(self, at: u64) -> u64 {
        at.div_ceil(self.tick)
    }

    /// Returns the time of the tick of a time: that of its record, once there is a newer one.
    pub(super) fn end(self, at: u64) -> u64 {
        self.of(at) * self.tick
    }

    /// Returns whether two times are in one thousandth of a period.
    pub(super) fn is_one_cell(self, one: u64, other: u64) -> bool {
        self.of(one) / self.cell == self.of(other) / self.cell
    }
}

impl Model {
    pub(super) fn ticks(&self) -> Ticks {
        let period = self.limit.period().as_micros() as u64;
        let tick = period.div_ceil((1 << 32) - 2).next_power_of_two();
        Ticks { tick, cell: period.div_ceil(1_000 * tick) }
    }

    /// Returns the part of the state that still counts at `now`, under the limit of the latest call.
    pub(super) fn state_at(&self, now: u64) -> State {
        let period = self.limit.period().as_micros() as u64;
        match &self.state {
            State::Sliding { log, joined } => {
                let counts = |(at, _): &(u64, u64)| now < at + period;
                let log = log.iter().copied().filter(counts).collect();
                State::Sliding { log, joined: *joined }
            }
            State::Fixed { start, count } => {
                let aligned = || self.align.map(|minutes| window_start(now, period, minutes));
                let boundary = calendar::window(&self.limit, now).map(|(start, _)| start);
                let boundary = boundary.or_else(aligned);
                match boundary {
                    Some(boundary) if *start < boundary => {
                        State::Fixed { start: boundary, count: 0 }
                    }
                    None if *count == 0 || now >= start + period => {
                        State::Fixed { start: now, count: 0 }
                    }
                    _ => State::Fixed { start: *start, count: *count },
                }
            }
            State::SlidingCounter { start, previous, current } => {
                let window = now / period;
                let (previous, current) = match window - start / period {
                    0 => (*previous, *current),
                    1 => (*current, 0),
                    _ => (0, 0),
                };
                State::SlidingCounter { start: window * period, previous, current }
            }
            State::Bucket(bucket) => self.bucket_at(bucket, now),
        }
    }

    /// Returns the end of a fixed window.
    pub(super) fn end_of(&self, start: u64) -> u64 {
        let period = self.limit.period().as_micros() as u64;
        calendar::window(&self.limit, start).map_or(start + period, |(_, end)| end)
    }

    /// Returns a bucket as it is at `now`: its level drains, but not below the units of a lease that may still
    /// be spent. A level that was charged under another threshold is converted, rounded up.
    fn bucket_at(&self, bucket: &Bucket, now: u64) -> State {
        let Bucket { at, mut level, threshold: charged_under, lease, .. } = *bucket;
        let period = self.limit.period().as_micros();
        let threshold = self.limit.threshold();
        let is_leased = lease.until > at;
        // Under the threshold of the charge, the bucket is empty from here on.
        let empties =
            |from: u64, level: u128| u128::from(from) + level.div_ceil(charged_under.into());
        let mut empty = empties(at, level);
        if is_leased {
            let kept = (lease.kept * period).min(level);
            empty = empty.max(empties(lease.until, kept));
        }
        if u128::from(now) >= empty {
            return State::bucket(now, 0, threshold, BucketLease::default());
        }
        if charged_under != threshold {
            level = convert(level, period, charged_under, threshold);
        }
        let drained = |from: u64, to: u64| u128::from(to - from) * u128::from(threshold);
        if is_leased {
            let end = lease.until.min(now);
            let floor = (lease.kept * period).min(level);
            level = level.saturating_sub(drained(at, end)).max(floor);
            level = level.saturating_sub(drained(end, now));
        } else {
            level = level.saturating_sub(drained(at, now));
        }
        let lease = if lease.until > now { lease } else { BucketLease::default() };
        if charged_under == threshold {
            return State::Bucket(Bucket { at: now, level, lease, ..bucket.clone() });
        }
        State::bucket(now, level, threshold, lease)
    }
}

/// Returns the start of the calendar window that contains `now`. Windows of a week are counted from Monday,
/// 1969-12-29 local time, other windows from 1970-01-01 local time.
fn window_start(now: u64, period: u64, minutes: i64) -> u64 {
    let week = 7 * 86_400_000_000;
    let origin = if period == week { -3 * 86_400_000_000_i64 } else { 0 } - minutes * 60_000_000;
    let windows = (now as i64 - origin).div_euclid(period as i64);
    (origin + windows * period as i64) as u64
}

/// Converts a level to the finest units in which another threshold is counted, rounded up. The stores convert
/// in `f64`, so the rounding of `f64` is a part of the semantics.
fn convert(level: u128, period: u128, from: u64, to: u64) -> u128 {
    let unit = |threshold: u64| greatest_common_divisor(period, threshold.into());
    if unit(from) == unit(to) {
        return level;
    }
    let old = (level / unit(from)) as f64;
    let (old_token, token) = ((period / unit(from)) as f64, (period / unit(to)) as f64);
    (old * token / old_token).ceil() as u128 * unit(to)
}

fn greatest_common_divisor(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
