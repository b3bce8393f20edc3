//! What rule 1 excepts by design, for the judge. The page `guarantees.md` has the same list.

use ratelimit_runtime::Limit;
use support::judge::Exception;

use crate::calls::{Call, Waiting};
use crate::player::{A_SECOND, Player};

/// What rule 1 excepts of a call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Excepted {
    No,
    /// A call has used more than it was charged: the moments that are reserved do not move.
    Start,
    /// The count under its moment was lost or refilled faster: the call comes on top.
    Call,
}

/// The units that the store may count although the judge does not.
#[derive(Default)]
pub(crate) struct Missing {
    /// Units of killed processes, of calls that the judge does not know, and of calls whose reply was lost.
    pub(crate) units: u64,
    /// What calls have used beyond their charge.
    pub(crate) debts: u64,
    /// Whether replies were lost, so that units may not have gone back.
    pub(crate) is_excused: bool,
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
        self.except_waiting(excepted, |call| granted_from[call.process].is_some());
    }

    /// Excepts the calls that wait for moments, but not those of one process.
    pub(crate) fn except(&mut self, but: Option<usize>, excepted: Excepted) {
        let is_bucket = self.setup.is_bucket();
        self.except_waiting(excepted, |call| is_bucket && Some(call.process) != but);
    }

    fn except_waiting(&mut self, excepted: Excepted, which: impl Fn(&Call) -> bool) {
        for Waiting { call, .. } in self.waiting.iter_mut().filter(|it| which(&it.call)) {
            call.excepted = call.excepted.max(excepted);
        }
    }

    /// A call is dropped. A refund may have given its moment back, and the call gives it back once more. A call that a
    /// rule frees may be decided without a line: it keeps what it was charged.
    pub(crate) fn except_dropped(&mut self, call: &Call) {
        let is_free = call.is_free || self.is_free[call.process];
        if is_free || self.granted_from[call.process].is_some() {
            self.missing.units += call.cost;
            self.judge.unseen((call.decided, self.now()));
        }
        for limit in &call.limits {
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
        self.except_waiting(Excepted::Call, |call| {
            is_bucket && call.limits.iter().any(|own| own.threshold() < limit.threshold())
        });
    }
}
