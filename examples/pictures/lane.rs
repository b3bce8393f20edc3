//! The decisions of the embedded store about the traffic, for each algorithm.

use std::error::Error;
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Clock, Limit, RateLimiter, Rejection, VirtualClock};

pub(crate) const PERIOD: Duration = Duration::from_secs(5);

/// Each column is a quarter of a second: one call early in a window, a burst around the end of the window,
/// one call a second, another burst, and again one call a second.
const CALLS: &str = "x...............xxxxxxxxxx......x...x...x...xxxxxxxx....x...x...x";
const COLUMN: Duration = Duration::from_millis(250);

/// One algorithm and its decisions. Times count from the first call.
pub(crate) struct Lane {
    limit: Limit,
    pub(crate) name: &'static str,
    pub(crate) promise: &'static str,
    pub(crate) admitted: Vec<Duration>,
    pub(crate) refused: Vec<Duration>,
    /// Where windows begin; none of a bucket.
    pub(crate) windows: Vec<Duration>,
    /// How full a bucket is, from 0 to 1, wherever that changes.
    pub(crate) levels: Vec<(Duration, f64)>,
}

/// The whole of the time that is drawn.
pub(crate) fn length() -> Duration {
    COLUMN * CALLS.len() as u32
}

pub(crate) async fn all() -> Result<Vec<Lane>, Box<dyn Error>> {
    let lanes = [
        (Limit::sliding("pictures", 5, PERIOD), "Sliding window", "never more than 5 in any 5 s"),
        (Limit::fixed("pictures", 5, PERIOD), "Fixed window", "5 per window of 5 s"),
        (Limit::sliding_counter("pictures", 5, PERIOD), "Sliding counter", "about 5 in any 5 s"),
        (
            Limit::token_bucket("pictures", 5, PERIOD),
            "Token bucket",
            "5 at once, then one every 1 s",
        ),
        (Limit::leaky_bucket("pictures", 5, PERIOD), "Leaky bucket", "one every 1 s"),
    ];
    let mut decided = Vec::new();
    for (limit, name, promise) in lanes {
        let (admitted, refused, windows, levels) = Default::default();
        let mut lane = Lane { limit, name, promise, admitted, refused, windows, levels };
        lane.decide().await?;
        decided.push(lane);
    }
    Ok(decided)
}

impl Lane {
    async fn decide(&mut self) -> Result<(), Box<dyn Error>> {
        // The start of a window of the sliding counter, whose windows begin at multiples of the period.
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let limiter = RateLimiter::builder().clock(Clock::Virtual(clock.clone())).build()?;
        for (column, call) in CALLS.chars().enumerate() {
            let now = COLUMN * column as u32;
            self.look(&limiter, now).await?;
            if call == 'x' {
                match limiter.check(&self.limit, (), 1).await {
                    Ok(decision) => {
                        self.admitted.push(now);
                        self.note_window(now + decision.reset_after);
                    }
                    Err(Rejection::Limited { .. }) => self.refused.push(now),
                    Err(other) => return Err(other.into()),
                }
                self.look(&limiter, now).await?;
            }
            clock.advance(COLUMN);
        }
        Ok(())
    }

    /// How full the bucket is: `reset_after` is what it takes to fill it up.
    async fn look(&mut self, limiter: &RateLimiter, now: Duration) -> Result<(), Rejection> {
        if matches!(self.limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            let missing = limiter.peek(&self.limit, (), 1).await?.reset_after;
            let whole =
                PERIOD.mul_f64(self.limit.capacity() as f64 / self.limit.threshold() as f64);
            self.levels.push((now, 1.0 - missing.as_secs_f64() / whole.as_secs_f64()));
        }
        Ok(())
    }

    /// A count is as new when its window is over; two counts, a period later.
    fn note_window(&mut self, reset: Duration) {
        let periods = match self.limit.algorithm() {
            Algorithm::Fixed => 1,
            Algorithm::SlidingCounter => 2,
            _ => return,
        };
        let start = reset.saturating_sub(PERIOD * periods);
        if self.windows.last() != Some(&start) {
            self.windows.push(start);
        }
    }

    /// The end of the last period in which most was admitted, and how much that was.
    pub(crate) fn fullest(&self) -> (Duration, usize) {
        let within = |end: Duration| {
            self.admitted.iter().filter(|at| **at <= end && **at + PERIOD > end).count()
        };
        let mut fullest = (Duration::ZERO, 0);
        for end in &self.admitted {
            if within(*end) >= fullest.1 {
                fullest = (*end, within(*end));
            }
        }
        fullest
    }

    pub(crate) fn file(&self) -> &'static str {
        self.limit.algorithm().as_str()
    }

    /// The picture in words, for screen readers.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{}, {}: of {} calls {} are admitted and {} rejected; at most {} in any 5 s.",
            self.name,
            self.promise,
            self.admitted.len() + self.refused.len(),
            self.admitted.len(),
            self.refused.len(),
            self.fullest().1,
        )
    }
}
