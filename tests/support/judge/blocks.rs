//! The judge of the promise "a blocked key admits nothing": it knows which process has blocked the key when, and when
//! the units of each admitted call may have been charged.
//!
//! A block holds for every charge after it, in every process. A call that starts later may have been charged before:
//! it was not polled, or the process had charged its units ahead. The process that blocks uses no such units, and the
//! others grant them to calls for a second at most. A call that is not polled starts later.

/// For how long other processes grant units that were charged ahead, in microseconds.
const A_SECOND: u64 = 1_000_000;

/// A time, and the number of the operation of a history. It orders the operations of one time. What happens in the same
/// operation as a block may have happened before it.
pub type Moment = (u64, usize);

/// The blocks of one key: the process that has blocked it, when, and until when.
#[derive(Clone, Debug, Default)]
pub struct BlockJudge {
    blocks: Vec<(usize, Moment, u64)>,
    /// By how much the clocks of two processes differ at most.
    skew: u64,
}

/// An admitted call.
#[derive(Clone, Copy, Debug)]
pub struct GrantedCall {
    pub process: usize,
    /// The moment at which the store may have granted its units, unless these were charged ahead.
    pub granted: Moment,
    pub starts: u64,
    /// Whether the units may have been charged ahead: the call has waited for a bucket, or its units were leased.
    pub is_ahead: bool,
}

impl BlockJudge {
    pub fn with_skew(skew: u64) -> Self {
        Self { skew, ..Self::default() }
    }

    /// Records that a process has blocked the key. An earlier block with a later end holds as well.
    pub fn blocked(&mut self, process: usize, from: Moment, until: u64) {
        self.blocks.push((process, from, until));
    }

    /// Records that the key was unblocked, or that its count was lost.
    pub fn unblocked(&mut self, at: u64) {
        self.blocks.iter_mut().for_each(|(.., until)| *until = at.min(*until));
    }

    /// Returns whether the key was certainly blocked when the units of a call were granted, and when the call has
    /// started.
    pub fn objects_to(&self, call: GrantedCall) -> bool {
        let GrantedCall { process, granted, starts, is_ahead } = call;
        self.blocks.iter().any(|(by, from, until)| {
            let is_unobserved = granted.0 <= from.0 + A_SECOND + self.skew;
            let may_be_unobserved = is_ahead && process != *by && is_unobserved;
            *from < granted && starts + self.skew < *until && !may_be_unobserved
        })
    }

    pub fn knows_any(&self) -> bool {
        !self.blocks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that a judge objects, or does not, to calls of a process that are granted and start at a moment.
    fn assert_judged(judge: &BlockJudge, rows: &[(bool, usize, Moment, bool)]) {
        for (objects, process, granted, is_ahead) in rows.iter().copied() {
            let call = GrantedCall { process, granted, starts: granted.0, is_ahead };
            assert_eq!(judge.objects_to(call), objects, "{call:?} after {judge:?}");
        }
    }

    #[test]
    fn a_blocked_key_admits_nothing() {
        let mut judge = BlockJudge::default();
        judge.blocked(0, (5, 3), 10);
        // The first may come before the block. A later block that ends earlier changes nothing.
        for _ in 0..2 {
            assert_judged(&judge, &[(false, 1, (5, 3), false), (true, 1, (5, 4), false)]);
            assert_judged(&judge, &[(true, 0, (9, 5), false), (false, 0, (10, 5), false)]);
            judge.blocked(0, (6, 4), 7);
        }
        let (granted, starts) = ((5, 2), 9);
        assert!(!judge.objects_to(GrantedCall { process: 0, granted, starts, is_ahead: false }));
        judge.unblocked(8);
        assert_judged(&judge, &[(true, 0, (7, 6), false), (false, 0, (8, 6), false)]);
    }

    #[test]
    fn other_processes_use_units_that_were_charged_ahead_for_a_second() {
        let mut judge = BlockJudge::default();
        judge.blocked(0, (0, 1), 3 * A_SECOND);
        assert_judged(&judge, &[(true, 0, (A_SECOND, 2), true), (false, 1, (A_SECOND, 2), true)]);
        assert_judged(&judge, &[(true, 1, (A_SECOND + 1, 2), true)]);
        // A second block of the other process.
        judge.blocked(1, (A_SECOND / 2, 2), 2 * A_SECOND);
        assert_judged(&judge, &[(true, 1, (A_SECOND, 3), true)]);
    }

    #[test]
    fn clocks_that_differ_are_given_the_benefit_of_the_doubt() {
        let mut judge = BlockJudge::with_skew(4);
        judge.blocked(0, (5, 3), 20);
        assert_judged(&judge, &[(true, 0, (15, 4), false), (false, 0, (16, 4), false)]);
        judge.blocked(0, (30, 4), 3 * A_SECOND);
        let late = A_SECOND + 35;
        assert_judged(&judge, &[(false, 1, (late - 1, 5), true), (true, 1, (late, 5), true)]);
    }
}
