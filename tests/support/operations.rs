//! The kinds of operations that random traces can play. `tests/judged/` plays all of them. A `match` there, without a
//! wildcard, assigns a kind to each operation.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A kind of operations.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum OperationKind {
            $($(#[$doc])* $name,)*
        }

        impl OperationKind {
            /// All kinds.
            pub const ALL: [Self; [$(Self::$name),*].len()] = [$(Self::$name),*];
        }
    };
}

operations! {
    /// Decides a call.
    Check,
    /// Makes several calls of one unit, which make a key busy.
    Burst,
    /// Decides a call whose charge can be settled.
    Acquire,
    /// Starts a call that waits.
    Wait,
    /// Drops a call that waits.
    Drop,
    /// Does not poll a call that waits, or polls it again.
    Pause,
    /// Charges units in advance, to spend them without a request.
    Lease,
    /// Gives units back to their own charge, as at the end of a lease.
    Return,
    /// Settles a call for fewer units than it was charged.
    Settle,
    /// Settles a call for more units than it was charged.
    Debt,
    /// Keeps the charge of a call that could be settled.
    Keep,
    /// Gives units back to the newest charges.
    Refund,
    /// Looks at a count.
    Peek,
    /// Resets a count.
    Reset,
    /// Blocks a key.
    Block,
    /// Unblocks a key.
    Unblock,
    /// Computes other amounts for the next calls.
    Change,
    /// Sets other amounts by a rule.
    Rule,
    /// Exempts calls by a rule, or makes their limit a shadow.
    Free,
    /// Decides a call of several limits.
    Several,
    /// Moves the clock.
    Advance,
    /// Moves the clock so far that the server expires idle keys.
    Idle,
    /// Makes the clock of one process differ from those of the others, or step back.
    Step,
    /// Repeats a rejected call after its `retry_after`.
    Retry,
    /// Evicts a count from the server.
    Evict,
    /// Loses the reply to a request.
    LostReply,
    /// Kills a process.
    Crash,
    /// Moves a hash slot of a cluster to another node, and leaves keys behind.
    MoveSlot,
}

/// Asserts that the steps of random traces are of exactly the kinds of which `plays` is true. Let `plays` be a `match`
/// without a wildcard: then a new kind does not compile before each test says whether it plays it.
///
/// # Panics
///
/// If the steps are of another kind, or are not of one of them.
pub fn assert_plays<S: Strategy>(
    steps: &S,
    kinds: impl Fn(&S::Value) -> &'static [OperationKind],
    plays: impl Fn(OperationKind) -> bool,
) {
    let mut runner = TestRunner::deterministic();
    let played: Vec<OperationKind> = (0..5_000)
        .flat_map(|_| kinds(&steps.new_tree(&mut runner).expect("a step").current()))
        .copied()
        .collect();
    for kind in OperationKind::ALL {
        assert_eq!(played.contains(&kind), plays(kind), "{kind:?}");
    }
}
