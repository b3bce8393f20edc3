//! What was admitted: how many calls in the fullest second, and the figures of the table.

use std::fmt::{self, Write as _};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::{PERIOD, THRESHOLD};
use crate::text::{BAD, Report, Text, brief, quantiles};

/// What the reader of the table reads out of it.
const READING: &str = "\
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

/// The table.
#[derive(Serialize)]
pub(crate) struct Table {
    pub(crate) threshold: u64,
    pub(crate) period_ms: u64,
    pub(crate) limiters: Vec<Figures>,
}

/// A line of the table.
#[derive(Serialize)]
pub(crate) struct Figures {
    limiter: &'static str,
    is_ours: bool,
    fullest: u64,
    beyond: u64,
    decisions_per_second: u64,
    median_us: f64,
    p99_us: f64,
}

impl Figures {
    /// Returns the figures of calls that all clients made within a time.
    pub(crate) fn new(
        limiter: &'static str,
        is_ours: bool,
        calls: &[Call],
        fullest: usize,
        within: Duration,
    ) -> Self {
        let fullest = fullest as u64;
        let durations = calls.iter().map(|call| call.decided - call.sent).collect();
        let (median, p99) = quantiles(durations);
        Self {
            limiter,
            is_ours,
            fullest,
            beyond: fullest.saturating_sub(THRESHOLD),
            decisions_per_second: (calls.len() as f64 / within.as_secs_f64()).round() as u64,
            median_us: median.as_nanos() as f64 / 1e3,
            p99_us: p99.as_nanos() as f64 / 1e3,
        }
    }
}

impl Report for Table {
    fn write(&self, text: &mut Text) -> fmt::Result {
        writeln!(text, "The limit is {THRESHOLD} calls in any second.\n")?;
        let head = ["limiter", "in the fullest second", "beyond", "decisions/s", "median", "p99"];
        write_row(text, head)?;
        for figures in &self.limiters {
            let Figures {
                limiter, fullest, beyond, decisions_per_second, median_us, p99_us, ..
            } = figures;
            let [median, p99] =
                [median_us, p99_us].map(|micros| brief(Duration::from_secs_f64(micros / 1e6)));
            let [fullest, beyond, per_second] =
                [fullest, beyond, decisions_per_second].map(u64::to_string);
            write_row(text, [limiter, &fullest, &beyond, &per_second, &median, &p99])?;
        }
        writeln!(text, "\n{READING}")?;
        if self.has_findings() {
            text.styled(
                BAD,
                "\nThis library has admitted calls beyond the limit: please report this table.\n",
            );
        }
        Ok(())
    }

    fn has_findings(&self) -> bool {
        self.limiters.iter().any(|figures| figures.is_ours && figures.beyond > 0)
    }
}

fn write_row(
    text: &mut Text,
    [limiter, fullest, beyond, per_second, median, p99]: [&str; 6],
) -> fmt::Result {
    writeln!(
        text,
        "{limiter:32}  {fullest:>21}  {beyond:>6}  {per_second:>11}  {median:>8}  {p99:>8}"
    )
}
