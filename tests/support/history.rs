//! The history of a fleet: each process writes the calls that were admitted, and the parent gives all of them to the
//! [`Judge`](crate::judge::Judge).

use std::fmt;
use std::str::FromStr;

use ratelimit_runtime::Limit;
use rustix::time::{ClockId, clock_gettime};

/// An admitted call of a process. As text, it is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmittedCall {
    /// The times before the call and after its decision. It started in between.
    pub starts: (u64, u64),
    /// The units that the call was charged.
    pub charged: u64,
    /// The units that the call has really used.
    pub used: u64,
    /// The threshold under which it was admitted.
    pub threshold: u64,
    /// The capacity under which it was admitted.
    pub capacity: u64,
}

/// Returns the microseconds of the monotonic clock of this machine. All processes on it read the same clock.
#[must_use]
pub fn machine_time() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    (time.tv_sec * 1_000_000 + time.tv_nsec / 1_000) as u64
}

impl AdmittedCall {
    /// Returns a call that began at the time `from`, was admitted now, and uses what it was charged.
    #[must_use]
    pub fn since(from: u64, limit: &Limit, charged: u64) -> Self {
        let (threshold, capacity) = (limit.threshold(), limit.capacity());
        Self { starts: (from, machine_time()), charged, used: charged, threshold, capacity }
    }

    /// Parses the lines of a process that are calls.
    pub fn parse_all(lines: &str) -> Vec<Self> {
        lines.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl fmt::Display for AdmittedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { starts: (first, last), charged, used, threshold, capacity } = self;
        write!(f, "admitted {first} {last} {charged} {used} {threshold} {capacity}")
    }
}

/// The line is not an admitted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAdmittedCall;

impl FromStr for AdmittedCall {
    type Err = NoAdmittedCall;

    fn from_str(line: &str) -> Result<Self, NoAdmittedCall> {
        let numbers = line.strip_prefix("admitted ").ok_or(NoAdmittedCall)?;
        let numbers: Result<Vec<u64>, _> = numbers.split(' ').map(str::parse).collect();
        let numbers = numbers.map_err(|_| NoAdmittedCall)?;
        let Ok([first, last, rest @ ..]) = <[u64; 6]>::try_from(numbers) else {
            return Err(NoAdmittedCall);
        };
        let [charged, used, threshold, capacity] = rest.map(|number| number);
        Ok(Self { starts: (first, last), charged, used, threshold, capacity })
    }
}
