//! The operations of a trace.

use proptest::prelude::*;
use ratelimit_runtime::Limit;

/// An operation of one process. Some concern all of them.
pub(crate) type Operation = (usize, What);

/// A kind of operation. Those of calls that wait and of open permits name one of them by any number. Times are ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    // Decides a call. With a limit that leases, spends or requests leased units.
    Check(Cost),
    // Decides so many calls of one unit, one after another. They make a key busy.
    Burst(u64),
    // Decides a call whose charge is settled or kept later.
    Acquire(Cost),
    Wait { cost: Cost, ticks: u64, acquires: bool },
    // Decides a call of two limits.
    Several { cost: Cost, acquires: bool },
    // Decides a call with an id, which is charged once.
    Once { cost: Cost, id: u64 },
    // Drops one of the calls that wait, polled or not.
    Drop(usize),
    // Does not poll one of the calls that wait, or polls it again.
    Pause(usize),
    // Settles one of the open permits to the units that its call has used.
    Settle { which: usize, used: u64 },
    Keep(usize),
    Refund(u64),
    Reset,
    Block(u64),
    Unblock,
    // The next calls have other amounts, as with a computed threshold.
    Change(usize),
    // A rule changes the amounts of the process.
    Rule(usize),
    // A rule exempts the calls of the process, or makes their limit a shadow.
    Free { shadow: bool },
    Advance(u64),
    // No call comes until the server has expired the count.
    Idle,
    // The clock of the process steps: it is up to some ticks before or behind the time of the trace.
    Step(u64),
    // Repeats the last call after its `retry_after`, if it was rejected.
    Retry,
    Evict,
    // The connection of the first process breaks after the server has received a request.
    LoseReply { request: Lost, cost: Cost },
    // Kills the process, and starts another.
    Crash,
    // Begins to move the hash slot of the key to another node of a cluster, or ends that.
    MoveSlot,
}

/// The request whose reply is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lost {
    Check,
    Acquire,
    // The settlement of one of the open permits.
    Settle(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Units(u64),
    // As many eighths of the capacity.
    Eighths(u64),
}

impl Cost {
    fn times(&mut self, unit: u64) {
        if let Self::Units(units) = self {
            *units *= unit;
        }
    }

    pub(crate) fn of(self, limit: &Limit) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Eighths(eighths) => (limit.capacity() * eighths / 8).max(1),
        }
    }
}

impl What {
    /// Multiplies the units of an operation.
    pub(crate) fn times(&mut self, unit: u64) {
        match self {
            Self::Check(cost)
            | Self::Acquire(cost)
            | Self::Wait { cost, .. }
            | Self::Several { cost, .. }
            | Self::Once { cost, .. }
            | Self::LoseReply { cost, .. } => cost.times(unit),
            Self::Settle { used: units, .. } | Self::Refund(units) => *units *= unit,
            _ => {}
        }
    }
}

/// Returns a random operation of one of the processes. `most` is the capacity.
pub(crate) fn operation(processes: usize, most: u64) -> impl Strategy<Value = Operation> {
    (0..processes, what(most))
}

fn what(most: u64) -> impl Strategy<Value = What> {
    let cost = || {
        prop_oneof![
            3 => (1_u64..4).prop_map(Cost::Units),
            4 => (1_u64..=8).prop_map(Cost::Eighths),
            2 => Just(Cost::Eighths(8)),
        ]
    };
    let used = prop_oneof![3 => 0..=most / 2, 3 => Just(0), 1 => 0..most * 2];
    let request =
        prop_oneof![Just(Lost::Check), Just(Lost::Acquire), any::<usize>().prop_map(Lost::Settle)];
    prop_oneof![
        10 => cost().prop_map(What::Check),
        5 => (1_u64..20).prop_map(What::Burst),
        10 => cost().prop_map(What::Acquire),
        18 => (cost(), 1_u64..120, any::<bool>())
            .prop_map(|(cost, ticks, acquires)| What::Wait { cost, ticks, acquires }),
        5 => (cost(), any::<bool>()).prop_map(|(cost, acquires)| What::Several { cost, acquires }),
        5 => (cost(), 0_u64..3).prop_map(|(cost, id)| What::Once { cost, id }),
        5 => any::<usize>().prop_map(What::Drop),
        10 => any::<usize>().prop_map(What::Pause),
        19 => (any::<usize>(), used).prop_map(|(which, used)| What::Settle { which, used }),
        3 => any::<usize>().prop_map(What::Keep),
        2 => (1..=most).prop_map(What::Refund),
        2 => Just(What::Reset),
        6 => ticks().prop_map(What::Block),
        2 => Just(What::Unblock),
        3 => (0_usize..3).prop_map(What::Change),
        3 => (0_usize..3).prop_map(What::Rule),
        1 => any::<bool>().prop_map(|shadow| What::Free { shadow }),
        18 => ticks().prop_map(What::Advance),
        1 => Just(What::Idle),
        2 => any::<u64>().prop_map(What::Step),
        4 => Just(What::Retry),
        2 => Just(What::Evict),
        1 => (request, cost()).prop_map(|(request, cost)| What::LoseReply { request, cost }),
        1 => Just(What::Crash),
        1 => Just(What::MoveSlot),
    ]
}

pub(crate) fn ticks() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 1_u64..4, 3 => 1_u64..20, 1 => 1_u64..120]
}
