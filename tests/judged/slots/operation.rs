//! The operations of a trace of calls in flight.

use proptest::prelude::*;
use support::operations::{OperationKind, assert_plays};

/// How a call ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Drop,
    Keep,
    Release,
    /// The rate beside is settled to these units.
    Settle(u64),
}

/// What a rule of one process says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleOf {
    Nothing,
    InFlight(u64),
    Exempt,
    Shadow,
    Blocked,
    /// Another number is tried beside the limit.
    Trial(u64),
}

/// An operation of one process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// A call of one group: units in flight, and a rate if it `is_rated`. It waits for up to some ticks.
    Call {
        process: usize,
        cost: u64,
        is_rated: bool,
        ticks: Option<u64>,
    },
    /// Ends one of the running calls.
    End {
        which: usize,
        end: End,
    },
    /// Drops one of the calls that wait, polled or not.
    DropWaiting {
        which: usize,
    },
    /// Polls a call some times, and drops it.
    DropEarly {
        process: usize,
        polls: u64,
        ticks: Option<u64>,
    },
    /// Does not poll one of the calls that wait, or polls it again.
    Pause {
        which: usize,
    },
    /// Calls a rate of the same key, which leases.
    Lease {
        process: usize,
        calls: u64,
    },
    Rule {
        process: usize,
        rule: RuleOf,
    },
    /// The next calls have another limit in the code.
    Change {
        most: u64,
    },
    /// Blocks the key of the units in flight, or of the rate beside them.
    Block {
        process: usize,
        ticks: u64,
        is_of_rate: bool,
    },
    Unblock {
        process: usize,
        is_of_rate: bool,
    },
    Reset {
        process: usize,
    },
    Advance {
        ticks: u64,
    },
    /// The first process loses the reply to a call, or to the statement about an end.
    LoseReply {
        cost: u64,
        ends: Option<usize>,
    },
    /// The server closes all connections.
    Disconnect,
    /// The server forgets its scripts.
    FlushScripts,
    /// The server loses its memory.
    LoseMemory,
    /// The server ends, and another one starts in its place.
    Restart,
    /// The first process reaches no server: its fallback decides calls.
    Outage {
        calls: u64,
        cost: u64,
        ends: Option<usize>,
    },
    /// More time passes than the hold. A process can stand still meanwhile.
    OutliveHold {
        stopped: Option<usize>,
    },
    /// Kills a process, and starts another.
    Crash {
        process: usize,
    },
    MoveSlot,
}

impl Operation {
    /// Returns the kinds of the operation, among those of other traces.
    fn kinds(&self) -> &'static [OperationKind] {
        match self {
            Self::Call { ticks: None, is_rated: false, .. } => &[OperationKind::Acquire],
            Self::Call { ticks: None, is_rated: true, .. } => &[OperationKind::Several],
            Self::Call { ticks: Some(_), .. } => &[OperationKind::Wait],
            Self::End { end: End::Settle(_), .. } => &[OperationKind::Settle, OperationKind::Debt],
            Self::End { end: End::Drop | End::Release, .. } => &[OperationKind::Return],
            Self::End { end: End::Keep, .. } => &[OperationKind::Keep],
            Self::DropWaiting { .. } | Self::DropEarly { .. } => &[OperationKind::Drop],
            Self::Pause { .. } => &[OperationKind::Pause],
            Self::Lease { .. } => {
                &[OperationKind::Lease, OperationKind::Check, OperationKind::Burst]
            }
            Self::Rule { rule: RuleOf::Exempt | RuleOf::Shadow, .. } => &[OperationKind::Free],
            Self::Rule { .. } => &[OperationKind::Rule],
            Self::Change { .. } => &[OperationKind::Change],
            Self::Block { .. } => &[OperationKind::Block],
            Self::Unblock { .. } => &[OperationKind::Unblock],
            Self::Reset { .. } => &[OperationKind::Reset],
            Self::Advance { .. } => &[OperationKind::Advance],
            Self::LoseReply { .. }
            | Self::Disconnect
            | Self::FlushScripts
            | Self::Outage { .. } => &[OperationKind::LostReply],
            Self::LoseMemory | Self::Restart => &[OperationKind::Evict],
            Self::OutliveHold { .. } => &[OperationKind::Idle],
            Self::Crash { .. } => &[OperationKind::Crash],
            Self::MoveSlot => &[OperationKind::MoveSlot],
        }
    }
}

/// The largest limit of a trace.
pub(crate) const MOST: u64 = 5;

/// Returns a random operation of one of the processes.
pub(crate) fn operation(processes: usize) -> impl Strategy<Value = Operation> {
    let process = || 0..processes;
    let ticks = || prop_oneof![3 => 1_u64..4, 3 => 1_u64..20, 1 => 1_u64..120];
    let cost = || prop_oneof![4 => Just(1_u64), 2 => 1..=MOST, 1 => Just(0)];
    let call = (process(), cost(), any::<bool>(), prop::option::of(ticks())).prop_map(
        |(process, cost, is_rated, ticks)| Operation::Call { process, cost, is_rated, ticks },
    );
    let end = prop_oneof![
        3 => Just(End::Drop),
        1 => Just(End::Keep),
        2 => Just(End::Release),
        2 => (0_u64..8).prop_map(End::Settle),
    ];
    let rule = prop_oneof![
        2 => Just(RuleOf::Nothing),
        4 => (1..=MOST).prop_map(RuleOf::InFlight),
        1 => Just(RuleOf::Exempt),
        1 => Just(RuleOf::Shadow),
        1 => Just(RuleOf::Blocked),
        1 => (1..=MOST).prop_map(RuleOf::Trial),
    ];
    prop_oneof![
        30 => call,
        16 => (any::<usize>(), end).prop_map(|(which, end)| Operation::End { which, end }),
        3 => any::<usize>().prop_map(|which| Operation::DropWaiting { which }),
        2 => (process(), 0_u64..6, prop::option::of(ticks())).prop_map(
            |(process, polls, ticks)| Operation::DropEarly { process, polls, ticks }
        ),
        3 => any::<usize>().prop_map(|which| Operation::Pause { which }),
        2 => (process(), 1_u64..9).prop_map(
            |(process, calls)| Operation::Lease { process, calls }
        ),
        4 => (process(), rule).prop_map(|(process, rule)| Operation::Rule { process, rule }),
        1 => (1..=MOST).prop_map(|most| Operation::Change { most }),
        2 => (process(), ticks(), any::<bool>()).prop_map(
            |(process, ticks, is_of_rate)| Operation::Block { process, ticks, is_of_rate }
        ),
        1 => (process(), any::<bool>()).prop_map(
            |(process, is_of_rate)| Operation::Unblock { process, is_of_rate }
        ),
        1 => process().prop_map(|process| Operation::Reset { process }),
        8 => ticks().prop_map(|ticks| Operation::Advance { ticks }),
        2 => (cost(), prop::option::of(any::<usize>())).prop_map(
            |(cost, ends)| Operation::LoseReply { cost, ends }
        ),
        1 => Just(Operation::Disconnect),
        1 => Just(Operation::FlushScripts),
        1 => Just(Operation::LoseMemory),
        1 => Just(Operation::Restart),
        2 => (1_u64..5, 1_u64..3, prop::option::of(any::<usize>())).prop_map(
            |(calls, cost, ends)| Operation::Outage { calls, cost, ends }
        ),
        2 => prop::option::of(process()).prop_map(
            |stopped| Operation::OutliveHold { stopped }
        ),
        1 => process().prop_map(|process| Operation::Crash { process }),
        2 => Just(Operation::MoveSlot),
    ]
}

/// A retry has no time here, and a refund ends no call. Each step ends with a peek.
#[test]
fn plays_everything() {
    assert_plays(&operation(8), Operation::kinds, |kind| match kind {
        OperationKind::Retry
        | OperationKind::Refund
        | OperationKind::Peek
        | OperationKind::Step => false,
        OperationKind::Check
        | OperationKind::Burst
        | OperationKind::Acquire
        | OperationKind::Wait
        | OperationKind::Drop
        | OperationKind::Pause
        | OperationKind::Lease
        | OperationKind::Return
        | OperationKind::Settle
        | OperationKind::Debt
        | OperationKind::Keep
        | OperationKind::Reset
        | OperationKind::Block
        | OperationKind::Unblock
        | OperationKind::Change
        | OperationKind::Rule
        | OperationKind::Free
        | OperationKind::Several
        | OperationKind::Advance
        | OperationKind::Idle
        | OperationKind::Evict
        | OperationKind::LostReply
        | OperationKind::Crash
        | OperationKind::MoveSlot => true,
    });
}
