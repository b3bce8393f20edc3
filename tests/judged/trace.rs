//! Random traces: operations, and the limits, the processes and the clocks with which they are played.

use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::{Algorithm, Align, Limit};
use support::limits::{DAY, Leasing};

use crate::operation::{Operation, operation};

const DAY_US: u64 = DAY.as_micros() as u64;

/// Ten dollars in billionths, less a little in windows, so that sums have odd digits.
const MONEY: u64 = 10_000_000_000;
const ODD_MONEY: u64 = MONEY - 33;

/// The limits of a trace, its processes and its clocks.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) algorithm: Algorithm,
    /// The period and the tick, in microseconds.
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
    /// The words of the operations that are left out.
    pub(crate) left: Vec<String>,
}

/// Where the windows of the calendar begin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// At an offset from UTC, in minutes.
    Offset(i32),
    /// At the midnights of a time zone whose clocks change.
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
        let limit = if self.is_bucket() { limit.burst(capacity) } else { limit };
        let limit = match self.align {
            Some(Place::Offset(minutes)) => limit.align(Align::offset_minutes(minutes)),
            Some(Place::Zone(zone)) => limit.align(Align::zone(zone)),
            None => limit,
        };
        // All calls of a window count in the period of its leases. In a bucket, some calls lease.
        if self.is_bucket() { limit } else { self.leased(&limit) }
    }

    /// Returns a limit with the lease of the trace.
    pub(crate) fn leased(&self, limit: &Limit) -> Limit {
        let limit = *limit;
        match self.leasing {
            Leasing::None => limit,
            Leasing::UpTo(units) => limit.lease(units),
            Leasing::Auto => limit.auto_lease(),
        }
    }

    /// Returns whether the limit of calls that do not lease can settle charges.
    pub(crate) fn settles(&self) -> bool {
        self.leasing == Leasing::None || self.is_bucket()
    }

    /// Returns the most units that a process leases.
    pub(crate) fn most_leased(&self) -> u64 {
        match self.leasing {
            Leasing::None => 0,
            Leasing::UpTo(units) => units,
            Leasing::Auto => {
                self.amounts.iter().map(|(threshold, _)| threshold / 100).max().unwrap_or(0)
            }
        }
    }

    /// Returns the limit to judge by.
    pub(crate) fn judged(&self) -> (Limit, Option<i64>) {
        let minutes = match self.align {
            Some(Place::Offset(minutes)) => Some(i64::from(minutes)),
            Some(Place::Zone(_)) | None => None,
        };
        (self.limit("judged", 0), minutes)
    }

    pub(crate) fn is_bucket(&self) -> bool {
        matches!(self.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket)
    }

    pub(crate) fn leaves_out(&self, word: &str) -> bool {
        self.left.iter().any(|left| left == word)
    }
}

/// What is chosen at random for a trace, besides its operations.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    threshold: u64,
    is_money: bool,
    bursts: [u64; 2],
    tick: u64,
    align: Option<Place>,
    processes: usize,
    leasing: Leasing,
    skew: u64,
}

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
    let bursts = [1_u64..20, 1_u64..20];
    let is_money = prop::bool::weighted(0.15);
    (threshold, is_money, bursts, tick, align, 1..=processes, leasing, skew).prop_map(
        |(threshold, is_money, bursts, tick, align, processes, leasing, skew)| Chosen {
            threshold,
            is_money,
            bursts,
            tick,
            align,
            processes,
            leasing,
            skew,
        },
    )
}

impl Setup {
    fn new(algorithm: Algorithm, chosen: &Chosen, left: &[String]) -> Self {
        let Chosen { threshold, is_money, bursts, tick, align, processes, leasing, skew } = *chosen;
        let align = align.filter(|_| algorithm == Algorithm::Fixed);
        // A counter counts leased units in windows of a longer period, and they may be spent in the window after.
        let can_lease = algorithm != Algorithm::SlidingCounter && align.is_none();
        let leaves_out = |word: &str| left.iter().any(|left| left == word);
        let is_leased = can_lease && !leaves_out("lease");
        let leasing = if is_leased { leasing } else { Leasing::None };
        let skew = if leaves_out("step") { 0 } else { skew };
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
        let is_bucket = matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let unit = match (is_money && leasing == Leasing::None, is_bucket) {
            (false, _) => 1,
            (true, true) => MONEY,
            (true, false) => ODD_MONEY,
        };
        let amounts = amounts.map(|(threshold, burst)| match (is_bucket, unit) {
            (false, _) => (threshold * unit, threshold * unit),
            (true, 1) => (threshold, burst),
            // Eighths are whole units, which refill in whole ticks.
            (true, _) => (threshold * unit, burst.next_multiple_of(8) * unit),
        });
        let (amounts, left) = (amounts.to_vec(), left.to_vec());
        Self { algorithm, period, tick, amounts, unit, align, leasing, processes, skew, left }
    }
}

/// Returns random traces of an algorithm for up to `processes` processes.
pub(crate) fn trace(
    algorithm: Algorithm,
    processes: usize,
    left: &[String],
) -> impl Strategy<Value = Trace> + use<> {
    let left = left.to_vec();
    chosen(processes)
        .prop_map(move |chosen| Setup::new(algorithm, &chosen, &left))
        .prop_flat_map(move |setup| {
            let most = setup.amounts[0].1 / setup.unit;
            let operations = operation(setup.processes, most);
            (Just(setup), prop::collection::vec(operations, 1..60))
        })
        .prop_map(|(setup, mut operations)| {
            operations.retain(|operation| !setup.leaves_out(&operation.what.word()));
            for operation in &mut operations {
                operation.what.times(setup.unit);
            }
            Trace { setup, operations }
        })
}
