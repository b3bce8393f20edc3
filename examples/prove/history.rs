//! What was admitted: how many calls in the fullest second, and the figures of the table.

use std::time::Duration;

use tokio::time::Instant;

use crate::PERIOD;

/// What the reader of the table reads out of it.
pub(crate) const READING: &str = "\
Read the column `beyond`: so many calls were admitted although 100 others had been, within the same second.

INCR, EXPIRE keeps another promise: 100 in each window. Two windows meet, so a second can admit almost 200. With three
commands, clients decide between the commands of others: the more clients, the more calls. The script and this library
are exact. This library decides concurrent calls in one script. In the last line, it also rejects calls without a round
trip, as long as a rejection by Redis holds.

The second is counted in favour of the limiter. A call was admitted at some time between its request and its reply. So
calls count as one second only if less than 990 ms pass from the first request to the last reply: 1 % less, because two
clocks do not run alike. A clock of the server that steps ahead meanwhile is the only cause of a wrong accusation.";

/// One call of a client.
pub(crate) struct Call {
    /// The time before its request.
    pub(crate) sent: Instant,
    /// The time after its reply: it was decided before.
    pub(crate) decided: Instant,
    pub(crate) is_admitted: bool,
}

/// Returns the largest number of calls that were certainly admitted within one period.
pub(crate) fn fullest(calls: &[Call]) -> usize {
    let within = PERIOD * 99 / 100;
    let mut admitted: Vec<_> = calls.iter().filter(|call| call.is_admitted).collect();
    admitted.sort_by_key(|call| call.sent);
    let in_period = |first: usize| {
        let end = admitted[first].sent + within;
        admitted[first..].iter().filter(|call| call.decided < end).count()
    };
    (0..admitted.len()).map(in_period).max().unwrap_or(0)
}

/// A line of the table.
pub(crate) struct Figures {
    fullest: usize,
    per_second: f64,
    median: Duration,
    p99: Duration,
}

impl Figures {
    /// Returns the figures of calls that all clients made within a time.
    pub(crate) fn new(calls: &[Call], fullest: usize, within: Duration) -> Self {
        let mut durations: Vec<_> = calls.iter().map(|call| call.decided - call.sent).collect();
        durations.sort_unstable();
        let quantile = |part: usize| durations[(durations.len() - 1) * part / 100];
        let per_second = calls.len() as f64 / within.as_secs_f64();
        Self { fullest, per_second, median: quantile(50), p99: quantile(99) }
    }

    pub(crate) fn row(&self, limiter: &str, threshold: usize) -> String {
        let beyond = self.fullest.saturating_sub(threshold);
        let [median, p99] = [self.median, self.p99].map(readable);
        let per_second = format!("{:.0}", self.per_second);
        row([limiter, &self.fullest.to_string(), &beyond.to_string(), &per_second, &median, &p99])
    }
}

pub(crate) fn head() -> String {
    row(["limiter", "in the fullest second", "beyond", "decisions/s", "median", "p99"])
}

fn row([limiter, fullest, beyond, per_second, median, p99]: [&str; 6]) -> String {
    format!("{limiter:32}  {fullest:>21}  {beyond:>6}  {per_second:>11}  {median:>8}  {p99:>8}")
}

fn readable(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    match micros {
        ..10.0 => format!("{micros:.1} µs"),
        ..1_000.0 => format!("{micros:.0} µs"),
        _ => format!("{:.1} ms", micros / 1e3),
    }
}
