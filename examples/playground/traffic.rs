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
}

/// The shortest and the longest gap between calls, for any limit.
const GAPS: (Duration, Duration) = (Duration::from_millis(40), Duration::from_secs(5));
const LONGEST_BURST: u32 = 20;

/// The time of the next automatic call.
pub(crate) struct Schedule {
    traffic: Traffic,
    limit: Limit,
    due: Instant,
    /// Calls of this burst so far.
    calls: u32,
}

impl Schedule {
    pub(crate) fn new(traffic: Traffic, limit: &Limit) -> Self {
        Self { traffic, limit: limit.clone(), due: Instant::now(), calls: 0 }
    }

    /// Completes when a call is due. A future that is dropped before changes nothing.
    pub(crate) async fn next(&mut self) {
        if self.traffic == Traffic::Clicks {
            return std::future::pending().await;
        }
        tokio::time::sleep_until(self.due).await;
        // Skips calls that a slow store has delayed.
        self.due = self.due.max(Instant::now()) + self.gap();
    }

    fn gap(&mut self) -> Duration {
        let even = self.limit.period() / self.limit.threshold();
        let within = |gap: Duration| gap.clamp(GAPS.0, GAPS.1);
        match self.traffic {
            Traffic::Clicks | Traffic::Steady => within(even * 4 / 5),
            Traffic::Hammering => within((even / 8).min(Duration::from_millis(150))),
            Traffic::Bursts => {
                let burst = self.limit.threshold().saturating_mul(2).min(LONGEST_BURST);
                self.calls = (self.calls + 1) % burst;
                let pause = self.limit.period().saturating_mul(6) / 5;
                if self.calls == 0 { within(pause) } else { GAPS.0 * 3 }
            }
        }
    }
}
