//! Calls whose charges can be settled.

use std::array;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::call::{AdmittedCall, StartedCall};
use super::fast::Conclusion;
use super::future::CallFuture;
use super::permit::{KeptTerms, MadeCharge, PermitCharge};
use super::{AnyPart, Checker, Part, Permit};
use crate::algorithm::BlockChange;
use crate::key::Key;
use crate::limit::Limit;
use crate::local::LocalCharge;
use crate::reply::{Decision, Rejection, Source};
use crate::report::{self, Started};

/// The future of [`RateLimiter::acquire`](crate::RateLimiter::acquire). Resolves to `Result<Permit, Rejection>`.
#[must_use = "futures do nothing unless polled"]
pub struct Acquire(CallFuture<Permit>);

/// The future of [`RateLimiter::acquire_all`](crate::RateLimiter::acquire_all). Resolves to
/// `Result<Vec<Permit>, Rejection>`.
#[must_use = "futures do nothing unless polled"]
pub struct AcquireAll(CallFuture<Vec<Permit>>);

impl Conclusion for Acquire {
    #[inline]
    fn decide_here(
        Checker { backend, .. }: &Checker,
        limit: &Limit,
        key: &impl Key,
        cost: u64,
        kept: Option<&'static Limit>,
    ) -> Self {
        let (started, key_id) = (Started::now(), backend.key_id(limit.terms(), key));
        let charge = LocalCharge { key_id, terms: limit.terms(), cost };
        let (outcome, receipt) = backend.local().acquire(charge);
        let made = || {
            if limit.is_in_flight() {
                MadeCharge::HeldHere { key_id, name: *limit.terms().name() }
            } else {
                MadeCharge::Here { key_id, terms: KeptTerms::of(limit, kept) }
            }
        };
        let charge = || PermitCharge {
            backend: Arc::clone(backend),
            made: made(),
            cost,
            charged: cost,
            receipt,
            held: None,
            block: BlockChange::None,
        };
        if outcome.is_allowed() && !report::is_recorded() {
            let decision = Decision::new(limit.terms().capacity(), &outcome, Source::Embedded);
            // Built where it is returned, which saves a copy (`benches/all -- in-flight`).
            return Self(CallFuture::Decided(Some(Ok(Permit::new(decision, Some(charge()))))));
        }
        let part: AnyPart<'_> = Part::of(limit, key, cost);
        // First the permit: if a recorder of the report panics, it releases what it holds.
        let mut permit = Permit::new(Decision::unlimited(), outcome.is_allowed().then(charge));
        let decision = part.report_here(backend, started, &outcome);
        Self(CallFuture::Decided(Some(decision.map(|decision| {
            permit.decide(decision);
            permit
        }))))
    }
}

impl From<StartedCall> for Acquire {
    fn from(call: StartedCall) -> Self {
        Self(call.into())
    }
}

impl From<StartedCall> for AcquireAll {
    fn from(call: StartedCall) -> Self {
        Self(call.into())
    }
}

impl From<AdmittedCall> for Permit {
    fn from(admission: AdmittedCall) -> Self {
        let AdmittedCall { decision, permits } = admission;
        permits.into_iter().next().unwrap_or_else(|| Self::new(decision, None))
    }
}

impl From<AdmittedCall> for Vec<Permit> {
    fn from(admission: AdmittedCall) -> Self {
        admission.permits
    }
}

impl<const N: usize> From<AdmittedCall> for [Permit; N] {
    fn from(admission: AdmittedCall) -> Self {
        let mut permits = admission.permits.into_iter();
        array::from_fn(|_| permits.next().unwrap_or_else(Permit::unlimited))
    }
}

impl Permit {
    /// Creates the permits of a call that charged nothing.
    pub(crate) fn uncharged<const N: usize>(decision: Decision) -> [Self; N] {
        array::from_fn(|_| Self::new(decision, None))
    }
}

impl Acquire {
    /// Returns this call for a function of one limit.
    pub(crate) fn into_array(self) -> CallFuture<[Permit; 1]> {
        self.0.map(|permit| [permit])
    }

    /// Returns this call, which then resolves to its decision and its permit.
    #[cfg(feature = "tower")]
    pub(crate) fn into_admitted(self) -> CallFuture<AdmittedCall> {
        self.0.map(|permit| AdmittedCall { decision: permit.decision(), permits: vec![permit] })
    }
}

impl Future for Acquire {
    type Output = Result<Permit, Rejection>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl Future for AcquireAll {
    type Output = Result<Vec<Permit>, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}

impl fmt::Debug for AcquireAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireAll").finish_non_exhaustive()
    }
}
