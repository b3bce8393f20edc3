//! What an operator does to a count: refunds units, resets it, and blocks and unblocks its key.

use std::time::Duration;

use support::judge::Exception;

use crate::exceptions::Excepted;
use crate::player::Player;

impl Player<'_> {
    pub(crate) async fn refund(&mut self, process: usize, units: u64) {
        let limit = self.limit(process);
        self.limiter(process).credit(&limit, &self.key, units).await.expect("refunded");
        self.tell(format_args!("p{process} refunds {units}"));
        self.in_force(self.now(), &limit);
        self.judge.excepted(self.now(), Exception::Refund { units });
        // Some of the units may be of moments ahead.
        self.except(None, Excepted::Call);
        self.collect().await;
    }

    pub(crate) async fn reset(&mut self, process: usize) {
        self.limiter(process).reset(&self.limit(process), &self.key).await.expect("reset");
        self.tell(format_args!("p{process} resets"));
        self.lose(Some(process)).await;
    }

    pub(crate) async fn block(&mut self, process: usize, ticks: u64) {
        let (from, time) = (self.now(), ticks * self.setup.tick);
        let blocked = Duration::from_micros(time);
        let limiter = self.limiter(process);
        limiter.block(&self.limit(process), &self.key, blocked).await.expect("blocked");
        self.tell(format_args!("p{process} blocks for {ticks} ticks"));
        let by = self.process(process);
        self.blocks.blocked(by, self.moment(), from + time);
        self.collect().await;
    }

    pub(crate) async fn unblock(&mut self, process: usize) {
        self.limiter(process).unblock(&self.limit(process), &self.key).await.expect("unblocked");
        self.tell(format_args!("p{process} unblocks"));
        self.blocks.unblocked(self.now());
        self.collect().await;
    }
}
