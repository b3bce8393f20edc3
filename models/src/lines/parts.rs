//! What tells two states apart.

use std::fmt::Write;

use super::super::Waiter;
use super::play::Play;

impl Play {
    /// Returns all that later steps depend on.
    pub(super) fn parts(&self) -> String {
        let mut parts = String::with_capacity(1_024);
        let line = &self.line;
        let mut waiters: Vec<_> = line.waiters.iter().collect();
        waiters.sort_unstable_by_key(|(arrival, _)| *arrival);
        for (arrival, waiter) in waiters {
            let Waiter { costs, deadline, late_at, on_error, pinged, .. } = waiter;
            let stage = waiter.stage();
            let _ = write!(
                parts,
                "{arrival} {costs:?} {deadline} {late_at:?} {on_error:?} {pinged:?} {stage:?};"
            );
        }
        let _ = write!(
            parts,
            "{:?} {:?} {} {:?} {:?} {:?} {:?} {:?} {} {} {} {:?} {};",
            line.waiters.looks,
            line.delay,
            line.last_arrival,
            (&line.passing, &line.spares),
            line.estimate(),
            line.last_request,
            line.pause_end,
            line.last_scan,
            line.is_asking,
            line.returning,
            line.has_changed,
            line.overstaying,
            line.woken,
        );
        let _ = write!(
            parts,
            "{:?} {:?} {:?} {:?} {:?} {} {:?}",
            self.pending,
            self.reply,
            self.returns,
            self.calls,
            self.taken_elsewhere,
            self.log,
            [
                self.ticks,
                self.drops,
                self.lost,
                self.foreign,
                self.resets,
                self.charged,
                self.given_back,
            ],
        );
        parts
    }
}
