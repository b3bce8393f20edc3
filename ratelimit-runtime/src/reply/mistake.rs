//! Mistakes of the program. Each text says what is wrong and what to write.

use std::fmt;

use super::BuildError;
use crate::limit::{Name, debug_as_text};

/// The cause of a [`Rejection::Mistake`](crate::Rejection::Mistake): the program or its environment has a mistake.
/// The limiter asks no store about the call, and charges nothing.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mistake {
    /// `check_all` was called without limits.
    NoLimits,
    /// Two different limits of one call share a count: they have the same name, algorithm, period, align and
    /// scope.
    #[non_exhaustive]
    SharedCount {
        /// The name of both.
        name: Name,
    },
    /// The limits of one call differ in scope, `on_error`, shadow or wait.
    MixedLimits,
    /// A charge of a limit that leases its units cannot be settled.
    Leased,
    /// `check` was called with a limit of calls [in flight](crate::Limit::in_flight), whose units only a permit gives
    /// back.
    NeedsPermit,
    /// A key is hashed, and the limit is counted on Redis, but no secret is set that other processes could share:
    /// [`Builder::key_secret`](crate::Builder::key_secret).
    NoKeySecret,
    /// The process-wide limiter could not be built from the environment, or a call was made outside of every scope
    /// after [`require_scope`](crate::RateLimiter::require_scope).
    Configuration(BuildError),
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLimits => {
                f.write_str("`check_all` was called without limits: pass at least one")
            }
            Self::SharedCount { name } => write!(
                f,
                "two limits named `{name}` have the same algorithm, period and align, so they would share a \
                 count: rename one of them"
            ),
            Self::MixedLimits => f.write_str(
                "the limits of one decision must have the same `scope`, `on_error`, `shadow` and `wait`: change \
                 them, or check the limits one after the other (in separate layers)",
            ),
            Self::Leased => f.write_str(
                "units of this limit are leased in advance, so they belong to no call: to settle charges, or to decide \
                 it together with calls in flight, remove its `lease`",
            ),
            Self::NeedsPermit => f.write_str(
                "a call of this limit holds its units until it ends, and a check returns nothing that could give \
                 them back: use `acquire` and keep the permit, the attribute, or a layer of a server",
            ),
            Self::NoKeySecret => f.write_str(
                "a hashed key that is counted on Redis needs a secret which all processes share: set `key_secret` of \
                 the builder, or `RATELIMIT_KEY_SECRET` for the limiter of the environment, to 16 random bytes or more",
            ),
            Self::Configuration(
                error @ (BuildError::NoScope
                | BuildError::RedisDisabled
                | BuildError::ShortKeySecret),
            ) => error.fmt(f),
            Self::Configuration(error) => write!(f, "RATELIMIT_REDIS_URL cannot be used: {error}"),
        }
    }
}

impl std::error::Error for Mistake {}

debug_as_text!(Mistake);
