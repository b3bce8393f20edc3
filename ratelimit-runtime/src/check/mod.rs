//! Checks: one call against one limit or several.
//!
//! A call that this process decides at once takes the fast path: no request, no allocation. Any other call becomes
//! a [`Request`] to the backend, in one boxed future.

mod acquire;
mod call;
mod counts;
mod fast;
mod few;
mod future;
mod judge;
mod meter;
mod part;
mod permit;
mod prepared;
mod ruled;
mod trials;
mod wait;

use std::sync::Arc;

pub(crate) use self::acquire::AcquiredCall;
pub use self::acquire::{Acquire, AcquireAll};
#[cfg(any(feature = "tower", feature = "actix"))]
pub(crate) use self::call::AdmittedCall;
pub(crate) use self::call::CallOptions;
pub(crate) use self::future::OpenCheck;
pub use self::future::{Admit, Check};
pub use self::meter::Meter;
pub(crate) use self::part::AnyPart;
pub use self::part::Part;
pub(crate) use self::permit::KeptTerms;
pub use self::permit::Permit;
use crate::backend::Backend;
use crate::lease::Leases;
use crate::limit::{Limit, Terms};
use crate::rules::RulesInForce;
use crate::settle::Settlements;
use crate::store::OfShared;
use crate::waiting::WaitingSlot;

/// The parts of a limiter that a check needs.
#[derive(Clone)]
pub struct Checker {
    pub(crate) backend: Arc<Backend>,
    pub(crate) leases: Option<OfShared<Arc<Leases>>>,
    pub(crate) waiting: Arc<WaitingSlot>,
    pub(crate) settlements: Arc<Settlements>,
    pub(crate) rules: Arc<RulesInForce>,
}

impl Checker {
    /// Returns the leases if units of this limit are leased: none of one that waits, also if a rule makes it a shadow,
    /// because leases count separately.
    fn leases_of(&self, limit: &Limit) -> Option<&OfShared<Arc<Leases>>> {
        let leases = self.leases.as_ref()?;
        let policy = limit.policy();
        (limit.leases() && policy.wait().is_none() && self.backend.is_shared(policy.scope()))
            .then_some(leases)
    }

    /// Returns the terms under which the store counts a call that no lease decides.
    pub(crate) fn counted(&self, limit: &Limit) -> Terms {
        match self.leases_of(limit) {
            Some(_) => limit.counted_beside_leases(),
            None => *limit.terms(),
        }
    }
}
