//! Leases as a part of a limit: which leases are valid, and the stricter terms under which the store counts
//! them. `lease/mod.rs` explains the terms.

use super::{Algorithm, Identity, Limit, LimitError, Period, Policy, Scope, Terms, WindowScale};

/// The shortest period of a limit that leases. In a shorter period, a lease would end before calls could spend it.
const MIN_PERIOD_US: u64 = 100_000;

/// The lifetime of a lease is the period divided by this number, but at most [`MAX_LEASE_US`].
const LEASES_PER_PERIOD: u64 = 100;

/// The longest lifetime of a lease, in microseconds.
const MAX_LEASE_US: u64 = 1_000_000;

/// A process leases automatically up to the threshold divided by this number, so at most one percent.
const AUTO_SHARE: u64 = 100;

/// How many units of a count a process may lease: [`Policy::lease`](crate::Policy::lease).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lease {
    /// None.
    None,
    /// Up to this number.
    UpTo(u64),
    /// Up to one percent of the threshold, of keys that are busy.
    Auto,
}

impl Limit {
    /// Leases up to `units` of a busy key: one request to Redis charges them in advance, and calls spend
    /// them in this process. Most calls then take less than a microsecond.
    ///
    /// The limit still holds exactly, for any number of processes. The price:
    ///
    /// - A process can hold up to `units` unspent units while another process rejects calls. The size of a lease
    ///   follows demand. It is smaller if few units are left, or if other processes use most of them. For a key that is
    ///   rarely used, or almost used up, a process leases nothing. It holds units for one term: a hundredth of the
    ///   period, at most a second. Then the process gives them back. It gives them back earlier if it calls
    ///   [`shutdown`](crate::RateLimiter::shutdown) or drops the limiter. If the process is killed, the units count as
    ///   used.
    /// - A call can spend a unit up to one term after its charge, so the limit is stricter: the `period` is longer by
    ///   one term, or the `burst` of a bucket is smaller by the tokens that refill in one term. While calls can spend
    ///   leased units, the smaller burst also applies to processes that use the same bucket without leases. The windows
    ///   of [`fixed`](Self::fixed) do not change, because a lease ends with its window.
    /// - For `sliding` and `sliding_counter`, the longer period is another period: counts start at zero when
    ///   you add or remove the lease of a limit.
    ///
    /// Leasing changes nothing on the embedded store, with [`Scope::Process`](crate::Scope::Process), for
    /// calls that [`wait`](Self::wait), and for several limits in one decision.
    ///
    /// # Errors
    ///
    /// On 0 units; on more units than the limit admits at once (for a bucket: the burst minus the tokens that refill in
    /// one term); on a period below 100 milliseconds.
    pub const fn try_lease(mut self, units: u64) -> Result<Self, LimitError> {
        if units == 0 {
            return Err(LimitError("`lease` must be at least 1: 0 would lease nothing"));
        }
        if let Err(invalid) = self.terms.check_can_lease() {
            return Err(invalid);
        }
        if units > self.terms.lease_capacity() {
            return Err(LimitError(
                "`lease` must be at most what can be admitted at once: the threshold, or the burst of \
                 a bucket minus the tokens that refill in a hundredth of the period (at most a second)",
            ));
        }
        self.policy.lease = Lease::UpTo(units);
        Ok(self)
    }

    /// Leases units of busy keys, as many as each key needs: up to one percent of the threshold, or of the burst of a
    /// bucket if that is smaller.
    ///
    /// A key is busy in a process if it has about 8 calls within one term: a hundredth of the period, at most a second.
    /// It is then leased as with [`try_lease`](Self::try_lease). Calls of all other keys are as without a lease, except
    /// that the period of a `sliding` or `sliding_counter` limit is longer by one term for all keys: their counts start
    /// at zero when you add this lease. The burst of a bucket is only smaller while the key is leased.
    ///
    /// # Errors
    ///
    /// On a threshold or a burst below 100, because one percent of it is less than a unit; on a burst that is not
    /// larger than the tokens that refill in one term; on a period below 100 milliseconds.
    pub const fn try_auto_lease(mut self) -> Result<Self, LimitError> {
        if let Err(invalid) = self.terms.check_can_lease() {
            return Err(invalid);
        }
        if self.terms.auto_lease_units() == 0 {
            return Err(LimitError(
                "an automatic lease is at most one percent of the threshold, and of the burst of a bucket: \
                 raise them to at least 100, or write the number of units to lease",
            ));
        }
        self.policy.lease = Lease::Auto;
        Ok(self)
    }

    /// Leases up to `units` of a busy key in advance, with one request to Redis; see
    /// [`try_lease`](Self::try_lease).
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::Limit;
    ///
    /// const API: Limit = Limit::sliding("api", 10_000, Duration::from_secs(60)).lease(50);
    /// ```
    ///
    /// # Panics
    ///
    /// On values that `try_lease` rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn lease(self, units: u64) -> Self {
        super::valid(self.try_lease(units))
    }

    /// Leases units of busy keys, up to one percent of the threshold; see [`try_auto_lease`](Self::try_auto_lease).
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::Limit;
    ///
    /// const API: Limit = Limit::token_bucket("api", 10_000, Duration::from_secs(60)).auto_lease();
    /// ```
    ///
    /// # Panics
    ///
    /// On values that `try_auto_lease` rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn auto_lease(self) -> Self {
        super::valid(self.try_auto_lease())
    }

    /// Returns this limit with a lease, as far as it fits.
    pub(super) fn with_lease(self, lease: Lease) -> Self {
        match lease {
            Lease::UpTo(units) => {
                self.try_lease(units.min(self.terms.lease_capacity())).unwrap_or(self)
            }
            // It leases nothing where one percent is less than a unit, and counts in the same windows.
            Lease::Auto if self.terms.period_us() >= MIN_PERIOD_US && !self.is_in_flight() => {
                Self { policy: Policy { lease, ..self.policy }, ..self }
            }
            Lease::None | Lease::Auto => self,
        }
    }

    /// Returns this limit under the terms of its leases, for tests. Its quota has the longer period.
    pub(crate) fn counted_as_lease(&self) -> Self {
        Self { terms: self.terms.leased(), policy: Policy { lease: Lease::None, ..self.policy } }
    }

    pub(crate) const fn leases(&self) -> bool {
        !matches!(self.policy.lease, Lease::None)
    }

    /// Returns whether a limiter with a shared store leases units of this limit. It leases none if calls wait, also if
    /// a rule makes the limit a shadow, because leases count separately.
    pub(crate) fn leases_units(&self) -> bool {
        self.leases() && self.policy.wait.is_none() && self.policy.scope == Scope::Global
    }

    /// Returns whether units are leased of busy keys only.
    pub(crate) const fn leases_busy_keys(&self) -> bool {
        matches!(self.policy.lease, Lease::Auto)
    }

    /// Returns the number of units that a process may lease of a key.
    pub(crate) const fn lease_units(&self) -> u64 {
        match self.policy.lease {
            Lease::None => 0,
            Lease::UpTo(units) => units,
            Lease::Auto => self.terms.auto_lease_units(),
        }
    }

    /// Returns the terms under which the store counts calls, leased or not. In the windows of a limit that leases,
    /// these are the terms of leases, because a window with a longer period is another count.
    pub(crate) fn counted_beside_leases(&self) -> Terms {
        match self.policy.lease {
            Lease::None => self.terms,
            Lease::Auto if self.terms.is_bucket() => self.terms,
            Lease::Auto | Lease::UpTo(_) => self.terms.leased(),
        }
    }
}

impl Terms {
    /// Returns the lifetime of a lease: the time after its charge in which a unit may be spent, in microseconds.
    pub(crate) const fn lease_us(&self) -> u64 {
        let fraction = self.period_us() / LEASES_PER_PERIOD;
        if fraction < MAX_LEASE_US { fraction } else { MAX_LEASE_US }
    }

    /// Returns stricter terms, under which leases of this limit are charged: a unit that is spent up to
    /// [`lease_us`](Self::lease_us) after its charge is still within the terms of the limit itself.
    pub(crate) fn leased(&self) -> Self {
        let stretch_us = match self.identity.algorithm {
            Algorithm::Sliding | Algorithm::SlidingCounter => self.lease_us(),
            Algorithm::Fixed
            | Algorithm::TokenBucket
            | Algorithm::LeakyBucket
            | Algorithm::InFlight => 0,
        };
        let micros = self.period_us() + stretch_us;
        let period = Period { micros, ..self.identity.period };
        Self {
            identity: Identity { period, ..self.identity }.hashed(),
            capacity: self.lease_capacity(),
            lease_reserve: self.lease_refill(),
            scale: WindowScale::new(self.threshold, micros),
            // The rate does not change, because processes that do not lease share the bucket.
            ..*self
        }
    }

    const fn check_can_lease(&self) -> Result<(), LimitError> {
        Err(LimitError(if self.is_in_flight() {
            "units in flight belong to one call, so they cannot be leased"
        } else if self.period_us() < MIN_PERIOD_US {
            "a lease lasts for a hundredth of the period: with `lease`, `period` must be at least 100 ms"
        } else if self.capacity <= self.lease_refill() {
            "with `lease`, `burst` must be larger than the number of tokens that refill in a \
             hundredth of the period (at most a second), rounded up: raise `burst`"
        } else {
            return Ok(());
        }))
    }

    /// Returns the most units that a process leases automatically.
    const fn auto_lease_units(&self) -> u64 {
        let (threshold, capacity) = (self.threshold, self.capacity);
        let share = if threshold < capacity { threshold } else { capacity } / AUTO_SHARE;
        let most = self.lease_capacity();
        if share < most { share } else { most }
    }

    const fn lease_capacity(&self) -> u64 {
        self.capacity.saturating_sub(self.lease_refill())
    }

    /// Returns the tokens that a bucket refills during the lifetime of a lease, rounded up; 0 for a window.
    const fn lease_refill(&self) -> u64 {
        if !self.is_bucket() {
            return 0;
        }
        let refilled = self.threshold as u128 * self.lease_us() as u128;
        refilled.div_ceil(self.period_us() as u128) as u64
    }
}
