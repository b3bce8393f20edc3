//! Random traces: operations, and the limits under which they are played.

use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::{Algorithm, Align, Limit};

/// An operation of one process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// Decides a call. With a limit that leases, spends or requests leased units.
    Check {
        process: usize,
        cost: Cost,
    },
    /// Decides a call whose charge is settled or kept later.
    Acquire {
        process: usize,
        cost: Cost,
    },
    /// Waits to be admitted.
    Wait {
        process: usize,
        cost: Cost,
        ticks: u64,
        acquires: bool,
    },
    /// Drops one of the calls that wait.
    DropWaiting {
        which: usize,
    },
    /// Settles one of the open permits to the units that its call has used.
    Settle {
        which: usize,
        used: u32,
    },
    /// Keeps the charge of one of the open permits.
    Keep {
        which: usize,
    },
    Refund {
        process: usize,
        units: u32,
    },
    Reset {
        process: usize,
    },
    Close {
        process: usize,
        ticks: u64,
    },
    Open {
        process: usize,
    },
    /// The next calls have other amounts, as with a computed threshold.
    Change {
        amounts: usize,
    },
    /// A rule changes the amounts of one process.
    Rule {
        process: usize,
        amounts: usize,
    },
    /// Decides a call of two limits.
    Together {
        process: usize,
        cost: Cost,
        acquires: bool,
    },
    /// The server evicts the count.
    Evict,
    /// A rule exempts the calls of a process, or makes their limit a shadow.
    Free {
        process: usize,
        shadow: bool,
    },
    Advance {
        ticks: u64,
    },
    /// Repeats the last call after its `retry_after`, if it was rejected.
    Retry,
}

/// The cost of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Units(u32),
    /// As many eighths of the capacity.
    Eighths(u32),
}

impl Cost {
    pub(crate) fn of(self, limit: &Limit) -> u32 {
        match self {
            Self::Units(units) => units,
            Self::Eighths(eighths) => (limit.capacity() * eighths / 8).max(1),
        }
    }
}

/// A kind of operations that a run can leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Waits,
    Leases,
    Settlements,
    /// Settlements of calls that have used more than they were charged.
    Debts,
    Refunds,
    Resets,
    Closings,
    /// Other amounts, by a rule or computed for a call.
    Changes,
    /// Calls of several limits.
    Several,
}

impl Kind {
    pub(crate) const ALL: [Self; 9] = [
        Self::Waits,
        Self::Leases,
        Self::Settlements,
        Self::Debts,
        Self::Refunds,
        Self::Resets,
        Self::Closings,
        Self::Changes,
        Self::Several,
    ];
}

impl Operation {
    /// Returns the kind of an operation that can be left out.
    fn kind(&self) -> Option<Kind> {
        match self {
            Self::Wait { .. } | Self::DropWaiting { .. } => Some(Kind::Waits),
            Self::Settle { .. } => Some(Kind::Settlements),
            Self::Refund { .. } => Some(Kind::Refunds),
            Self::Reset { .. } | Self::Evict => Some(Kind::Resets),
            Self::Close { .. } | Self::Open { .. } => Some(Kind::Closings),
            Self::Change { .. } | Self::Rule { .. } | Self::Free { .. } => Some(Kind::Changes),
            Self::Together { .. } => Some(Kind::Several),
            Self::Check { .. }
            | Self::Acquire { .. }
            | Self::Keep { .. }
            | Self::Advance { .. }
            | Self::Retry => None,
        }
    }
}

/// The limits of a trace, its processes and its clock.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) algorithm: Algorithm,
    /// The period and the tick, in microseconds.
    pub(crate) period: u64,
    pub(crate) tick: u64,
    /// The threshold and the capacity of the calls. The first are those of the first calls.
    pub(crate) amounts: Vec<(u32, u32)>,
    /// The offset of aligned windows in minutes.
    pub(crate) align: Option<i32>,
    /// The units that a process leases; 0 if none.
    pub(crate) lease: u32,
    pub(crate) processes: usize,
    /// The operations that are left out.
    pub(crate) left: Vec<Kind>,
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
            Some(minutes) => limit.align(Align::offset_minutes(minutes)),
            None => limit,
        };
        // All calls of a window count in the period of its leases. In a bucket, some calls lease.
        if self.is_bucket() { limit } else { self.leased(&limit) }
    }

    /// Returns a limit with the lease of the trace.
    pub(crate) fn leased(&self, limit: &Limit) -> Limit {
        let limit = limit.clone();
        if self.lease == 0 { limit } else { limit.lease(self.lease) }
    }

    /// Returns whether the limit of calls that do not lease can settle charges.
    pub(crate) fn settles(&self) -> bool {
        self.lease == 0 || self.is_bucket()
    }

    /// Returns the limit to judge by.
    pub(crate) fn judged(&self) -> (Limit, Option<i64>) {
        (self.limit("judged", 0), self.align.map(i64::from))
    }

    pub(crate) fn is_bucket(&self) -> bool {
        matches!(self.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket)
    }
}

fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        3 => (1_u32..4).prop_map(Cost::Units),
        4 => (1_u32..=8).prop_map(Cost::Eighths),
        2 => Just(Cost::Eighths(8)),
    ]
}

fn operation(processes: usize, most: u32) -> impl Strategy<Value = Operation> {
    let process = || 0..processes;
    let ticks = || prop_oneof![3 => 1_u64..4, 3 => 1_u64..20, 1 => 1_u64..120];
    let less = any::<(usize, u32)>()
        .prop_map(move |(which, used)| Operation::Settle { which, used: used % (most / 2 + 1) });
    let none = any::<usize>().prop_map(|which| Operation::Settle { which, used: 0 });
    let more = any::<(usize, u32)>()
        .prop_map(move |(which, used)| Operation::Settle { which, used: used % (most * 2) });
    prop_oneof![
        4 => (process(), cost()).prop_map(|(process, cost)| Operation::Check { process, cost }),
        4 => (process(), cost()).prop_map(|(process, cost)| Operation::Acquire { process, cost }),
        6 => (process(), cost(), ticks(), any::<bool>()).prop_map(
            |(process, cost, ticks, acquires)| Operation::Wait { process, cost, ticks, acquires }
        ),
        2 => any::<usize>().prop_map(|which| Operation::DropWaiting { which }),
        3 => less,
        3 => none,
        1 => more,
        1 => any::<usize>().prop_map(|which| Operation::Keep { which }),
        1 => (process(), 1..=most).prop_map(
            |(process, units)| Operation::Refund { process, units }
        ),
        1 => process().prop_map(|process| Operation::Reset { process }),
        1 => (process(), ticks()).prop_map(
            |(process, ticks)| Operation::Close { process, ticks }
        ),
        1 => process().prop_map(|process| Operation::Open { process }),
        1 => (0_usize..3).prop_map(|amounts| Operation::Change { amounts }),
        1 => (process(), 0_usize..3).prop_map(
            |(process, amounts)| Operation::Rule { process, amounts }
        ),
        2 => (process(), cost(), any::<bool>()).prop_map(|(process, cost, acquires)| {
            Operation::Together { process, cost, acquires }
        }),
        7 => ticks().prop_map(|ticks| Operation::Advance { ticks }),
        1 => prop_oneof![
            1 => Just(Operation::Evict),
            1 => (process(), any::<bool>()).prop_map(|(process, shadow)| {
                Operation::Free { process, shadow }
            }),
            2 => Just(Operation::Retry),
        ],
    ]
}

/// Returns random traces of an algorithm for up to `processes` processes.
pub(crate) fn trace(
    algorithm: Algorithm,
    processes: usize,
    left: &[Kind],
) -> impl Strategy<Value = Trace> + use<> {
    let threshold = prop_oneof![Just(2_u32), Just(4), Just(6), Just(10)];
    let tick = prop_oneof![Just(5_000_u64), Just(50_000), Just(250_000)];
    let left = left.to_vec();
    // A counter counts leased units in windows of a longer period, and they may be spent in the window after.
    let leases = !left.contains(&Kind::Leases) && algorithm != Algorithm::SlidingCounter;
    let leases = if leases { 0.3 } else { 0.0 };
    let align = prop::option::of(prop_oneof![Just(0), Just(330), Just(-480)]);
    (threshold, 1_u32..20, 1_u32..20, tick, align, 1..=processes, prop::bool::weighted(leases))
        .prop_map(move |(threshold, burst, other, tick, align, processes, leases)| {
            let align = align.filter(|_| algorithm == Algorithm::Fixed);
            // A lease lasts for a hundredth of the period, and a bucket keeps what refills in it.
            let (threshold, period, tick, burst, other) = match (leases, align) {
                (true, None) => (6_000, 60_000_000, 5_000, 170 + 10 * burst, 170 + 10 * other),
                (_, None) => (threshold, u64::from(threshold) * 2 * tick, tick, burst, other),
                (_, Some(_)) => {
                    (threshold, 900_000_000, 450_000_000 / u64::from(threshold), burst, other)
                }
            };
            let lease = if leases && align.is_none() { 40 } else { 0 };
            let amounts = vec![(threshold, burst), (threshold * 2, other), (threshold / 2, burst)];
            let amounts = amounts.into_iter().map(|(threshold, burst)| match algorithm {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => (threshold, burst),
                _ => (threshold, threshold),
            });
            let amounts = amounts.collect();
            let left = left.clone();
            Setup { algorithm, period, tick, amounts, align, lease, processes, left }
        })
        .prop_flat_map(move |setup| {
            let most = setup.amounts[0].1;
            let operations = operation(setup.processes, most);
            (Just(setup), prop::collection::vec(operations, 1..60))
        })
        .prop_map(|(setup, mut operations)| {
            operations.retain(|operation| {
                operation.kind().is_none_or(|kind| !setup.left.contains(&kind))
            });
            Trace { setup, operations }
        })
}
