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
    /// Nothing was asked: Redis did not answer lately, and is not asked again before it answers a
    /// probe in the background. Nothing was charged.
    #[non_exhaustive]
    CircuitOpen {
        /// What happened when it was asked last.
        cause: Arc<StoreError>,
    },
    /// Nothing was asked: as many decisions as may be are awaited already. Nothing was charged.
    #[non_exhaustive]
    Overloaded {
        /// The most that may be awaited, `Builder::max_in_flight`.
        max_in_flight: usize,
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
    /// Two different limits of one call have one name, algorithm, period and align, and so one count.
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
            Self::CircuitOpen { cause } => {
                write!(f, "Redis is not asked until it answers a probe, after: {cause}")
            }
            Self::Overloaded { max_in_flight } => write!(
                f,
                "{max_in_flight} decisions are awaited already: Redis is too slow for this many, \
                 or raise `max_in_flight`"
            ),
            Self::ForeignKey { key } => write!(
                f,
                "the Redis key `{key}` does not hold the state of a rate limit: delete it, or set \
                 another `key_prefix`"
            ),
            Self::Server { code, message } => {
                write!(f, "Redis answered {code}: {message}")?;
                if let Some(advice) = advice(code, message) {
                    write!(f, " ({advice})")?;
                }
                Ok(())
            }
            Self::NoRuntime => f.write_str(
                "Redis is reached, and permits are waited for, through tokio: await this in a tokio \
                 runtime with I/O and time enabled, as `#[tokio::main]` makes it",
            ),
            Self::NoLimits => {
                f.write_str("`check_all` was called with no limits: give it at least one")
            }
            Self::SharedCount { name } => write!(
                f,
                "two limits named `{name}` have one algorithm, period and align, and so one count: give one \
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

/// What an operator can do about an error of the server.
fn advice(code: &str, message: &str) -> Option<&'static str> {
    Some(match code {
        "NOPERM" => {
            "allow this user EVALSHA, EVAL, and the commands of the scripts on its key prefix: see \
             \"Running it in production\"; if the server refuses TIME, set `clock(Clock::Client)`"
        }
        "NOAUTH" | "WRONGPASS" => {
            "check the user and password of the Redis URL; a password alone is \
             `redis://:password@host`"
        }
        "OOM" => "raise `maxmemory`, or give the limiter a server of its own",
        "READONLY" => {
            "this is a replica: use the address of the primary, or `redis+sentinel://` to follow it"
        }
        "LOADING" => "the server reads its data set; it answers when it is done",
        "BUSY" => "another script runs for too long: see SCRIPT KILL, and `busy-reply-threshold`",
        "MISCONF" => {
            "the server cannot save to its disk and refuses writes: see its log, or \
             `stop-writes-on-bgsave-error no`"
        }
        "NOREPLICAS" => "fewer replicas are connected than `min-replicas-to-write` asks for",
        "CLUSTERDOWN" => "a part of the cluster has no primary: see CLUSTER INFO",
        "MOVED" | "CROSSSLOT" => "this is a cluster: begin the URL with `redis+cluster://`",
        "TRYAGAIN" => "the keys are on their way to another node: the call would do when they are",
        "MASTERDOWN" => "this replica has lost its primary: see `redis+sentinel://`",
        "ERR" if message.contains("not allowed from script") => {
            "this server does not tell scripts the time: set `clock(Clock::Client)`"
        }
        _ => return None,
    })
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
    /// No decision could be asked for at all.
    ZeroInFlight,
    /// A key prefix with braces would put all keys into one slot of a cluster.
    BracesInPrefix,
    /// A limit of another prefix could have the same key: this one contains what stands between a prefix
    /// and the name of a limit, an algorithm and a period.
    #[non_exhaustive]
    LimitInPrefix {
        /// The algorithm and the period, such as `sliding:1m`.
        part: Arc<str>,
    },
    /// The URL asks for TLS, but this build has none.
    TlsDisabled,
    /// A certificate or key for TLS cannot be read.
    #[non_exhaustive]
    InvalidCertificate {
        /// What is wrong with it.
        message: Arc<str>,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidUrl { message } => write!(
                f,
                "the Redis URL cannot be read ({message}): write \
                 `redis://[user:password@]host[:port][/database]`, `unix:///path`, \
                 `redis+sentinel://host,host/service` or `redis+cluster://host,host`, with `@ / : # % ?` in \
                 a password percent-encoded"
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
            Self::ZeroInFlight => f.write_str(
                "`max_in_flight` must be at least 1: no decision could be asked for at all",
            ),
            Self::BracesInPrefix => f.write_str(
                "`key_prefix` must not contain `{` or `}`: they would put all keys into one slot of a \
                 cluster",
            ),
            Self::LimitInPrefix { part } => write!(
                f,
                "`key_prefix` must not contain `{part}`: an algorithm and a period stand between the \
                 prefix and the name of a limit, so a limit of another prefix could have the same key in \
                 Redis. Write `{}`, or another word",
                part.replace(':', "-")
            ),
            Self::TlsDisabled => f.write_str(
                "the Redis URL asks for TLS, but `ratelimit-runtime` was built without its feature \
                 `tls`: enable the feature, or write `redis://`",
            ),
            Self::InvalidCertificate { message } => write!(
                f,
                "the certificates for TLS cannot be read ({message}): give the contents of PEM files"
            ),
        }
    }
}

impl std::error::Error for BuildError {}
