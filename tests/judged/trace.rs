//! Random traces: operations, and the limits, the processes and the clocks with which they are played.

use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::{Algorithm, Align, Limit};
use support::judge::Judge;
use support::limits::{DAY, Leasing, is_bucket};

use crate::operation::{Operation, What, operation};

const DAY_US: u64 = DAY.as_micros() as u64;

/// Ten dollars in billionths, less a little in windows, so that sums have odd digits.
const MONEY: u64 = 10_000_000_000;
const ODD_MONEY: u64 = MONEY - 33;

/// The limits of a trace, its processes and its clocks. Times are microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) algorithm: Algorithm,
    pub(crate) period: u64,
    pub(crate) tick: u64,
    /// The threshold and the capacity of the calls. The first are those of the first calls.
    pub(crate) amounts: Vec<(u64, u64)>,
    /// What an operation takes for a unit: an amount of money in some traces.
    pub(crate) unit: u64,
    pub(crate) align: Option<Place>,
    pub(crate) leasing: Leasing,
    pub(crate) processes: usize,
    /// By how many ticks the clock of a process is before or behind the time of the trace, at most.
    pub(crate) skew: u64,
}

/// Where the windows of the calendar begin: at an offset from UTC in minutes, or at the midnights of a time zone whose
/// clocks change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Offset(i32),
    Zone(&'static str),
}

#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) setup: Setup,
    pub(crate) operations: Vec<Operation>,
}

impl Setup {
    /// Returns the limit of calls with these amounts.
    pub(crate) fn limit(&self, name: &'static str, amounts: usize) -> Limit {
        let (threshold, capacity) = self.amounts[amounts];
        let period = Duration::from_micros(self.period);
        let limit = Limit::new(name, self.algorithm, threshold, period).expect("valid");
        // All calls of a window count in the period of its leases. In a bucket, some calls lease.
        if self.is_bucket() {
            return limit.burst(capacity);
        }
        self.leased(&match self.align {
            Some(Place::Offset(minutes)) => limit.align(Align::offset_minutes(minutes)),
            Some(Place::Zone(zone)) => limit.align(Align::zone(zone)),
            None => limit,
        })
    }

    pub(crate) fn leased(&self, limit: &Limit) -> Limit {
        match self.leasing {
            Leasing::None => *limit,
            Leasing::UpTo(units) => limit.lease(units),
            Leasing::Auto => limit.auto_lease(),
        }
    }

    /// Returns whether the limit of calls that do not lease can settle charges.
    pub(crate) fn settles(&self) -> bool {
        self.leasing == Leasing::None || self.is_bucket()
    }

    pub(crate) fn most_leased(&self) -> u64 {
        match self.leasing {
            Leasing::None => 0,
            Leasing::UpTo(units) => units,
            Leasing::Auto => {
                self.amounts.iter().map(|(threshold, _)| threshold / 100).max().unwrap_or(0)
            }
        }
    }

    /// Returns the judge of a trace. A strict one has a period that is a tick longer.
    pub(crate) fn judge(&self, is_strict: bool) -> Judge {
        let minutes = match self.align {
            Some(Place::Offset(minutes)) => Some(i64::from(minutes)),
            _ => None,
        };
        let limit = self.limit("judged", 0);
        let period = limit.period() + Duration::from_micros(self.tick);
        let strict = || Limit::new("strict", self.algorithm, limit.threshold(), period);
        let limit = if is_strict { strict().expect("valid") } else { limit };
        Judge::new(&limit, minutes).with_skew(self.difference())
    }

    /// Returns by how much the clocks of processes differ: by twice the skew, because one may be behind and another
    /// ahead.
    pub(crate) fn difference(&self) -> u64 {
        2 * self.skew * self.tick
    }

    pub(crate) fn is_bucket(&self) -> bool {
        is_bucket(self.algorithm)
    }
}

/// What is chosen at random for a trace, besides its operations: a threshold, whether it is money, bursts, a tick, the
/// place of windows, the number of processes, a lease and a skew.
type Chosen = (u64, bool, [u64; 2], u64, Option<Place>, usize, Leasing, u64);

fn chosen(processes: usize) -> impl Strategy<Value = Chosen> {
    let threshold = prop_oneof![Just(2_u64), Just(4), Just(6), Just(10)];
    let tick = prop_oneof![Just(5_000_u64), Just(50_000), Just(250_000)];
    let offset = prop_oneof![Just(0), Just(330), Just(-480)].prop_map(Place::Offset);
    let zone =
        prop_oneof![Just("Europe/Berlin"), Just("America/New_York"), Just("Pacific/Auckland")];
    let align = prop::option::of(prop_oneof![offset, zone.prop_map(Place::Zone)]);
    let leasing = prop_oneof![
        7 => Just(Leasing::None),
        2 => Just(Leasing::UpTo(40)),
        1 => Just(Leasing::Auto),
    ];
    let skew = prop_oneof![5 => Just(0_u64), 1 => 1_u64..4];
    let (bursts, is_money) = ([1_u64..20, 1_u64..20], prop::bool::weighted(0.15));
    (threshold, is_money, bursts, tick, align, 1..=processes, leasing, skew)
}

impl Setup {
    fn new(algorithm: Algorithm, chosen: Chosen) -> Self {
        let (threshold, is_money, bursts, tick, align, processes, leasing, skew) = chosen;
        let align = align.filter(|_| algorithm == Algorithm::Fixed);
        // A counter counts leased units in windows of a longer period, and they may be spent in the window after.
        let can_lease = algorithm != Algorithm::SlidingCounter && align.is_none();
        let leasing = if can_lease { leasing } else { Leasing::None };
        // A token refills in so many ticks, so that a skewed clock is a small part of a period.
        let ticks = if skew > 0 { 20 } else { 2 };
        let (threshold, period, tick, bursts) = match (leasing, align) {
            (Leasing::None, None) => (threshold, threshold * ticks * tick, tick, bursts),
            // Clocks change by a tick.
            (Leasing::None, Some(Place::Zone(_))) => (threshold, DAY_US, DAY_US / 24, bursts),
            (Leasing::None, Some(Place::Offset(_))) => {
                (threshold, 900_000_000, 900_000_000 / ticks / threshold, bursts)
            }
            // A lease lasts for a hundredth of the period, and a bucket keeps what refills in it.
            _ => (6_000, 60_000_000, 5_000, bursts.map(|burst| 170 + 10 * burst)),
        };
        let [burst, other] = bursts;
        let amounts = [(threshold, burst), (threshold * 2, other), (threshold / 2, burst)];
        let unit = match (is_money && leasing == Leasing::None, is_bucket(algorithm)) {
            (false, _) => 1,
            (true, true) => MONEY,
            (true, false) => ODD_MONEY,
        };
        let amounts = amounts.map(|(threshold, burst)| match (is_bucket(algorithm), unit) {
            (false, _) => (threshold * unit, threshold * unit),
            (true, 1) => (threshold, burst),
            // Eighths are whole units, which refill in whole ticks.
            (true, _) => (threshold * unit, burst.next_multiple_of(8) * unit),
        });
        let amounts = amounts.to_vec();
        Self { algorithm, period, tick, amounts, unit, align, leasing, processes, skew }
    }
}

/// Returns random traces of an algorithm for up to `processes` processes. A call of several limits takes several keys.
pub(crate) fn trace(
    algorithm: Algorithm,
    processes: usize,
    several_keys: bool,
) -> impl Strategy<Value = Trace> {
    chosen(processes).prop_flat_map(move |chosen| {
        let setup = Setup::new(algorithm, chosen);
        let most = setup.amounts[0].1 / setup.unit;
        let operations = prop::collection::vec(operation(setup.processes, most), 1..60);
        operations.prop_map(move |mut operations| {
            let has_one_key =
                |what: &What| !matches!(what, What::Several { .. } | What::Once { .. });
            operations.retain(|(_, what)| several_keys || has_one_key(what));
            for (_, what) in &mut operations {
                what.times(setup.unit);
            }
            Trace { setup: setup.clone(), operations }
        })
    })
}
