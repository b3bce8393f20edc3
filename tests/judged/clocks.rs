//! The clocks of a trace: its time, and the clocks of the processes, which may be ahead or behind.

use std::time::Duration;

use crate::player::Player;

impl Player<'_> {
    /// Lets time pass.
    pub(crate) fn pass(&mut self, micros: u64) {
        self.fleet.clock.advance(Duration::from_micros(micros));
        self.fleet.expire(micros);
        self.move_clocks();
    }

    /// Sets the clock of each process.
    pub(crate) fn move_clocks(&self) {
        for (process, ahead_by) in self.alive.iter().zip(self.ahead_by) {
            process.clock.set(Duration::from_micros(self.now().saturating_add_signed(ahead_by)));
        }
    }

    /// Sets how much the clock of a process is ahead or behind.
    pub(crate) async fn step(&mut self, process: usize, ticks: u64) {
        if self.setup.skew == 0 {
            return;
        }
        let (number, skew) = (self.process(process), self.setup.skew);
        let ahead_by = (ticks % (2 * skew + 1)) as i64 - skew as i64;
        self.ahead_by[number] = ahead_by * self.setup.tick as i64;
        self.tell(format_args!("the clock of p{number} is {ahead_by} ticks ahead"));
        self.move_clocks();
        self.collect().await;
    }

    /// Lets so much time pass that the server expires an idle count. Calls that wait would make it busy.
    pub(crate) async fn idle(&mut self) {
        if self.has_waited {
            return;
        }
        // A key expires up to 10 seconds and a minute, or an eighth, after its state no longer matters.
        let time = 3 * self.setup.period + 130_000_000;
        let ticks = time.div_ceil(self.setup.tick);
        self.tell(format_args!("nothing happens for {ticks} ticks"));
        self.pass(ticks * self.setup.tick);
        self.collect().await;
    }
}
