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
    pub(crate) fn move_clocks(&mut self) {
        for (number, process) in self.alive.iter().enumerate() {
            let time = self.clock_of(number);
            process.clock.set(Duration::from_micros(time));
            self.latest[number] = self.latest[number].max(time);
        }
    }

    /// Returns the time of the clock of a process, in microseconds.
    fn clock_of(&self, number: usize) -> u64 {
        self.now().saturating_add_signed(self.ahead_by[number])
    }

    /// Returns whether the clock of a process has been later than it is.
    pub(crate) fn is_behind(&self, number: usize) -> bool {
        self.clock_of(number) < self.latest[number]
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
