//! What rule 1 excepts by design, for the judge. The page `guarantees.md` has the same list.

use ratelimit_runtime::Limit;
use support::judge::{BlockJudge, Exception, Judge};

use crate::calls::Waiting;
use crate::player::{A_SECOND, Player};
use crate::trace::Setup;

/// What rule 1 excepts of a call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Excepted {
    No,
    /// A call has used more than it was charged: the moments that are reserved do not move.
    Start,
    /// The count under its moment was lost or refilled faster: the call comes on top.
    Call,
}

impl Setup {
    /// Returns a judge that knows how much the clocks of processes differ: by twice the skew, because one may be behind
    /// and another ahead.
    pub(crate) fn with_exceptions(&self, judge: Judge) -> Judge {
        judge.with_skew(2 * self.skew * self.tick)
    }

    /// Returns a judge of blocks that knows the same.
    pub(crate) fn block_judge(&self) -> BlockJudge {
        BlockJudge::with_skew(2 * self.skew * self.tick)
    }
}

impl Player<'_> {
    /// The count starts anew, by a process or by the server. What other processes hold of it comes on top.
    pub(crate) async fn lose(&mut self, process: Option<usize>) {
        self.blocks.unblocked(self.now());
        self.see_grants();
        self.judge.excepted(self.now(), Exception::Lost);
        self.leases_excepted_until = self.now() + A_SECOND;
        if self.setup.is_bucket() {
            // Leased units that other processes give back instead of spending them.
            let units = self.setup.most_leased() * self.alive.len() as u64;
            let others = process.map_or(units, |_| units - self.setup.most_leased());
            let until = self.leases_excepted_until;
            self.judge.excepted(self.now(), Exception::Return { units: others, until });
        }
        self.except(process, Excepted::Call);
        self.except_paused(Excepted::Call);
        self.collect().await;
        // Leased units go back to the count of the time at which they were charged. So the new count begins later, by
        // any clock.
        if self.setup.most_leased() > 0 {
            self.advance(1 + 2 * self.setup.skew).await;
        }
    }

    /// Excepts the calls that are not polled: they may have been charged before, and start once they are polled. The
    /// calls behind them can receive their grants.
    pub(crate) fn except_paused(&mut self, excepted: Excepted) {
        let granted_from = self.granted_from;
        let may_have_grant = |waiting: &&mut Waiting| granted_from[waiting.process].is_some();
        for waiting in self.waiting.iter_mut().filter(may_have_grant) {
            waiting.excepted = waiting.excepted.max(excepted);
        }
    }

    /// Excepts the calls that wait for moments, but not those of one process.
    pub(crate) fn except(&mut self, but: Option<usize>, excepted: Excepted) {
        let but = but.map(|process| self.process(process));
        let is_bucket = self.setup.is_bucket();
        let others = self.waiting.iter_mut().filter(|it| is_bucket && Some(it.process) != but);
        others.for_each(|waiting| waiting.excepted = waiting.excepted.max(excepted));
    }

    /// A call is dropped. A refund may have given its moment back, and the call gives it back once more. A call that a
    /// rule frees may be decided without a line: it keeps what it was charged.
    pub(crate) fn except_dropped(&mut self, waiting: &Waiting) {
        if waiting.is_free
            || self.is_free[waiting.process]
            || self.granted_from[waiting.process].is_some()
        {
            self.missing.units += waiting.cost;
            self.judge.unseen((waiting.decided, self.now()));
        }
        for limit in &waiting.limits {
            // Its line may just have asked under this limit.
            self.judge.in_force(self.now(), limit.threshold());
        }
        self.see_grants();
    }

    /// Calls of processes that do not poll may have been charged, and may never start.
    fn see_grants(&mut self) {
        for (granted_from, _) in self.granted_from.into_iter().flatten() {
            self.judge.unseen((granted_from, self.now()));
        }
    }

    /// Records that a call is decided under a limit. A rate above that of units which are charged ahead drains them
    /// before they are used.
    pub(crate) fn in_force(&mut self, at: u64, limit: &Limit) {
        self.judge.in_force(at, limit.threshold());
        if self.setup.most_leased() > 0 {
            self.recent.retain(|(when, ..)| when + A_SECOND > at);
            self.recent.push((at, limit.threshold(), limit.capacity()));
        }
        let is_raised = |(threshold, ..): &mut (u64, u64, u64)| *threshold < limit.threshold();
        for (_, units, until) in self.ahead.extract_if(.., is_raised) {
            // They come on top when their call starts.
            self.judge.excepted(at, Exception::Return { units, until });
        }
        let is_bucket = self.setup.is_bucket();
        let lower = |waiting: &&mut Waiting| {
            is_bucket && waiting.limits.iter().any(|own| own.threshold() < limit.threshold())
        };
        for waiting in self.waiting.iter_mut().filter(lower) {
            waiting.excepted = Excepted::Call;
        }
    }
}
