//! A model of the leases of a fleet: processes that decide calls of cost 1 against one token bucket, on virtual time
//! and without a network.
//!
//! A test compares it with limiters on Redis, call by call. It is fast enough for a thousand processes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leasing {
    None,
    UpTo(u64),
    Auto,
}

/// The token bucket of all keys.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    pub threshold: u64,
    pub burst: u64,
    /// The period, in microseconds.
    pub period: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Redis,
    /// Admitted with a unit that the process held.
    Lease,
    Rejected,
}

/// The processes, and what Redis keeps.
#[derive(Debug)]
pub struct Fleet {
    quota: Quota,
    leasing: Leasing,
    buckets: HashMap<u64, Bucket>,
    processes: Vec<Process>,
    /// The times at which leases end, with the process and the key.
    ends: BinaryHeap<Reverse<(u64, usize, u64)>>,
    /// The requests to Redis that decide.
    pub requests: u64,
    /// The requests to Redis that give units back.
    pub give_backs: u64,
}

/// The level is in units, times the period.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    at: u64,
    level: u128,
    leased_until: u64,
    kept: u128,
}

#[derive(Debug, Default)]
struct Process {
    leases: HashMap<u64, Lease>,
    /// The interval and the calls of each key, to find those that are busy.
    heat: HashMap<u64, (u64, u64)>,
    /// The last rejection of each key: whether it was of a lease, and until when it holds without a request.
    rejected: HashMap<u64, (bool, u64)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    units: u64,
    charged: u64,
    charged_at: u64,
    until: u64,
    /// When Redis last replied, and what it had left.
    last: Option<(u64, u64)>,
    /// The most units to request in advance.
    share: u64,
    paused: u64,
    scheduled: Option<u64>,
}

/// So many calls within a term make a key busy.
const BUSY: u64 = 8;

/// A lease is remembered if at least so many of its units were spent.
const LEAST_SPENT: u64 = 4;

impl Quota {
    fn term(&self) -> u64 {
        (self.period / 100).min(1_000_000)
    }

    /// The tokens that refill in a term.
    fn reserve(&self) -> u64 {
        (self.threshold * self.term()).div_ceil(self.period)
    }

    fn units(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.period)
    }
}

impl Lease {
    /// Half of what is left, times the share of this process in what was charged since the last reply.
    fn share(&self, quota: &Quota, now: u64, units: u64, remaining: u64) -> u64 {
        let (own, rest) = (u128::from(units), u128::from(remaining));
        let others = self.last.map_or(0, |(at, left)| {
            let refilled =
                u128::from(quota.threshold) * u128::from(now - at) / u128::from(quota.period);
            let left = u128::from(left);
            let left =
                left + refilled.min(u128::from(quota.burst - quota.reserve()).saturating_sub(left));
            left.saturating_sub(own + rest)
        });
        (rest * own / (own + others) / 2) as u64
    }

    /// The next time at which units must go back, or at which the lease is forgotten.
    fn next_end(&self, now: u64, term: u64) -> Option<u64> {
        let is_busy = self.charged - self.units >= LEAST_SPENT;
        let forgotten = if is_busy { self.until + term } else { self.until };
        [self.until, forgotten.max(self.paused)].into_iter().find(|end| *end > now)
    }
}

impl Bucket {
    /// Lets the bucket drain, but not below the units that can still be spent.
    fn drain(&mut self, quota: &Quota, now: u64) {
        let drained = |from: u64, to: u64| u128::from(to - from) * u128::from(quota.threshold);
        let end = self.leased_until.clamp(self.at, now);
        let floor = self.kept.min(self.level);
        self.level = self.level.saturating_sub(drained(self.at, end)).max(floor);
        self.level = self.level.saturating_sub(drained(end, now));
        self.at = now;
        if self.leased_until <= now {
            self.kept = 0;
        }
    }

    /// Charges units, or returns how long they are rejected. Units of a lease are spent within a term.
    fn charge(&mut self, quota: &Quota, now: u64, units: u64, leases: bool) -> Result<u64, u64> {
        self.drain(quota, now);
        let kept = quota.units(if leases { quota.reserve() } else { 0 });
        let (level, capacity) = (self.level.max(kept), quota.units(quota.burst));
        let most = capacity - quota.units(units);
        if level > most {
            let floor = self.kept.min(self.level);
            let (mut rest, mut wait) = (level, 0);
            if most < floor {
                wait = self.leased_until - now;
                let drained = u128::from(wait) * u128::from(quota.threshold);
                rest = level.saturating_sub(drained).max(floor);
            }
            return Err(wait + (rest - most).div_ceil(quota.threshold.into()) as u64);
        }
        self.level = level + quota.units(units);
        if leases {
            self.leased_until = self.leased_until.max(now + quota.term());
            self.kept = self.kept.max(kept);
        }
        Ok(((capacity - self.level) / u128::from(quota.period)) as u64)
    }

    /// Gives back units that were charged at a moment, less what has drained since.
    fn give_back(&mut self, quota: &Quota, now: u64, units: u64, charged_at: u64) {
        self.drain(quota, now);
        let drained = u128::from(now - charged_at) * u128::from(quota.threshold);
        let floor = self.kept.min(self.level);
        let given = quota.units(units).saturating_sub(drained);
        self.level = self.level.saturating_sub(given).max(floor);
    }
}

impl Fleet {
    pub fn new(quota: Quota, leasing: Leasing, processes: usize) -> Self {
        Self {
            quota,
            leasing,
            buckets: HashMap::new(),
            processes: (0..processes).map(|_| Process::default()).collect(),
            ends: BinaryHeap::new(),
            requests: 0,
            give_backs: 0,
        }
    }

    /// The most units that a process may hold of a key.
    pub fn most_held(&self) -> u64 {
        let Quota { threshold, burst, .. } = self.quota;
        match self.leasing {
            Leasing::None => 0,
            Leasing::UpTo(units) => units,
            Leasing::Auto => (threshold.min(burst) / 100).min(burst - self.quota.reserve()),
        }
    }

    /// Returns the units of a key that all processes hold.
    pub fn held(&self, key: u64) -> u64 {
        let leases = self.processes.iter().filter_map(|process| process.leases.get(&key));
        leases.map(|lease| lease.units).sum()
    }

    /// Returns the units that Redis would still admit of a key.
    pub fn remaining(&mut self, key: u64, now: u64) -> u64 {
        let bucket = self.buckets.entry(key).or_default();
        bucket.drain(&self.quota, now);
        let capacity = self.quota.units(self.quota.burst);
        (capacity.saturating_sub(bucket.level) / u128::from(self.quota.period)) as u64
    }

    /// Decides a call. Times never step back.
    pub fn call(&mut self, process: usize, key: u64, now: u64) -> Verdict {
        self.end_leases(now);
        let me = &mut self.processes[process];
        let lease = me.leases.get_mut(&key);
        if let Some(lease) = lease.filter(|lease| now < lease.until && lease.units > 0) {
            lease.units -= 1;
            return Verdict::Lease;
        }
        // Calls that no lease decides are counted as leases, unless these are automatic.
        let counted = matches!(self.leasing, Leasing::UpTo(_));
        let rejected = me.rejected.get(&key);
        if rejected.is_some_and(|(leases, until)| *leases == counted && now < *until) {
            return Verdict::Rejected;
        }
        let paused = me.leases.get(&key).map(|lease| now < lease.paused);
        let is_leased = match self.leasing {
            Leasing::None => false,
            Leasing::UpTo(_) => true,
            Leasing::Auto => paused.map_or_else(
                || {
                    let interval = now / self.quota.term();
                    let heat = me.heat.entry(key).or_default();
                    *heat = if heat.0 == interval { (interval, heat.1 + 1) } else { (interval, 1) };
                    heat.1 >= BUSY
                },
                |paused| !paused,
            ),
        };
        if is_leased
            && paused != Some(true)
            && let Some(verdict) = self.lease(process, key, now)
        {
            return verdict;
        }
        let charged = self.charge(process, key, now, 1, is_leased);
        if charged.is_some() { Verdict::Redis } else { Verdict::Rejected }
    }

    /// Requests units in advance. Returns `None` if they are rejected, and fewer might not be.
    fn lease(&mut self, process: usize, key: u64, now: u64) -> Option<Verdict> {
        let (most, burst) = (self.most_held(), self.quota.burst - self.quota.reserve());
        let lease = self.processes[process].leases.entry(key).or_default();
        let spent = lease.charged - lease.units;
        let ahead = if now < lease.until { 2 * spent } else { spent };
        let units = ahead.min(most).min(lease.share).min(burst).max(1);
        let charged = self.charge(process, key, now, units, true);
        let term = self.quota.term();
        let lease = self.processes[process].leases.get_mut(&key).expect("created above");
        let end = if let Some(remaining) = charged {
            let until = now + term - term.div_ceil(1_000);
            *lease = Lease {
                units: (units - 1).min(most),
                charged: units,
                charged_at: now,
                until,
                share: lease.share(&self.quota, now, units, remaining),
                last: Some((now, remaining)),
                ..*lease
            };
            until
        } else {
            *lease = Lease { paused: now + term, charged: 0, units: 0, ..*lease };
            lease.paused
        };
        if lease.scheduled.is_none_or(|scheduled| end < scheduled) {
            lease.scheduled = Some(end);
            self.ends.push(Reverse((end, process, key)));
        }
        match charged {
            Some(_) => Some(Verdict::Redis),
            None if units == 1 => Some(Verdict::Rejected),
            None => None,
        }
    }

    /// Sends a request that decides, and remembers a rejection of one unit. Returns what remains.
    fn charge(
        &mut self,
        process: usize,
        key: u64,
        now: u64,
        units: u64,
        leases: bool,
    ) -> Option<u64> {
        self.requests += 1;
        let charged = self.buckets.entry(key).or_default().charge(&self.quota, now, units, leases);
        if let (Err(wait), 1) = (charged, units) {
            let until = now + wait.min(1_000_000);
            self.processes[process].rejected.insert(key, (leases, until));
        }
        charged.ok()
    }

    /// Gives back the units of the leases that have ended.
    pub fn end_leases(&mut self, now: u64) {
        while let Some(&Reverse((due, process, key))) = self.ends.peek() {
            if due > now {
                return;
            }
            self.ends.pop();
            let term = self.quota.term();
            let leases = &mut self.processes[process].leases;
            let lease = leases.get_mut(&key).filter(|lease| lease.scheduled == Some(due));
            let Some(lease) = lease else { continue };
            if lease.until <= now && lease.units > 0 {
                self.give_backs += 1;
                let bucket = self.buckets.get_mut(&key).expect("charged");
                bucket.give_back(&self.quota, now, lease.units, lease.charged_at);
                (lease.charged, lease.units) = (lease.charged - lease.units, 0);
            }
            lease.scheduled = lease.next_end(now, term);
            match lease.scheduled {
                Some(end) => self.ends.push(Reverse((end, process, key))),
                None => drop(leases.remove(&key)),
            }
        }
    }
}
