//! Limits whose amounts depend on the caller: the same count, with other amounts.

use super::identity::{OF_TRIAL, name_of_trial};
use super::{Align, Identity, Lease, Limit, LimitError, Policy, Terms};

impl Limit {
    /// Returns this limit with other amounts, for limits that depend on the caller. The count is the same: what was
    /// charged stays charged, and the amounts of a call decide that call. Without a `burst`, the capacity of a token
    /// bucket is the threshold, and that of a leaky bucket 1. The limit does not [lease](Self::lease).
    ///
    /// With an amount of 0, the limit is blocked: each call is a [`Rejection::Blocked`](crate::Rejection::Blocked),
    /// unless a [rule](crate::Rule) sets another threshold.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, RateLimiter, Rejection};
    ///
    /// const API: Limit = Limit::token_bucket("api", 100, Duration::from_secs(60));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::embedded();
    /// let limit = API.try_amounts(5_000, Some(200))?;
    /// assert_eq!(limiter.check(&limit, "acme", 1).await?.remaining, 199);
    /// let blocked = API.try_amounts(0, None)?;
    /// assert!(matches!(limiter.check(&blocked, "acme", 1).await, Err(Rejection::Blocked { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// On a limit that [remembers](Self::once) calls; on a burst of a limit that is not a bucket; on amounts that are
    /// too large, as [`new`](Self::new) says; on a bucket that takes more than 100 years to fill.
    pub fn try_amounts(&self, threshold: u64, burst: Option<u64>) -> Result<Self, LimitError> {
        if self.policy.once {
            return Err(LimitError::REMEMBERS);
        }
        let policy = Policy { lease: Lease::None, has_burst: false, blocked: false, ..self.policy };
        if let Some(burst) = burst
            && !self.terms.is_bucket()
        {
            return self.try_burst(burst);
        }
        if threshold == 0 || burst == Some(0) {
            return Ok(Self { policy: Policy { blocked: true, ..policy }, ..*self });
        }
        let capacity = self.algorithm().default_capacity(threshold);
        let terms = Terms::new(self.terms.identity, threshold, capacity)?;
        let limit = Self { terms: Terms { windows: self.terms.windows, ..terms }, policy };
        burst.map_or(Ok(limit), |burst| limit.try_burst(burst))
    }

    /// Returns this limit with windows that begin where `align` says, for windows that depend on the caller: the zone
    /// of a tenant, the billing day of a customer. The count is the same: a window ends where it was to end when it
    /// began, and the next one begins at a boundary of the call that begins it.
    ///
    /// ```
    /// # #[cfg(feature = "calendar")]
    /// # {
    /// use ratelimit_runtime::{Align, Calendar, Limit, RateLimiter};
    ///
    /// const MONTHLY: Limit = Limit::calendar("monthly", 10_000, Calendar::Month);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = RateLimiter::embedded();
    /// let (tenant, zone, billing_day) = ("acme", "America/New_York", 15);
    /// let limit = MONTHLY.with_align(Align::try_zone(zone)?.try_day(billing_day)?)?;
    /// limiter.check(&limit, tenant, 1).await?;
    /// # Ok(())
    /// # }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`try_align`](Self::try_align).
    pub fn with_align(&self, align: Align) -> Result<Self, LimitError> {
        let terms = Terms { windows: Some(align), ..self.terms };
        self.try_align(align).map(|_| Self { terms, ..*self })
    }

    /// Returns this limit with computed amounts, and with a lease as far as it fits. Amounts that do not fit are an
    /// error beside the limit with the largest amounts up to `threshold` that it can count, and of a bucket with the
    /// largest burst that fills within 100 years.
    pub(crate) fn with_computed(
        &self,
        threshold: u64,
        burst: Option<u64>,
        lease: Lease,
    ) -> (Self, Option<LimitError>) {
        let computed = self.try_amounts(threshold, burst);
        let mut limit = computed.unwrap_or_else(|_| {
            let largest = Terms::largest(self.terms.identity, threshold);
            let terms = Terms { windows: self.terms.windows, ..largest };
            let policy = Policy { blocked: threshold == 0, lease: Lease::None, ..self.policy };
            Self { terms, policy }
        });
        limit.policy.varies = true;
        (limit.with_lease(lease), computed.err())
    }

    /// Returns the trial of another threshold beside this limit: a shadow with counts of its own, which neither waits
    /// nor leases; `None` if this process has made too many names. It keeps the burst that this limit sets.
    pub(crate) fn trial(&self, threshold: u64) -> Option<Self> {
        // A call that runs beside its trial would have to hold units of both.
        if self.is_in_flight() || self.policy.once {
            return None;
        }
        let name = name_of_trial(self.terms.identity.name).ok()?;
        let (mut limit, _) = self.under_rule(Some(threshold), None);
        limit.terms.identity = Identity { name, ..limit.terms.identity }.hashed();
        limit.policy = Policy { shadow: true, wait: None, lease: Lease::None, ..limit.policy };
        Some(limit)
    }

    /// Returns whether this is the trial of a rule.
    pub(crate) fn is_trial(&self) -> bool {
        self.policy.shadow && self.policy.varies && self.name().ends_with(OF_TRIAL)
    }

    /// Returns this limit with the amounts of a rule, and what does not fit. Without a `threshold` or a `burst`, the
    /// limit keeps its own, and so does one that remembers calls. The burst of a rule is ignored if this is not a
    /// bucket, and shortened if the bucket would fill for over 100 years.
    pub(crate) fn under_rule(
        &self,
        threshold: Option<u64>,
        burst: Option<u64>,
    ) -> (Self, Option<LimitError>) {
        if self.policy.once {
            let has_amounts = threshold.or(burst).is_some();
            return (*self, has_amounts.then_some(LimitError::REMEMBERS));
        }
        let threshold = threshold.unwrap_or(self.threshold());
        let burst = burst.or(self.policy.has_burst.then(|| self.capacity()));
        self.with_computed(threshold, burst, self.policy.lease)
    }
}
