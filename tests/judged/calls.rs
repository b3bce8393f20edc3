//! The calls of a trace, and the verdict about them.

use ratelimit_runtime::{Decision, Limit, Permit, Rejection};
use support::judge::{Breach, CallId};
use tokio::task::JoinHandle;

use crate::exceptions::Excepted;

/// What the judge says of a trace.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The calls that were admitted.
    pub(crate) admitted: usize,
    pub(crate) breaches: Vec<Breach>,
    /// Other promises that were broken.
    pub(crate) faults: Vec<String>,
    /// What was played, for a trace that fails.
    pub(crate) story: Vec<String>,
}

/// A call that waits.
pub(crate) struct Waiting {
    pub(crate) process: usize,
    pub(crate) cost: u32,
    /// The limit, with the amounts since the call waits.
    pub(crate) limits: Vec<Limit>,
    pub(crate) decided: u64,
    pub(crate) excepted: Excepted,
    pub(crate) task: JoinHandle<(u64, Result<Admitted, Rejection>)>,
}

/// An admitted call, and its permit if its charge can be settled.
pub(crate) type Admitted = (Decision, Option<Permit>);

/// An admitted call whose charge is not settled.
pub(crate) struct Open {
    pub(crate) process: usize,
    pub(crate) permit: Permit,
    pub(crate) cost: u32,
    pub(crate) call: CallId,
}
