//! What can go wrong, and what to do about it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a store could not answer. It is no statement about the limit: the call was neither admitted
/// nor refused. Where the store may have charged the key all the same, the variant says so.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer within the deadline. The decision may still be made, and charge the key once.
    #[non_exhaustive]
    Timeout {
        /// The deadline that passed.
        deadline: Duration,
    },
    /// No connection, or it broke. If it broke after the script was sent, the key may have been
    /// charged once.
    #[non_exhaustive]
    Connection {
        /// What the connection said.
        message: Arc<str>,
    },
    /// The key holds something that is not the state of a rate limit.
    #[non_exhaustive]
    ForeignKey {
        /// The key in Redis.
        key: Arc<str>,
    },
    /// Redis answered with an error.
    #[non_exhaustive]
    Server {
        /// The code of the error, such as `NOPERM`, `OOM` or `READONLY`.
        code: Arc<str>,
        /// What Redis said.
        message: Arc<str>,
    },
    /// The future was polled outside a tokio runtime, which the connection to Redis needs.
    NoRuntime,
    /// A call was checked against no limits at all.
    NoLimits,
    /// Two different limits of one call have one name, algorithm and period, and so one count.
    #[non_exhaustive]
    SharedCount {
        /// The name they have.
        name: &'static str,
    },
    /// The limits of one call disagree about scope, `on_error`, shadow or wait.
    MixedLimits,
    /// The process-wide limiter could not be built from the environment.
    Configuration(BuildError),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout { deadline } => {
                write!(f, "no answer from Redis within the deadline of {deadline:?}")
            }
            Self::Connection { message } => write!(f, "no connection to Redis: {message}"),
            Self::ForeignKey { key } => write!(
                f,
                "the Redis key `{key}` does not hold the state of a rate limit: delete it, or set \
                 another `key_prefix`"
            ),
            Self::Server { code, message } => {
                write!(f, "Redis answered {code}: {message}")?;
                match &**code {
                    "NOPERM" => f.write_str(" (allow this user EVALSHA, EVAL, and the commands of the scripts on its key prefix)"),
                    "NOAUTH" | "WRONGPASS" => f.write_str(" (check the user and password of the Redis URL; a password alone is `redis://:password@host`)"),
                    "OOM" => f.write_str(" (raise `maxmemory`, or give the limiter a server of its own)"),
                    "READONLY" => f.write_str(" (the URL leads to a replica: use the address of the primary)"),
                    _ => Ok(()),
                }
            }
            Self::NoRuntime => f.write_str(
                "Redis is reached through tokio: await this in a tokio runtime with I/O and time \
                 enabled, as `#[tokio::main]` makes it",
            ),
            Self::NoLimits => {
                f.write_str("`check_all` was called with no limits: give it at least one")
            }
            Self::SharedCount { name } => write!(
                f,
                "two limits named `{name}` have one algorithm and period, and so one count: give one \
                 of them another name"
            ),
            Self::MixedLimits => f.write_str(
                "the limits of one `check_all` are decided as one: give them the same `scope`, \
                 `on_error`, `shadow` and `wait`, or check them one after the other",
            ),
            Self::Configuration(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StoreError {}

/// Why a limiter could not be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The Redis URL cannot be read. The URL itself is not repeated: it may hold a password.
    #[non_exhaustive]
    InvalidUrl {
        /// What is wrong with it.
        message: Arc<str>,
    },
    /// `RATELIMIT_REDIS_URL` is set, but this build has no Redis.
    RedisDisabled,
    /// A deadline of zero would fail every decision.
    ZeroDeadline,
    /// A store of zero keys could hold nothing.
    ZeroKeys,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidUrl { message } => write!(
                f,
                "the Redis URL cannot be read ({message}): write \
                 `redis://[user:password@]host[:port][/database]` or `unix:///path`, with `@ / : # % ?` \
                 in a password percent-encoded"
            ),
            Self::RedisDisabled => f.write_str(
                "RATELIMIT_REDIS_URL is set, but `ratelimit-runtime` was built without its feature `redis`: \
                 enable the feature, or unset the variable",
            ),
            Self::ZeroDeadline => {
                f.write_str("`deadline` must be above zero: no decision could be made in no time")
            }
            Self::ZeroKeys => {
                f.write_str("`max_keys` must be at least 1: a store without keys limits nothing")
            }
        }
    }
}

impl std::error::Error for BuildError {}
