//! The policy of a limit: the part that stores do not receive. It says whether the limit counts a call, and its label
//! in replies and reports.

use std::time::Duration;

use super::{Identity, Lease, Limit, LimitError, Terms};

/// The settings of a limit that say how a call is treated before and after its decision: [`Limit::policy`].
// A new setting has its place here, in `serde.rs`, and in the `Debug` of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
#[non_exhaustive]
pub struct Policy {
    /// Which processes share the count.
    pub scope: Scope,
    /// What happens to a call when Redis cannot decide; `None` for the default of the limiter.
    pub on_error: Option<OnError>,
    /// Whether the limit is a [shadow](Limit::shadow), which admits every call.
    pub shadow: bool,
    /// How long a call may [wait](Limit::wait); `None` if calls do not wait. A shadow keeps its wait.
    pub wait: Option<Duration>,
    /// How many units of a count a process may [lease](Limit::lease).
    pub lease: Lease,
    /// The [hold](Limit::hold) of a limit of calls in flight; `None` for a rate.
    pub hold: Option<Duration>,
    /// Whether the limit is [hidden](Limit::hidden) from clients.
    pub hidden: bool,
    /// The percentage of the limit that is [reported](Limit::notify_at) when a call reaches it.
    pub notify_at: Option<u8>,
    /// Whether the limit [remembers](Limit::once) the calls that it has admitted, and admits them again.
    pub once: bool,
    /// Whether the amounts were computed for a call, or are those of a rule.
    pub(crate) varies: bool,
    /// Whether an amount is 0. The limit keeps other amounts, because a rule can admit its calls.
    pub(super) blocked: bool,
    /// Whether the capacity is not the default one of the threshold.
    pub(super) has_burst: bool,
}

impl Policy {
    pub(super) const DEFAULT: Self = Self {
        scope: Scope::Global,
        on_error: None,
        shadow: false,
        wait: None,
        lease: Lease::None,
        hold: None,
        hidden: false,
        notify_at: None,
        once: false,
        varies: false,
        blocked: false,
        has_burst: false,
    };

    /// Returns whether limits with these policies can be decided together.
    pub(crate) const fn agrees_with(self, other: Self) -> bool {
        let has_same_wait = match (self.wait, other.wait) {
            (Some(one), Some(other)) => one.as_nanos() == other.as_nanos(),
            (one, other) => one.is_none() && other.is_none(),
        };
        let has_same_on_error = match (self.on_error, other.on_error) {
            (Some(one), Some(other)) => one as u8 == other as u8,
            (one, other) => one.is_none() && other.is_none(),
        };
        has_same_wait
            && has_same_on_error
            && self.scope as u8 == other.scope as u8
            && self.shadow == other.shadow
    }
}

impl Limit {
    /// Returns whether one count decides a check at once. A new policy that needs more says so here.
    pub(crate) const fn decides_at_once(&self) -> bool {
        let Policy { wait, notify_at, once, .. } = self.policy;
        wait.is_none() && notify_at.is_none() && !once && !self.is_in_flight()
    }

    /// Sets which processes share the count; [`Scope::Global`] unless set.
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.policy.scope = scope;
        // A count of the process and a count of the fleet are different counts.
        self.terms.identity = Identity { scope, ..self.terms.identity }.hashed();
        self
    }

    /// Sets what happens to a call when Redis cannot decide; the limiter's
    /// [default](crate::Builder::on_error) unless set.
    pub const fn on_error(mut self, on_error: OnError) -> Self {
        self.policy.on_error = Some(on_error);
        self
    }

    /// With `true`, admits every call. Use it to try a limit out. The limiter decides, counts and reports calls as
    /// usual, but [`check`](crate::RateLimiter::check) returns `Ok` even if the [`Decision`](crate::Decision) is not
    /// `allowed`.
    pub const fn shadow(mut self, shadow: bool) -> Self {
        self.policy.shadow = shadow;
        self
    }

    /// With `true`, no response to a client reports this limit: no header has an item for it, and no body and no gRPC
    /// status has its name or its amounts. A rejected request still has the status of its rejection, and `Retry-After`.
    /// Events, metrics and the fields of a [`Rejection`](crate::Rejection) name the limit: they are for the operator.
    ///
    /// Use it for a limit that tells clients about others, such as one of all requests together, or about how abuse is
    /// found out.
    pub const fn hidden(mut self, hidden: bool) -> Self {
        self.policy.hidden = hidden;
        self
    }

    /// Reports the call whose charge brings the units in use of its key from below `percent` of the limit to it or
    /// above: a `tracing` event at `WARN` (target `ratelimit_runtime::report`) and, with the feature `metrics`,
    /// `ratelimit_notifications_total`. Use it for budgets: fixed and calendar windows.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::Limit;
    ///
    /// const BUDGET: Limit = Limit::fixed("budget", 1_000_000, Duration::from_secs(86_400)).notify_at(80);
    /// assert_eq!(BUDGET.policy().notify_at, Some(80));
    /// ```
    ///
    /// - The percentage is of the capacity that decides the call: that of a rule, if there is one.
    /// - If units go back or refill, the next call that reaches the percentage is reported again. A bucket or a sliding
    ///   window whose level stays near it can report every few calls.
    /// - A [settlement](crate::Permit::settle) reports nothing, also if its debt reaches the percentage.
    /// - Of a [lease](Self::lease), the request that charges units in advance is reported, and not the calls that
    ///   spend them: up to the size of a lease too early, and once in the fleet.
    /// - While Redis does not decide, nothing is reported: no process knows what the fleet has used.
    ///
    /// # Errors
    ///
    /// On a percentage of 0 or above 100.
    pub const fn try_notify_at(mut self, percent: u8) -> Result<Self, LimitError> {
        if percent == 0 || percent > 100 {
            return Err(LimitError("`notify_at` must be a percentage from 1 to 100, such as 80"));
        }
        self.policy.notify_at = Some(percent);
        Ok(self)
    }

    /// Reports the call that reaches `percent` of the limit; see [`try_notify_at`](Self::try_notify_at).
    ///
    /// # Panics
    ///
    /// On values that `try_notify_at` rejects; in a `const` that is a compile error.
    #[track_caller]
    pub const fn notify_at(self, percent: u8) -> Self {
        super::valid(self.try_notify_at(percent))
    }

    /// Lets a call wait up to `wait` to be admitted, instead of being rejected at once.
    ///
    /// In a process, calls with the same limits and keys are admitted first come, first served. With a single limit
    /// that is a bucket, a process reserves moments for its calls, up to a second ahead, so the order also holds across
    /// processes as long as no call waits longer than that. A call that cannot be admitted in time is rejected as soon
    /// as that is known. A call that is dropped while it waits takes nothing. The documentation of
    /// [`rate_limit`](crate::rate_limit#wait) says what is promised, and what is not.
    ///
    /// On Redis, a tokio runtime must have time enabled; in one process, a call waits in any executor. To wait in a
    /// stream, see `stream`: there, a limit without `wait` waits as long as it takes.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.policy.wait = Some(wait);
        self
    }

    /// Returns how long a call may wait. A shadow rejects nothing, so its calls do not wait.
    pub(crate) const fn max_wait(&self) -> Option<Duration> {
        if self.policy.shadow { None } else { self.policy.wait }
    }
}

/// Which processes share a count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(::serde::Deserialize, ::serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Scope {
    /// All processes that use the same store.
    #[default]
    Global,
    /// Only this process. It counts in memory, whatever store is configured.
    Process,
}

/// The policy for calls that Redis cannot decide, because it is unreachable, too slow, or replies with an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(::serde::Deserialize, ::serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum OnError {
    /// This process decides by the same limit, on separate counts. A fleet of `n` processes can then admit up
    /// to `n` times the limit, unless [`Builder::instances`](crate::Builder::instances) gives each process its
    /// share.
    #[default]
    Local,
    /// The call is admitted.
    Allow,
    /// The call is rejected with [`Rejection::Unavailable`](crate::Rejection::Unavailable).
    Deny,
}

/// How much a call may take: the code says it, or a rule, which has precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// As much as the amounts of the limit admit.
    Limited,
    /// Anything: the limit does not count the call.
    Unlimited,
    /// Nothing.
    Blocked,
}

impl Limit {
    /// Returns how much the code says that a call may take.
    pub(crate) const fn access(&self) -> Access {
        if self.policy.blocked { Access::Blocked } else { Access::Limited }
    }

    /// The limit of a call without limits.
    pub(crate) const NONE: Self = {
        let mut limit = Self::sliding("none", 1, Duration::from_secs(1));
        limit.terms.identity.name = "";
        limit
    };

    /// Returns this limit with the capacity of the terms of a charge: a lease lowers the one of a bucket.
    pub(crate) fn charged_under(&self, terms: &Terms) -> Self {
        Self { terms: Terms { capacity: terms.capacity, ..self.terms }, ..*self }
    }
}
