//! The operations of a trace.

use proptest::prelude::*;
use ratelimit_runtime::Limit;
use support::operations::{OperationKind, assert_plays};

/// An operation of one process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// Decides a call. With a limit that leases, spends or requests leased units.
    Check {
        process: usize,
        cost: Cost,
    },
    /// Decides calls of one unit, one after another. They make a key busy.
    Burst {
        process: usize,
        calls: u64,
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
    /// Drops one of the calls that wait, polled or not.
    DropWaiting {
        which: usize,
    },
    /// Does not poll one of the calls that wait, or polls it again.
    Pause {
        which: usize,
    },
    /// Settles one of the open permits to the units that its call has used.
    Settle {
        which: usize,
        used: u64,
    },
    /// Keeps the charge of one of the open permits.
    Keep {
        which: usize,
    },
    Refund {
        process: usize,
        units: u64,
    },
    Reset {
        process: usize,
    },
    Block {
        process: usize,
        ticks: u64,
    },
    Unblock {
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
    /// A rule exempts the calls of a process, or makes their limit a shadow.
    Free {
        process: usize,
        shadow: bool,
    },
    /// Decides a call of two limits.
    Together {
        process: usize,
        cost: Cost,
        acquires: bool,
    },
    Advance {
        ticks: u64,
    },
    /// No call comes until the server has expired the count.
    Idle,
    /// The clock of a process steps: it is up to some ticks before or behind the time of the trace.
    Step {
        process: usize,
        ticks: u64,
    },
    /// Repeats the last call after its `retry_after`, if it was rejected.
    Retry,
    /// The server evicts the count.
    Evict,
    /// The connection of a process breaks after the server has received a request.
    LoseReply {
        request: Lost,
        cost: Cost,
    },
    /// Kills a process, and starts another.
    Crash {
        process: usize,
    },
    /// Begins to move the hash slot of the key to another node of a cluster, or ends that.
    MoveSlot,
}

/// The request whose reply is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lost {
    Check,
    Acquire,
    /// The settlement of one of the open permits.
    Settle {
        which: usize,
    },
}

/// The cost of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Units(u64),
    /// As many eighths of the capacity.
    Eighths(u64),
}

impl Cost {
    pub(crate) fn of(self, limit: &Limit) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Eighths(eighths) => (limit.capacity() * eighths / 8).max(1),
        }
    }
}

impl Operation {
    pub(crate) fn kind(&self) -> OperationKind {
        match self {
            Self::Check { .. } => OperationKind::Check,
            Self::Burst { .. } => OperationKind::Burst,
            Self::Acquire { .. } => OperationKind::Acquire,
            Self::Wait { .. } => OperationKind::Wait,
            Self::DropWaiting { .. } => OperationKind::Drop,
            Self::Pause { .. } => OperationKind::Pause,
            Self::Settle { .. } => OperationKind::Settle,
            Self::Keep { .. } => OperationKind::Keep,
            Self::Refund { .. } => OperationKind::Refund,
            Self::Reset { .. } => OperationKind::Reset,
            Self::Block { .. } => OperationKind::Block,
            Self::Unblock { .. } => OperationKind::Unblock,
            Self::Change { .. } => OperationKind::Change,
            Self::Rule { .. } => OperationKind::Rule,
            Self::Free { .. } => OperationKind::Free,
            Self::Together { .. } => OperationKind::Several,
            Self::Advance { .. } => OperationKind::Advance,
            Self::Idle => OperationKind::Idle,
            Self::Step { .. } => OperationKind::Step,
            Self::Retry => OperationKind::Retry,
            Self::Evict => OperationKind::Evict,
            Self::LoseReply { .. } => OperationKind::LostReply,
            Self::Crash { .. } => OperationKind::Crash,
            Self::MoveSlot => OperationKind::MoveSlot,
        }
    }
}

fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        3 => (1_u64..4).prop_map(Cost::Units),
        4 => (1_u64..=8).prop_map(Cost::Eighths),
        2 => Just(Cost::Eighths(8)),
    ]
}

/// Returns a random operation of one of the processes. `most` is the capacity.
pub(crate) fn operation(processes: usize, most: u64) -> impl Strategy<Value = Operation> {
    let process = || 0..processes;
    prop_oneof![
        32 => call(processes),
        11 => correction(most),
        6 => operators(processes, most),
        3 => (process(), 0_usize..3, any::<bool>(), 0_u64..7).prop_map(
            |(process, amounts, shadow, kind)| match kind {
                0..3 => Operation::Change { amounts },
                3..6 => Operation::Rule { process, amounts },
                _ => Operation::Free { process, shadow },
            }
        ),
        9 => ticks().prop_map(|ticks| Operation::Advance { ticks }),
        1 => (process(), any::<u64>()).prop_map(
            |(process, ticks)| Operation::Step { process, ticks }
        ),
        2 => Just(Operation::Retry),
        3 => fault(processes),
    ]
}

fn ticks() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 1_u64..4, 3 => 1_u64..20, 1 => 1_u64..120]
}

fn call(processes: usize) -> impl Strategy<Value = Operation> {
    let process = || 0..processes;
    prop_oneof![
        4 => (process(), cost()).prop_map(|(process, cost)| Operation::Check { process, cost }),
        2 => (process(), 1_u64..20).prop_map(
            |(process, calls)| Operation::Burst { process, calls }
        ),
        4 => (process(), cost()).prop_map(|(process, cost)| Operation::Acquire { process, cost }),
        7 => (process(), cost(), 1_u64..120, any::<bool>()).prop_map(
            |(process, cost, ticks, acquires)| Operation::Wait { process, cost, ticks, acquires }
        ),
        2 => any::<usize>().prop_map(|which| Operation::DropWaiting { which }),
        4 => any::<usize>().prop_map(|which| Operation::Pause { which }),
        2 => (process(), cost(), any::<bool>()).prop_map(|(process, cost, acquires)| {
            Operation::Together { process, cost, acquires }
        }),
    ]
}

fn correction(most: u64) -> impl Strategy<Value = Operation> {
    let less = any::<(usize, u64)>()
        .prop_map(move |(which, used)| Operation::Settle { which, used: used % (most / 2 + 1) });
    let none = any::<usize>().prop_map(|which| Operation::Settle { which, used: 0 });
    let more = any::<(usize, u64)>()
        .prop_map(move |(which, used)| Operation::Settle { which, used: used % (most * 2) });
    prop_oneof![
        3 => less,
        3 => none,
        1 => more,
        1 => any::<usize>().prop_map(|which| Operation::Keep { which }),
    ]
}

fn operators(processes: usize, most: u64) -> impl Strategy<Value = Operation> {
    (0..processes, 1..=most, ticks(), 0_u64..6).prop_map(|(process, units, ticks, kind)| match kind
    {
        0 => Operation::Refund { process, units },
        1 => Operation::Reset { process },
        2..5 => Operation::Block { process, ticks },
        _ => Operation::Unblock { process },
    })
}

fn fault(processes: usize) -> impl Strategy<Value = Operation> {
    let request = prop_oneof![
        Just(Lost::Check),
        Just(Lost::Acquire),
        any::<usize>().prop_map(|which| Lost::Settle { which }),
    ];
    prop_oneof![
        2 => Just(Operation::Evict),
        1 => Just(Operation::Idle),
        1 => (request, cost()).prop_map(|(request, cost)| Operation::LoseReply { request, cost }),
        2 => (0..processes).prop_map(|process| Operation::Crash { process }),
        2 => Just(Operation::MoveSlot),
    ]
}

/// All kinds are played. A settlement is also a debt, a setup can lease, and each trace ends with peeks.
#[test]
fn plays_everything() {
    static EACH: [OperationKind; OperationKind::ALL.len()] = OperationKind::ALL;
    let kinds = |operation: &Operation| match operation.kind() {
        OperationKind::Settle => &[OperationKind::Settle, OperationKind::Debt][..],
        OperationKind::Check => {
            &[OperationKind::Check, OperationKind::Lease, OperationKind::Return][..]
        }
        kind => std::slice::from_ref(&EACH[kind as usize]),
    };
    assert_plays(&operation(8, 10), kinds, |kind| kind != OperationKind::Peek);
}
