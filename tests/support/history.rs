//! The history of a fleet: each process writes the calls that were admitted, and the parent gives all of them to the
//! [`Judge`](crate::judge::Judge).

use std::fmt;

use ratelimit_runtime::Limit;
use rustix::time::{ClockId, clock_gettime};

/// An admitted call of a process. As text, it is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmittedCall {
    /// The times before the call and after its decision. It started in between.
    pub starts: (u64, u64),
    pub charged: u64,
    /// The units that the call has really used.
    pub used: u64,
    pub threshold: u64,
    pub capacity: u64,
}

/// Returns the microseconds of the monotonic clock of this machine. All processes on it read the same clock.
pub fn machine_time() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec * 1_000_000 + time.tv_nsec / 1_000) as u64
}

impl AdmittedCall {
    /// Returns a call that began at the time `from`, was admitted now, and uses what it was charged.
    pub fn since(from: u64, limit: &Limit, charged: u64) -> Self {
        let (threshold, capacity) = (limit.threshold(), limit.capacity());
        Self { starts: (from, machine_time()), charged, used: charged, threshold, capacity }
    }

    pub fn parse_all(lines: &str) -> Vec<Self> {
        lines.lines().filter_map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        let numbers = line.strip_prefix("admitted ")?.split(' ');
        let numbers: Option<Vec<u64>> = numbers.map(|number| number.parse().ok()).collect();
        let [first, last, charged, used, threshold, capacity] =
            <[u64; 6]>::try_from(numbers?).ok()?;
        Some(Self { starts: (first, last), charged, used, threshold, capacity })
    }
}

impl fmt::Display for AdmittedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { starts: (first, last), charged, used, threshold, capacity } = self;
        write!(f, "admitted {first} {last} {charged} {used} {threshold} {capacity}")
    }
}
