//! The operations of a trace of calls in flight.

use proptest::prelude::*;

use crate::operation::ticks;

#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Drop,
    Keep,
    Release,
    // The rate beside is settled to these units.
    Settle(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleOf {
    Nothing,
    InFlight(u64),
    Exempt,
    Shadow,
    Blocked,
    // Another number is tried beside the limit.
    Trial(u64),
}

/// A kind of operation. Those of calls that run or wait name one of them by any number. Times are ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    // A call of one group: units in flight, and a rate if it `is_rated`. It may wait.
    Call { cost: u64, is_rated: bool, ticks: Option<u64> },
    // Ends one of the running calls.
    End { which: usize, end: End },
    // Drops one of the calls that wait, polled or not.
    DropWaiting(usize),
    // Polls a call some times, and drops it.
    DropEarly { polls: u64, ticks: Option<u64> },
    // Does not poll one of the calls that wait, or polls it again.
    Pause(usize),
    // Makes so many calls of a rate of the same key, which leases.
    Lease(u64),
    Rule(RuleOf),
    // The next calls have another limit in the code.
    Change(u64),
    // Blocks the key of the units in flight, or of the rate beside them.
    Block { ticks: u64, is_of_rate: bool },
    Unblock { is_of_rate: bool },
    Reset,
    Advance(u64),
    // The first process loses the reply to a call, or to the statement about an end.
    LoseReply { cost: u64, ends: Option<usize> },
    // The server closes all connections, forgets its scripts, loses its memory, or is replaced by another one.
    Disconnect,
    FlushScripts,
    LoseMemory,
    Restart,
    // The first process reaches no server: its fallback decides calls.
    Outage { calls: u64, cost: u64, ends: Option<usize> },
    // More time passes than the hold. The process can stand still meanwhile.
    OutliveHold { stands_still: bool },
    // Kills the process, and starts another.
    Crash,
    MoveSlot,
}

pub(crate) const MOST: u64 = 5;

pub(crate) fn what() -> impl Strategy<Value = What> {
    let cost = || prop_oneof![4 => Just(1_u64), 2 => 1..=MOST, 1 => Just(0)];
    let ends = || prop::option::of(any::<usize>());
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
        30 => (cost(), any::<bool>(), prop::option::of(ticks()))
            .prop_map(|(cost, is_rated, ticks)| What::Call { cost, is_rated, ticks }),
        16 => (any::<usize>(), end).prop_map(|(which, end)| What::End { which, end }),
        3 => any::<usize>().prop_map(What::DropWaiting),
        2 => (0_u64..6, prop::option::of(ticks()))
            .prop_map(|(polls, ticks)| What::DropEarly { polls, ticks }),
        3 => any::<usize>().prop_map(What::Pause),
        2 => (1_u64..9).prop_map(What::Lease),
        4 => rule.prop_map(What::Rule),
        1 => (1..=MOST).prop_map(What::Change),
        2 => (ticks(), any::<bool>())
            .prop_map(|(ticks, is_of_rate)| What::Block { ticks, is_of_rate }),
        1 => any::<bool>().prop_map(|is_of_rate| What::Unblock { is_of_rate }),
        1 => Just(What::Reset),
        8 => ticks().prop_map(What::Advance),
        2 => (cost(), ends()).prop_map(|(cost, ends)| What::LoseReply { cost, ends }),
        1 => Just(What::Disconnect),
        1 => Just(What::FlushScripts),
        1 => Just(What::LoseMemory),
        1 => Just(What::Restart),
        2 => (1_u64..5, 1_u64..3, ends())
            .prop_map(|(calls, cost, ends)| What::Outage { calls, cost, ends }),
        2 => any::<bool>().prop_map(|stands_still| What::OutliveHold { stands_still }),
        1 => Just(What::Crash),
        2 => Just(What::MoveSlot),
    ]
}
