//! Checks: one call against one limit or several.
//!
//! A call that this process decides at once takes the fast path: no request, no allocation. Any other call becomes
//! [`Calls`] to the backend, in one boxed future.

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

pub use self::acquire::{Acquire, AcquireAll};
pub(crate) use self::call::{AdmittedCall, CallOptions, undecided};
pub(crate) use self::future::CallFuture;
pub use self::future::{Admit, Check};
pub use self::meter::Meter;
pub(crate) use self::part::AnyPart;
pub use self::part::Part;
pub use self::permit::Permit;
use crate::backend::Backend;
use crate::lease::OptionalLeases;
use crate::rules::RulesInForce;
use crate::waiting::Waiting;

/// The parts of a limiter that a check needs.
#[derive(Clone)]
pub struct Checker {
    pub(crate) backend: Arc<Backend>,
    pub(crate) leases: OptionalLeases,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) rules: Arc<RulesInForce>,
}
