//! What rule 1 excepts by design, for the judge. The guide `algorithms.md` has the same list.

use ratelimit_runtime::Limit;
use support::judge::Exception;

use crate::calls::Waiting;
use crate::player::{A_SECOND, Player};

/// What rule 1 excepts of a call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Excepted {
    No,
    /// A call has used more than it was charged: the moments that are reserved do not move.
    Start,
    /// The count under its moment was lost, closed or refilled faster: the call comes on top.
    Call,
}

impl Player<'_> {
    /// The count starts anew, by a process. What other processes hold of it comes on top.
    pub(crate) fn lose(&mut self, process: usize) {
        self.judge.excepted(self.now(), Exception::Lost);
        self.leases_excepted_until = self.now() + A_SECOND;
        self.except(Some(process), Excepted::Call);
    }

    /// Excepts the calls that wait for moments, but not those of one process.
    pub(crate) fn except(&mut self, but: Option<usize>, excepted: Excepted) {
        let but = but.map(|process| self.process(process));
        let is_bucket = self.setup.is_bucket();
        let others = self.waiting.iter_mut().filter(|it| is_bucket && Some(it.process) != but);
        others.for_each(|waiting| waiting.excepted = waiting.excepted.max(excepted));
    }

    /// Records that a call is decided under a limit. A rate above that of units which are charged ahead drains them
    /// before they are used.
    pub(crate) fn in_force(&mut self, at: u64, limit: &Limit) {
        self.judge.in_force(at, limit.threshold());
        let mut on_top = 0;
        self.ahead.retain(|(threshold, cost)| {
            let is_raised = *threshold < limit.threshold();
            on_top += if is_raised { u64::from(*cost) } else { 0 };
            !is_raised
        });
        let lower = |waiting: &&mut Waiting| {
            waiting.limits.iter().any(|own| own.threshold() < limit.threshold())
        };
        for waiting in self.waiting.iter_mut().filter(lower) {
            waiting.excepted = Excepted::Call;
        }
        if on_top > 0 {
            self.judge.excepted(at, Exception::Refund { units: on_top });
        }
    }
}
