//! [`Permit`]: the charge of an admitted call, until it is settled. [`Meter`]: a permit that counts what a call uses,
//! and settles it at the end of the call.

use std::future::{pending, ready};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::algorithm::{BlockChange, Correction, MOST, Receipt};
use crate::backend::Backend;
use crate::limit::Scope;
use crate::one_or_many::OneOrMany;
use crate::owner::HeldSlot;
use crate::printing::debug_by_name;
use crate::reply::{Answer, Decision, Source, StoreError};
use crate::report;
use crate::store::Charge;

/// The charge of an admitted call, which can be corrected once the real cost of the call is known.
///
/// A call is charged its cost before it runs: an estimate. [`settle`](Self::settle) replaces the estimate by the units
/// that the call has used. A permit that is dropped keeps the charge: the call of a process that dies, or of a task
/// that is cancelled, counts as estimated.
///
/// - **Less than estimated:** the difference is given back to the charge of this call. The limit then admits as much
///   as if the call had been charged what it used, and never more. For the two buckets, it may admit a little less, if
///   hundreds of calls are not settled yet. Nothing is given back of a charge that no longer counts: after its window,
///   or after the count was reset or lost.
/// - **More than estimated:** the difference is charged when it is settled, also above the limit: a debt. While the
///   count is above the limit, no call is admitted. A fixed window forgives its debt when it ends.
///
/// A permit is settled where the call was charged: on the embedded store at once, with Redis by the background thread.
/// No caller waits for it. While Redis is down, settlements wait. If a reply is lost, or too many settlements wait, the
/// estimate stays charged. [`RateLimiter::flush`](crate::RateLimiter::flush) waits for them, and reports lost ones.
///
/// If a call is admitted although it was not charged, its permit is empty, and settling it has no effect: when a
/// [shadow](crate::Limit::shadow) or [`OnError::Allow`](crate::OnError::Allow) has admitted it.
///
/// The permit of a limit of calls [in flight](crate::Limit::in_flight) holds the units of the call: they are free for
/// others as soon as it is dropped, settled, refunded or kept.
///
/// For an example, see [`RateLimiter::acquire`](crate::RateLimiter::acquire).
#[must_use = "a permit that is dropped keeps the whole charge: `settle` it, or `keep` it"]
pub struct Permit {
    decision: Decision,
    charge: Option<PermitCharge>,
}

/// A charge that is not settled yet. One of calls in flight is given back when the permit is dropped.
pub(super) struct PermitCharge {
    pub(super) backend: Arc<Backend>,
    pub(super) charge: Arc<Charge>,
    pub(super) scope: Scope,
    /// The store that has charged it.
    pub(super) source: Source,
    /// The cost of the call, or of one of its parts.
    pub(super) cost: u64,
    /// The units of the call in the charge: fewer than its cost if a fallback has charged it.
    pub(super) charged: u64,
    pub(super) receipt: Receipt,
    /// The units in flight that the shared store counts.
    pub(super) held: Option<Box<HeldSlot>>,
    /// What happens to the key once the charge is settled or kept.
    pub(super) block: BlockChange,
}

impl Permit {
    pub(super) fn new(decision: Decision, charge: Option<PermitCharge>) -> Self {
        if let Some(held) = charge.as_ref().filter(|charge| charge.is_held()) {
            let name = held.charge.terms.identity.name;
            report::change(report::IN_FLIGHT, name, held.charged as f64);
        }
        Self { decision, charge }
    }

    /// Creates the permit of a call without a limit.
    pub(crate) fn unlimited() -> Self {
        Self::new(Decision::unlimited(), None)
    }

    /// Returns the permit of a part of this charge, and takes its units from those of the other parts.
    pub(crate) fn part(&mut self, cost: u64) -> Self {
        let part = |charge: &mut PermitCharge| {
            let charged = cost.min(charge.charged);
            charge.charged -= charged;
            PermitCharge {
                backend: Arc::clone(&charge.backend),
                charge: Arc::clone(&charge.charge),
                cost,
                charged,
                held: charge.held.as_mut().map(|held| Box::new(held.split(charged))),
                ..*charge
            }
        };
        Self { decision: self.decision, charge: self.charge.as_mut().map(part) }
    }

    /// Returns the decision about the call.
    #[must_use]
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Replaces the charge by `used`, the units that the call has really used.
    pub fn settle(self, used: u64) {
        self.correct(Some(used.min(MOST)));
    }

    /// Settles the charge to `used` units, or keeps it, and changes the block of the key.
    fn correct(mut self, used: Option<u64>) {
        if let Some(mut charge) = self.charge.take() {
            charge.correct(used);
        }
    }

    /// Returns whether the call has lost its units [in flight](crate::Limit::in_flight), so that others may have been
    /// admitted in its place: the count was reset, or Redis has not heard of this process for the
    /// [hold](crate::Limit::hold) of the limit. `false` for a charge of a rate, and for an empty permit.
    ///
    /// Units that a fallback has admitted while Redis was down are not lost by time until Redis, once it is back, has
    /// counted them.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let Some(charge) = self.charge.as_ref().filter(|it| it.is_held()) else { return false };
        match &charge.held {
            Some(held) => charge.charged > 0 && held.is_lost(),
            None => !charge.backend.holds_here(charge.charge.key_id, charge.receipt),
        }
    }

    /// Returns whether the call holds units in flight until it ends.
    pub(crate) fn is_held(&self) -> bool {
        self.charge.as_ref().is_some_and(PermitCharge::is_held)
    }

    /// Completes once the call has [lost](Self::is_lost) its units; never for a permit whose units cannot be lost. A
    /// call that must not overlap with another one stops then:
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, RateLimiter, Rejection};
    ///
    /// const NIGHTLY: Limit = Limit::in_flight("nightly", 1).hold(Duration::from_secs(30));
    ///
    /// # async fn export() {}
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Rejection> {
    /// let limiter = RateLimiter::embedded();
    /// let permit = limiter.acquire(&NIGHTLY, "export", 1).await?;
    /// tokio::select! {
    ///     () = export() => permit.keep(),
    ///     () = permit.lost() => eprintln!("another process may export now"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) {
        match self.charge.as_ref().filter(|charge| charge.is_held() && charge.charged > 0) {
            Some(PermitCharge { held: Some(held), .. }) => held.lost().await,
            Some(PermitCharge { backend, charge, receipt, .. }) => {
                backend.lost_here(charge.key_id, *receipt).await;
            }
            None => pending().await,
        }
    }

    /// Ends the permit as a drop does, and completes once the units [in flight](crate::Limit::in_flight) are free for
    /// other processes. After a drop, they are free about a round trip later.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when Redis does not reply. It then learns later that the units are free.
    #[must_use]
    pub fn release(mut self) -> Answer<()> {
        let held = self.charge.as_mut().and_then(|charge| charge.held.take());
        let backend = self.charge.as_ref().map(|charge| Arc::clone(&charge.backend));
        let released = held.map(|held| held.release());
        drop(self);
        let (Some(released), Some(backend)) = (released, backend) else {
            return Box::pin(ready(Ok(())));
        };
        let deadline = backend.settings.deadline;
        backend.answer(move |_| async move {
            timeout(deadline, released).await.unwrap_or(Err(StoreError::Timeout { deadline }))
        })
    }

    /// Gives the whole charge back: the call does not count.
    pub fn refund(self) {
        self.settle(0);
    }

    /// Keeps the charge as it is, as a drop does.
    pub fn keep(self) {
        self.correct(None);
    }

    /// Returns a permit that blocks the key for `duration` once it is settled or kept, or for `at_most` if that is
    /// shorter.
    pub(crate) fn block(mut self, duration: Option<Duration>, at_most: Duration) -> Self {
        if let (Some(charge), Some(duration)) = (&mut self.charge, duration) {
            if duration > at_most {
                report::block_cut(charge.charge.terms.identity.name, duration, at_most);
            }
            charge.block = BlockChange::block_for(duration.min(at_most));
        }
        self
    }
}

impl PermitCharge {
    /// Returns whether the units are held until the call ends.
    fn is_held(&self) -> bool {
        self.charge.terms.is_in_flight()
    }

    /// Settles the charge to `used` units, or keeps it, and changes the block of the key. Units in flight are given
    /// back.
    fn correct(&mut self, used: Option<u64>) {
        let Self { scope, source, cost, charged, receipt, block, .. } = *self;
        let Self { backend, charge, held, .. } = self;
        let is_held = charge.terms.is_in_flight();
        if is_held {
            report::change(report::IN_FLIGHT, charge.terms.identity.name, -(charged as f64));
        }
        let used = match used {
            _ if is_held => 0,
            None => charged,
            // What was used beyond the cost is a debt, whatever was charged.
            Some(used) => used.min(cost).min(charged).saturating_add(used.saturating_sub(cost)),
        };
        if used == charged && block == BlockChange::None {
            return;
        }
        let mut correction = Correction::settled(receipt, charged, used);
        if charge.statement.is_some() {
            drop(held.take());
            // The store learns of released units by a statement. A fallback counts by itself.
            if source != Source::Fallback {
                if block == BlockChange::None {
                    return;
                }
                correction = Correction::default();
            }
        }
        backend.settle(scope, source, charge, correction, block);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(charge) = self.charge.as_mut().filter(|charge| charge.is_held()) {
            charge.correct(None);
        }
    }
}

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
    used: u64,
}

impl Permit {
    /// Returns a meter, which settles the charge to the units that it has counted when it is dropped.
    pub fn meter(self) -> Meter {
        Meter::of([self])
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
    /// Creates one meter for all charges of a call with several limits. Each charge is settled to the units that the
    /// meter has counted. The decision of the meter is the decision of the first permit.
    pub fn of(permits: impl IntoIterator<Item = Permit>) -> Self {
        Self { permits: permits.into_iter().collect(), used: 0 }
    }

    /// Sets the total of the units that the call has used so far, in place of what was counted before, for a service
    /// that reports a running total.
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
        self.permits.first().map_or_else(Decision::unlimited, Permit::decision)
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

debug_by_name!("Permit" [] Permit, "Meter" [] Meter);
