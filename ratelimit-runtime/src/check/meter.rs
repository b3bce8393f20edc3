//! [`Meter`]: a permit that counts what a call uses, and settles it at the end of the call.

use std::fmt;
use std::mem::take;

use super::Permit;
use crate::one_or_many::OneOrMany;
use crate::reply::Decision;

/// Counts the units that a call uses, and settles the charge of the call to them when it is dropped.
///
/// A call that ends early, by an error, a panic or a cancelled task, is charged what it has used until then. A
/// [`Permit`] that is dropped keeps the whole charge instead.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::{Limit, RateLimiter};
///
/// const TOKENS: Limit = Limit::sliding("tokens", 10_000, Duration::from_secs(60));
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = RateLimiter::embedded();
/// // An answer takes 1,000 tokens at most.
/// let mut meter = limiter.acquire(&TOKENS, "acme", 1_000).await?.meter();
/// for part in ["An", "answer"] {
///     meter.add(u64::try_from(part.len())?);
/// }
/// assert_eq!(meter.used(), 8);
/// drop(meter);
/// assert_eq!(limiter.peek(&TOKENS, "acme", 1).await?.remaining, 9_992);
/// # Ok(())
/// # }
/// ```
#[must_use = "a meter that is dropped settles the charge to the units that it has counted"]
pub struct Meter {
    /// Empty once the charges are kept or settled.
    permits: OneOrMany<Permit>,
    decision: Decision,
    used: u64,
}

impl Permit {
    /// Returns a meter, which settles the charge to the units that it has counted when it is dropped.
    pub fn meter(self) -> Meter {
        Meter { decision: self.decision(), permits: OneOrMany::from([self]), used: 0 }
    }

    /// Returns a [meter](Self::meter) for a call that counts only if it ends well: it gives the charge back when it is
    /// dropped, unless [`Meter::keep`] keeps the charge.
    ///
    /// ```
    /// # use ratelimit_runtime::{Permit, Rejection};
    /// # async fn deliver() -> Result<(), Rejection> { Ok(()) }
    /// async fn send(permit: Permit) -> Result<(), Rejection> {
    ///     let charge = permit.refund_on_drop();
    ///     deliver().await?; // An error, a panic and a drop of this future give the charge back.
    ///     charge.keep();
    ///     Ok(())
    /// }
    /// ```
    pub fn refund_on_drop(self) -> Meter {
        self.meter()
    }
}

impl Meter {
    /// Creates a meter of the charges of a call with several limits: each of them is settled to the units that it has
    /// counted. The decision is that of the first permit.
    pub fn of(permits: impl IntoIterator<Item = Permit>) -> Self {
        let permits: Vec<_> = permits.into_iter().collect();
        let decision = permits.first().map_or_else(Decision::unlimited, Permit::decision);
        Self { permits: permits.into(), decision, used: 0 }
    }

    /// Sets the units that the call has used so far, in place of those that were counted: for a service that reports a
    /// running total.
    pub fn set(&mut self, total: u64) {
        self.used = total;
    }

    /// Adds units that the call has used. The sum saturates.
    pub fn add(&mut self, units: u64) {
        self.used = self.used.saturating_add(units);
    }

    /// Returns the units that the call has used so far.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Returns the decision about the call.
    #[must_use]
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Keeps the charge as it was made, whatever was counted.
    pub fn keep(mut self) {
        take(&mut self.permits).into_iter().for_each(Permit::keep);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        take(&mut self.permits).into_iter().for_each(|permit| permit.settle(self.used));
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter")
            .field("permits", &self.permits)
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}
