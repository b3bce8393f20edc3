//! Limits of the calls that run at the same time.

use std::time::Duration;

use super::{Algorithm, Identity, Limit, LimitError, Period, Policy, Terms};

/// The hold unless one is set.
const DEFAULT_HOLD: Duration = Duration::from_secs(30);

/// The shortest hold. Heartbeats are sent three times in it.
const MIN_HOLD: Duration = Duration::from_secs(1);

/// The longest hold, which is the longest time for which a process that was killed holds its slots.
const MAX_HOLD: Duration = Duration::from_secs(86_400);

impl Limit {
    /// Admits calls while fewer than `in_flight` units of other calls are in flight. A call that is admitted holds its
    /// units until it ends: [`acquire`](crate::RateLimiter::acquire) returns a [`Permit`](crate::Permit), which holds
    /// them until it is dropped.
    ///
    /// ```
    /// use ratelimit_runtime::{Limit, RateLimiter, Rejection};
    ///
    /// const EXPORTS: Limit = Limit::in_flight("exports", 2);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Rejection> {
    /// let limiter = RateLimiter::embedded();
    /// let first = limiter.acquire(&EXPORTS, "acme", 1).await?;
    /// let second = limiter.acquire(&EXPORTS, "acme", 1).await?;
    /// let busy = limiter.acquire(&EXPORTS, "acme", 1).await.expect_err("two are in flight");
    /// assert!(matches!(busy, Rejection::Busy { in_flight: 2, .. }));
    /// drop(first);
    /// let third = limiter.acquire(&EXPORTS, "acme", 1).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `check` returns nothing that could give the units back, so it rejects each call with
    /// [`Mistake::NeedsPermit`](crate::Mistake::NeedsPermit).
    ///
    /// # Panics
    ///
    /// On values that [`try_in_flight`](Self::try_in_flight) rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn in_flight(name: &'static str, in_flight: u64) -> Self {
        super::valid(Self::try_in_flight(name, in_flight))
    }

    /// Creates a limit of calls in flight from values that are known only at run time.
    ///
    /// # Errors
    ///
    /// On an empty name; on 0, which would reject every call; above a billion.
    pub const fn try_in_flight(name: &'static str, in_flight: u64) -> Result<Self, LimitError> {
        if in_flight == 0 {
            return Err(LimitError("`in_flight` must be at least 1: 0 would reject every call"));
        }
        // Any period: only rates derive amounts from it.
        let identity = Identity::new(name, Algorithm::InFlight, Period::SECOND);
        let policy = Policy { hold: Some(DEFAULT_HOLD), ..Policy::DEFAULT };
        match Terms::new(identity, in_flight, in_flight) {
            Ok(terms) => Ok(Self { terms, policy }),
            Err(invalid) => Err(invalid),
        }
    }

    /// Sets for how long Redis keeps the units of a process from which it hears nothing: 30 seconds unless set. A
    /// process says three times in this time what it holds. If it is killed, its units are free after this time; if it
    /// is stopped or cut off for so long, its calls [lose](crate::Permit::is_lost) them.
    ///
    /// # Errors
    ///
    /// On a limit of another algorithm; below a second; above a day; on a hold that is not a whole number of
    /// milliseconds.
    pub const fn try_hold(mut self, hold: Duration) -> Result<Self, LimitError> {
        Err(LimitError(if !self.is_in_flight() {
            "`hold` is for units that are held while a call runs: use it with in_flight"
        } else if hold.as_nanos() < MIN_HOLD.as_nanos() {
            "`hold` must be at least a second"
        } else if hold.as_nanos() > MAX_HOLD.as_nanos() {
            "`hold` must be at most a day: a process that is killed keeps its units for so long"
        } else if !hold.subsec_nanos().is_multiple_of(1_000_000) {
            "`hold` must be a whole number of milliseconds"
        } else {
            self.policy.hold = Some(hold);
            return Ok(self);
        }))
    }

    /// Sets for how long Redis keeps the units of a process from which it hears nothing, 30 seconds unless set; see
    /// [`try_hold`](Self::try_hold).
    ///
    /// # Panics
    ///
    /// On values that `try_hold` rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn hold(self, hold: Duration) -> Self {
        super::valid(self.try_hold(hold))
    }

    /// Returns whether this limits the calls that run at the same time.
    pub(crate) const fn is_in_flight(&self) -> bool {
        self.terms.is_in_flight()
    }
}

impl Terms {
    /// Returns whether the units of a call are held until it ends.
    pub(crate) const fn is_in_flight(&self) -> bool {
        matches!(self.identity.algorithm, Algorithm::InFlight)
    }
}
