//! The log of a web request: the limits that are decided while the request is handled, so that its response can
//! report them.
//!
//! The middleware of `web` opens a log for each request and writes the response headers from it.
//! [`Report`](super::Report) records each check that ends while the log is open. Not compiled without a web
//! framework.

use std::any::Any;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::mem;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::decision_of;
use crate::limit::{Limit, Name, Quota};
use crate::one_or_many::OneOrMany;
use crate::reply::{Decision, Rejection, Source};

thread_local! {
    /// The log that is open while this thread polls its request. Boxed, because opening and closing move it
    /// (`benches/all -- layer`).
    static CURRENT: RefCell<Box<RequestLog>> = RefCell::default();
}

/// Set when the first log is opened. Saves the lookup of a log until then (`benches/all -- embedded`).
static WAS_OPENED: OnceLock<()> = OnceLock::new();

/// The limits of one request, in the order of their first check, each with its strictest decision; and how a rejection
/// of the request is answered.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct RequestLog {
    pub(crate) limits: OneOrMany<LoggedLimit>,
    /// Whether a limit has decided while this log, or that of an inner middleware, was open, also one that clients do
    /// not see. A shadow does not count: it limits nothing.
    pub(crate) has_decided: bool,
    /// `Retry-After` of the last rejection, also by a limit that clients do not see.
    pub(crate) retry_after: Option<u64>,
    /// Whether the response also has the legacy headers.
    pub(crate) has_legacy_headers: bool,
    pub(crate) prefers_json: bool,
    /// Whether it is a gRPC request, with feature `tonic`.
    pub(crate) is_grpc: bool,
    /// The body that the application sets. `web` knows its type.
    pub(crate) body: Option<Arc<dyn Any + Send + Sync>>,
    is_open: bool,
}

/// A limit that applies to the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedLimit {
    pub(crate) name: Name,
    pub(crate) quota: Quota,
    /// `None` until the limit reports a decision. If the limit decides about several keys, the strictest one.
    decision: Option<Decision>,
}

/// How long a client waits if too many calls are in flight, whose ends are unknown.
pub(crate) const BUSY_WAIT: Duration = Duration::from_secs(1);

impl RequestLog {
    /// Adds a limit that is about to be decided, so that the log keeps the order of the limits. Skips a shadow and a
    /// hidden limit, because clients must not see them.
    pub(crate) fn expect(&mut self, limit: &Limit) {
        if !limit.policy().shadow && !limit.policy().hidden {
            let name = limit.terms().identity.name;
            self.add(LoggedLimit { name, quota: limit.quota(), decision: None });
        }
    }

    /// Adds the limits of an inner middleware, which leaves its headers to the middleware of this log.
    pub(crate) fn join(&mut self, inner: &Self) {
        self.has_legacy_headers |= inner.has_legacy_headers;
        inner.limits.iter().for_each(|limit| self.add(*limit));
    }

    /// Records the result of one limit of a check. Skips a shadow, and of the headers a limit that admits nothing: it
    /// has no quota to report.
    pub(super) fn record_result(&mut self, limit: &Limit, result: &Result<Decision, Rejection>) {
        if limit.policy().shadow {
            return;
        }
        self.has_decided = true;
        if let Err(rejection) = result {
            self.retry_after = retry_after(rejection);
        }
        if let Some(decision) = decision_of(result.as_ref()) {
            self.record(limit.name(), limit.quota(), decision);
        }
    }

    /// Records a rejection that a handler returns.
    pub(crate) fn reject(&mut self, rejection: &Rejection) {
        self.retry_after = retry_after(rejection);
        if let Some((name, quota, decision)) = rejection.decided() {
            self.record(name, quota, decision);
        }
    }

    /// Records the decision of a limit, unless it is hidden or never admits the call.
    fn record(&mut self, name: Name, quota: Quota, decision: &Decision) {
        // If the call was admitted because no store decided, the remaining units are not known.
        let is_unknown = decision.source == Source::Fallback && decision.reset_after.is_zero();
        if !quota.is_hidden() && decision.retry_after < Duration::MAX && !is_unknown {
            self.add(LoggedLimit { name, quota, decision: Some(*decision) });
        }
    }

    /// Adds a limit, in place of itself, or of an undecided limit from which only the amounts differ: those of a rule.
    fn add(&mut self, limit: LoggedLimit) {
        let is_same = |known: &LoggedLimit| known.identity() == limit.identity();
        let is_ruled = |known: &LoggedLimit| {
            let periods = [known, &limit].map(|limit| limit.quota.period());
            known.decision.is_none() && known.name == limit.name && periods[0] == periods[1]
        };
        let mut known = self.limits.iter();
        let index = known.position(is_same).or_else(|| self.limits.iter().position(is_ruled));
        match index.map(|index| &mut self.limits[index]) {
            Some(known) => {
                let decision = match (known.decision, limit.decision) {
                    (Some(known), Some(later)) => Some(stricter(known, later)),
                    (known, later) => later.or(known),
                };
                *known = LoggedLimit { decision, ..limit };
            }
            None => self.limits.push(limit),
        }
    }

    /// Calls `work`, and records the checks that end in it.
    // Inlined, because a call copies what `work` contains (`benches/all -- layer`).
    #[inline]
    pub(crate) fn sync_scope<T>(self: &mut Box<Self>, work: impl FnOnce() -> T) -> T {
        let _ = WAS_OPENED.set(());
        self.is_open = true;
        let _scope = LogScope::of(self);
        work()
    }
}

/// Opens a log in this thread. The log that was open before is in its place meanwhile, and both return on drop.
struct LogScope<'a>(&'a mut Box<RequestLog>);

impl<'a> LogScope<'a> {
    fn of(log: &'a mut Box<RequestLog>) -> Self {
        // A thread that ends has no log.
        let _ = CURRENT.try_with(|current| mem::swap(log, &mut current.borrow_mut()));
        Self(log)
    }
}

impl Drop for LogScope<'_> {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| {
            let mut outer = current.borrow_mut();
            mem::swap(self.0, &mut outer);
            outer.has_decided |= self.0.has_decided;
        });
    }
}

impl LoggedLimit {
    /// Returns the name and the quota. Logged limits that agree on these are one.
    pub(crate) fn identity(&self) -> (Name, Quota) {
        (self.name, self.quota)
    }

    /// Returns the decision, and the seconds until the count is reset, or until a bucket without units has one; after a
    /// rejection, until the same call can be admitted.
    pub(crate) fn decided(&self) -> Option<(&Decision, u64)> {
        let decision = self.decision.as_ref()?;
        let span = if decision.allowed {
            next_unit(decision, self.quota).unwrap_or(decision.reset_after)
        } else if self.quota.is_in_flight() {
            BUSY_WAIT
        } else {
            decision.retry_after
        };
        Some((decision, whole_seconds(span)))
    }
}

/// Returns the stricter decision: a rejection, the one with the longest wait, or else the one with the fewest units.
fn stricter(known: Decision, later: Decision) -> Decision {
    let strictness =
        |it: Decision| ((!it.allowed).then_some(it.retry_after), Reverse(it.remaining));
    if strictness(known) > strictness(later) { known } else { later }
}

/// Returns the wait for the next unit of a bucket that has none; `None` if that is not known before the reset.
fn next_unit(decision: &Decision, quota: Quota) -> Option<Duration> {
    // Leases and fallbacks count under amounts of their own.
    if decision.remaining > 0 || !matches!(decision.source, Source::Embedded | Source::Redis) {
        return None;
    }
    decision.reset_after.checked_sub(Duration::from_micros(quota.refill_but_one()?))
}

/// The time after which a client should try again; `None` if no wait helps.
pub(crate) fn wait(rejection: &Rejection) -> Option<Duration> {
    match rejection {
        Rejection::Busy { .. } => Some(BUSY_WAIT),
        _ => rejection.retry_after(),
    }
}

/// Returns `Retry-After` of a rejection; `None` if no wait helps.
pub(crate) fn retry_after(rejection: &Rejection) -> Option<u64> {
    wait(rejection).map(|wait| whole_seconds(wait).max(1))
}

/// Returns the seconds of `span`, rounded up.
pub(crate) fn whole_seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// Returns whether a log is open in this thread.
#[inline]
pub(crate) fn is_open() -> bool {
    WAS_OPENED.get().is_some() && with_current(|_| ()).is_some()
}

/// Calls `work`. The checks that end in it are not recorded.
pub(crate) fn without<T>(work: impl FnOnce() -> T) -> T {
    let mut none = Box::default();
    let _scope = LogScope::of(&mut none);
    work()
}

/// Calls `change` with the log that is open; `None` if there is none. `change` must not check a limit.
pub(crate) fn with_current<T>(change: impl FnOnce(&mut RequestLog) -> T) -> Option<T> {
    let open = |current: &RefCell<Box<RequestLog>>| {
        let mut log = current.borrow_mut();
        log.is_open.then(|| change(&mut log))
    };
    CURRENT.try_with(open).ok().flatten()
}
