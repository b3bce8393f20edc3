//! The rejection of a call, and its conversion to the return value of the function.

use std::fmt;
use std::time::Duration;

use super::{Decision, Mistake, StoreError};
use crate::limit::{Limit, Name, Quota};

/// Why a call was rejected.
///
/// Its `Display` text is for end users: it says what has happened and when to try again, and contains neither the name
/// of the limit nor an error of the store. Its fields and its `Debug` text contain both. A later release can add
/// variants, so a `match` outside of this crate ends with `_`.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// The limit is reached.
    #[non_exhaustive]
    Limited {
        /// The name of the limit.
        name: Name,
        /// The threshold and the period of the limit.
        quota: Quota,
        /// The decision, with the wait in `retry_after`.
        decision: Decision,
    },
    /// The key is blocked, by [`RateLimiter::block`](crate::RateLimiter::block) or by `block` in the attribute; or the
    /// `threshold` or the `burst` of this call is 0. On the web, the status is 429.
    #[non_exhaustive]
    Blocked {
        /// The name of the limit.
        name: Name,
        /// The threshold and the period of the limit.
        quota: Quota,
        /// The decision. Its `retry_after` is the later of the end of the block and the time at which the limit admits
        /// the call; [`Duration::MAX`] if the threshold or the burst is 0.
        decision: Decision,
    },
    /// As many calls are in flight as [`Limit::in_flight`] admits. When one of them ends is not known, so there is no
    /// wait. On the web, the status is 429, and `Retry-After` is 1.
    #[non_exhaustive]
    Busy {
        /// The name of the limit.
        name: Name,
        /// The units that may be in flight.
        quota: Quota,
        /// The units that are in flight; at most those that may be, although there are more after the limit was
        /// lowered.
        in_flight: u64,
        /// The decision. Its `retry_after` and its `reset_after` are zero, because the ends of calls are unknown.
        decision: Decision,
    },
    /// The call costs more than the limit can ever admit at once. Waiting does not help.
    #[non_exhaustive]
    CostExceedsCapacity {
        /// The name of the limit.
        name: Name,
        /// The cost of the call.
        cost: u64,
        /// The largest number of units that can be admitted at once.
        capacity: u64,
        /// Whether the capacity is computed for each call, so that it can be larger for another one. On the web, the
        /// status is then 429, and otherwise 413.
        varies: bool,
        /// Whether the limit is [hidden](Limit::hidden) from clients.
        hidden: bool,
    },
    /// Redis could not decide, and [`OnError`](crate::OnError) is `Deny`; or the limiter was shut down. On the web, the
    /// status is 503.
    #[non_exhaustive]
    Unavailable {
        /// The name of the limit.
        name: Name,
        /// Why the store could not decide.
        error: StoreError,
        /// Whether the limit is [hidden](Limit::hidden) from clients.
        hidden: bool,
    },
    /// The program has a mistake, which an `ERROR` event reports once for each limit. Neither
    /// [`OnError`](crate::OnError) nor a shadow excuses a mistake in the code. On the web, the status is 500.
    #[non_exhaustive]
    Mistake {
        /// The name of the limit.
        name: Name,
        /// What is wrong, and what to write.
        mistake: Mistake,
        /// Whether the limit is [hidden](Limit::hidden) from clients.
        hidden: bool,
    },
}

impl Rejection {
    /// Creates the rejection of a call that `limit` admits after `retry_after`, for tests of the code that handles it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, Rejection};
    ///
    /// const LOGIN: Limit = Limit::sliding("login", 5, Duration::from_secs(900));
    ///
    /// let rejection = Rejection::limited(&LOGIN, Duration::from_secs(30));
    /// assert_eq!(rejection.to_string(), "too many requests, try again in 30 seconds");
    /// ```
    #[must_use]
    pub fn limited(limit: &Limit, retry_after: Duration) -> Self {
        let decision = Self::decision(limit, retry_after);
        Self::Limited { name: limit.name(), quota: limit.quota(), decision }
    }

    /// Creates the rejection of a call whose key is blocked for `retry_after`, for tests of the code that handles it.
    #[must_use]
    pub fn blocked(limit: &Limit, retry_after: Duration) -> Self {
        let decision = Self::decision(limit, retry_after);
        Self::Blocked { name: limit.name(), quota: limit.quota(), decision }
    }

    /// Creates the rejection of a call while as many calls are in flight as `limit` admits, for tests.
    #[must_use]
    pub fn busy(limit: &Limit) -> Self {
        Self::busy_by(limit, Self::decision(limit, Duration::ZERO))
    }

    pub(crate) fn busy_by(limit: &Limit, decision: Decision) -> Self {
        let (name, quota) = (limit.name(), limit.quota());
        let in_flight = limit.terms().capacity.saturating_sub(decision.remaining);
        let decision = Decision { retry_after: Duration::ZERO, ..decision };
        Self::Busy { name, quota, in_flight, decision }
    }

    fn decision(limit: &Limit, retry_after: Duration) -> Decision {
        Decision::rejected_here(limit.terms().capacity, retry_after, retry_after)
    }

    /// Creates the rejection of a call whose cost exceeds the capacity of `limit`, for tests.
    #[must_use]
    pub fn cost_exceeds_capacity(limit: &Limit, cost: u64) -> Self {
        let (name, hidden) = (limit.name(), limit.policy().hidden);
        let (capacity, varies) = (limit.terms().capacity, limit.policy().varies);
        Self::CostExceedsCapacity { name, cost, capacity, varies, hidden }
    }

    /// Creates the rejection of a call about which the store could not decide, for tests.
    #[must_use]
    pub fn unavailable(limit: &Limit, error: StoreError) -> Self {
        Self::Unavailable { name: limit.name(), error, hidden: limit.policy().hidden }
    }

    /// Creates the rejection of a call with a mistake of the program, for tests.
    #[must_use]
    pub fn mistake(limit: &Limit, mistake: Mistake) -> Self {
        Self::Mistake { name: limit.name(), mistake, hidden: limit.policy().hidden }
    }

    /// Creates the rejection of a call that an amount of 0 or a rule blocks. `retry_after` is `Duration::MAX` for a
    /// block without an end.
    pub(crate) fn blocked_without_count(limit: &Limit, retry_after: Duration) -> Self {
        let decision = Decision { limit: 0, ..Self::decision(limit, retry_after) };
        Self::Blocked { name: limit.name(), quota: limit.quota().blocked(), decision }
    }

    /// Returns the name and the quota of the limit, and the decision; `None` if the call was not decided.
    pub(crate) fn decided(&self) -> Option<(Name, Quota, &Decision)> {
        match self {
            Self::Limited { name, quota, decision }
            | Self::Blocked { name, quota, decision }
            | Self::Busy { name, quota, decision, .. } => Some((*name, *quota, decision)),
            _ => None,
        }
    }

    /// Returns how long to wait before the same call can be admitted, for `Limited` and `Blocked`. `None` if the
    /// threshold or the burst of the call is 0, for `CostExceedsCapacity`, because waiting does not help, and for
    /// `Busy`, `Unavailable` and `Mistake`, because no time is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited { decision, .. } | Self::Blocked { decision, .. } => {
                Some(decision.retry_after).filter(|wait| *wait < Duration::MAX)
            }
            _ => None,
        }
    }

    /// Returns whether the limit that rejected the call is [hidden](Limit::hidden) from clients. A response must then
    /// contain neither its name nor its amounts.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        match self {
            Self::CostExceedsCapacity { hidden, .. }
            | Self::Unavailable { hidden, .. }
            | Self::Mistake { hidden, .. } => *hidden,
            _ => self.decided().is_some_and(|(_, quota, _)| quota.is_hidden()),
        }
    }

    /// Returns the name of the limit that rejected the call.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Limited { name, .. }
            | Self::Blocked { name, .. }
            | Self::Busy { name, .. }
            | Self::CostExceedsCapacity { name, .. }
            | Self::Unavailable { name, .. }
            | Self::Mistake { name, .. } => name,
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked { decision, .. } if decision.retry_after == Duration::MAX => {
                f.write_str("requests are blocked until further notice")
            }
            Self::Blocked { decision, .. } => {
                f.write_str("requests are blocked for now, try again in ")?;
                write_wait(f, decision.retry_after)
            }
            Self::Limited { decision, .. } => {
                f.write_str("too many requests, try again in ")?;
                write_wait(f, decision.retry_after)
            }
            Self::Busy { .. } => {
                f.write_str("too many requests are running at the same time, try again later")
            }
            Self::CostExceedsCapacity { hidden: true, .. } => {
                f.write_str("this request is too large, send a smaller one")
            }
            Self::CostExceedsCapacity { cost, capacity, .. } => write!(
                f,
                "this request is too large: it needs {cost} units, and at most {capacity} are allowed at once"
            ),
            Self::Unavailable { .. } => f.write_str(
                "the service cannot take this request right now, try again in a few minutes",
            ),
            Self::Mistake { .. } => {
                f.write_str("the service cannot take this request because of an internal error")
            }
        }
    }
}

impl fmt::Debug for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the limit `{}`: ", self.name())?;
        match self {
            Self::Unavailable { error, .. } => write!(f, "{error}"),
            Self::Mistake { mistake, .. } => write!(f, "{mistake}"),
            _ => write!(f, "{self}"),
        }
    }
}

impl std::error::Error for Rejection {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unavailable { error, .. } => Some(error),
            Self::Mistake { mistake, .. } => Some(mistake),
            _ => None,
        }
    }
}

/// Writes a wait in words, rounded up: "1 second", "2 minutes and 30 seconds", "3 days and 1 hour". As `Retry-After`,
/// it is never shorter than a second.
fn write_wait(f: &mut fmt::Formatter<'_>, wait: Duration) -> fmt::Result {
    const UNITS: [(u128, &str); 4] =
        [(86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];
    let seconds = wait.as_nanos().div_ceil(1_000_000_000).max(1);
    // The largest unit and the next one suffice: 86,399 seconds are a day.
    let precision = match seconds {
        0..3_600 => 1,
        3_600..86_400 => 60,
        _ => 3_600,
    };
    let mut rest = seconds.next_multiple_of(precision);
    let mut separator = "";
    for (length, unit) in UNITS {
        let count = rest / length;
        if count > 0 {
            write!(f, "{separator}{count} {unit}{}", if count == 1 { "" } else { "s" })?;
            separator = " and ";
        }
        rest %= length;
    }
    Ok(())
}

/// A return type that can carry a [`Rejection`].
///
/// Implement it for your own return type if neither `Result` nor `Option` fits:
///
/// ```
/// use ratelimit_runtime::{FromRejection, Rejection};
///
/// enum Reply {
///     Text(String),
///     Busy,
/// }
///
/// impl FromRejection for Reply {
///     fn from_rejection(_: Rejection) -> Self {
///         Reply::Busy
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "a function that returns `{Self}` cannot report that a call was rejected",
    label = "cannot carry a `Rejection`",
    note = "return `Result<_, E>` where `E: From<Rejection>` (`Rejection` itself, `anyhow::Error`, \
            `Box<dyn Error>`), or `Option<_>`",
    note = "a handler can also return a response of its framework, a status code, or `Result<Json<_>, Rejection>`",
    note = "for your own error type, write `impl From<Rejection> for E`; with thiserror, \
            a variant with `#[from] Rejection`",
    note = "or set the return value of a rejected call: `on_limited = |rejection| ...`",
    note = "or implement `ratelimit_runtime::FromRejection` for the return type"
)]
pub trait FromRejection {
    /// Returns the return value of a rejected call.
    fn from_rejection(rejection: Rejection) -> Self;
}

// Without this, rustc would list implementations of `From` instead of the notes above.
#[diagnostic::do_not_recommend]
impl<T, E: From<Rejection>> FromRejection for Result<T, E> {
    fn from_rejection(rejection: Rejection) -> Self {
        Err(rejection.into())
    }
}

impl<T> FromRejection for Option<T> {
    fn from_rejection(_: Rejection) -> Self {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit::fixed("n", 5, Duration::from_secs(1));

    #[test]
    fn displays_the_wait_in_words() {
        let wait_text = |wait| {
            let text = Rejection::limited(&LIMIT, wait).to_string();
            text.strip_prefix("too many requests, try again in ").expect("prefix").to_owned()
        };
        for (micros, text) in [
            (1, "1 second"),
            (999_001, "1 second"),
            (29_000_001, "30 seconds"),
            (60_000_000, "1 minute"),
            (90_000_000, "1 minute and 30 seconds"),
            (3_599_000_001, "1 hour"),
            (5_400_000_001, "1 hour and 31 minutes"),
            (86_399_000_000, "1 day"),
            (172_800_000_001, "2 days and 1 hour"),
        ] {
            assert_eq!(wait_text(Duration::from_micros(micros)), text);
        }
        assert_eq!(wait_text(Duration::MAX), "213503982334601 days and 8 hours");
    }

    #[test]
    fn tells_end_users_what_to_do_and_no_name() {
        let blocked = "requests are blocked for now, try again in 10 minutes";
        let unavailable = Rejection::unavailable(&LIMIT, StoreError::ShuttingDown);
        for (rejection, text) in [
            (Rejection::blocked(&LIMIT, Duration::from_secs(600)), blocked),
            (
                Rejection::blocked(&LIMIT, Duration::MAX),
                "requests are blocked until further notice",
            ),
            (
                Rejection::cost_exceeds_capacity(&LIMIT, 6),
                "this request is too large: it needs 6 units, and at most 5 are allowed at once",
            ),
            (
                Rejection::cost_exceeds_capacity(&LIMIT.hidden(true), 6),
                "this request is too large, send a smaller one",
            ),
            (
                unavailable,
                "the service cannot take this request right now, try again in a few minutes",
            ),
            (
                Rejection::mistake(&LIMIT, Mistake::NoLimits),
                "the service cannot take this request because of an internal error",
            ),
        ] {
            assert_eq!(rejection.to_string(), text);
        }
    }
}
