//! The calls that the playground makes by itself.

use std::time::Duration;

use ratelimit_runtime::Limit;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The pattern of the automatic calls.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Traffic {
    /// No automatic calls.
    Clicks,
    /// One call after the other, a little more often than the limit admits.
    Steady,
    /// A burst of twice the threshold, then a pause of more than a period.
    Bursts,
    /// Far more often than the limit admits, without a pause.
    Hammering,
    /// The threshold late in a fixed window, and again early in the next window.
    Edge,
    /// Three times the threshold whenever a fixed window begins.
    Retries,
    /// Half as many calls again as the limit admits.
    Leak,
}

/// The shortest and the longest gap between calls, for any limit.
const GAPS: (Duration, Duration) = (Duration::from_millis(40), Duration::from_secs(5));
/// The gap between two calls of a burst.
const CLOSE: Duration = Duration::from_millis(60);
const LONGEST_BURST: u64 = 20;

/// The time of the next automatic call.
pub(crate) struct Schedule {
    traffic: Traffic,
    limit: Limit,
    due: Instant,
    /// The time of the first call of the cycle. A fixed window begins with it.
    began: Instant,
    /// Calls of this cycle so far.
    calls: u64,
}

impl Schedule {
    pub(crate) fn new(traffic: Traffic, limit: &Limit) -> Self {
        let now = Instant::now();
        Self { traffic, limit: *limit, due: now, began: now, calls: 0 }
    }

    /// Completes when a call is due. A future that is dropped before changes nothing.
    pub(crate) async fn next(&mut self) {
        if self.traffic == Traffic::Clicks {
            return std::future::pending().await;
        }
        tokio::time::sleep_until(self.due).await;
        if self.calls == 0 {
            self.began = Instant::now();
        }
        self.calls += 1;
        // Skips calls that a slow store has delayed.
        self.due = self.following().max(Instant::now() + GAPS.0);
    }

    /// Returns the time of the call after this one, and ends the cycle if this one is its last.
    fn following(&mut self) -> Instant {
        let (period, threshold) = (self.limit.period(), self.limit.threshold());
        let even = period / u32::try_from(threshold).unwrap_or(u32::MAX);
        let within = |gap: Duration| gap.clamp(GAPS.0, GAPS.1);
        let burst = |times: u64| threshold.saturating_mul(times).min(LONGEST_BURST);
        match self.traffic {
            Traffic::Clicks | Traffic::Steady => self.due + within(even * 4 / 5),
            Traffic::Leak => self.due + within(even * 2 / 3),
            Traffic::Hammering => self.due + within((even / 8).min(Duration::from_millis(150))),
            Traffic::Bursts => self.cycle(burst(2), self.due + CLOSE * 2, within(period * 6 / 5)),
            Traffic::Retries => {
                // A window begins with the first call of a burst, so the next burst follows its end.
                let pause = (self.began + period + CLOSE).duration_since(self.due);
                self.cycle(burst(3), self.due + CLOSE / 2, pause)
            }
            Traffic::Edge => {
                let half = burst(1);
                let next = match self.calls {
                    // The first call only begins the window.
                    1 => self.began + (period * 19 / 20).saturating_sub(CLOSE * half as u32),
                    calls if calls == half => self.began + period + CLOSE,
                    _ => self.due + CLOSE,
                };
                self.cycle(half * 2, next, within(period * 11 / 10))
            }
        }
    }

    /// Returns `next`; after the last of `calls` calls, the end of the pause.
    fn cycle(&mut self, calls: u64, next: Instant, pause: Duration) -> Instant {
        if self.calls < calls {
            return next;
        }
        self.calls = 0;
        self.due + pause
    }
}
