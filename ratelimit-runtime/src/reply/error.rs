//! Errors of stores and of the builder, and mistakes of the program. Each text says what is wrong and, if it helps,
//! what to do.

use std::sync::Arc;
use std::time::Duration;

use crate::limit::Name;
use crate::printing::texts;

/// Why a store did not decide. If Redis may still have charged the key, the documentation of the variant says so.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// No reply within the deadline. Redis may still run the script and charge the key once.
    #[non_exhaustive]
    Timeout {
        /// The deadline that passed.
        deadline: Duration,
    },
    /// There was no connection, or it broke. If it broke after the script was sent, the key may have been
    /// charged once.
    #[non_exhaustive]
    Connection {
        /// The error of the connection.
        message: Arc<str>,
    },
    /// The request was not sent, because the circuit breaker is open: the server did not answer a probe of the
    /// background thread. The breaker closes when it answers one. Nothing was charged.
    #[non_exhaustive]
    CircuitOpen {
        /// Why the breaker is open: the newest error of a probe or of an attempt to connect.
        cause: Arc<StoreError>,
    },
    /// The request was not sent, because the number of pending decisions has reached `max_pending`. Nothing was
    /// charged.
    #[non_exhaustive]
    Overloaded {
        /// The setting [`Builder::max_pending`](crate::Builder::max_pending).
        max_pending: usize,
    },
    /// The key in Redis holds a value that is not the state of a rate limit.
    #[non_exhaustive]
    ForeignKey {
        /// The key in Redis.
        key: Arc<str>,
    },
    /// Redis replied with an error.
    #[non_exhaustive]
    Server {
        /// The code of the error, such as `NOPERM`, `OOM` or `READONLY`.
        code: Arc<str>,
        /// The message of the error.
        message: Arc<str>,
    },
    /// This limiter counts in this process, and shares nothing with others.
    NotShared,
    /// The rules in Redis have changed since they were read, so
    /// [`share_rules`](crate::Operator::share_rules) wrote nothing. Read them again, and repeat the change.
    RulesChanged,
    /// The limiter was shut down while the call waited. Nothing was charged.
    ShuttingDown,
    /// Charges were not corrected, or keys not blocked, in Redis: see
    /// [`RateLimiter::flush`](crate::RateLimiter::flush).
    #[non_exhaustive]
    SettlementsLost {
        /// The number of settlements that were lost.
        lost: u64,
        /// The error of the last of them; `None` if it was never sent, because too many were pending, or the limiter
        /// was dropped.
        cause: Option<Arc<StoreError>>,
    },
    /// [`shutdown`](crate::RateLimiter::shutdown) has given back all else, and calls still run that hold units
    /// [in flight](crate::Limit::in_flight).
    #[non_exhaustive]
    InFlight {
        /// The units that they hold.
        units: u64,
    },
}

texts! {
    StoreError {
        Timeout { deadline } => "no reply from Redis within the deadline of {deadline:?}";
        Connection { message } => "no connection to Redis: {message}";
        CircuitOpen { cause } => "Redis receives no requests until it replies to a probe; cause: {cause}";
        Overloaded { max_pending } => "{max_pending} decisions are already pending: reduce the load on Redis, or raise \
             `max_pending`";
        ForeignKey { key } => "the Redis key `{key}` does not hold the state of a rate limit: delete the key, or set \
             another `key_prefix`";
        Server { code, message } => "Redis replied {code}: {message}{}", advice(code, message);
        NotShared => "this limiter shares no rules, because it has no Redis: build it with `redis`, or change the \
             rules of this process with `set_rules`";
        RulesChanged => "the rules have changed since they were read: read them again, and repeat the change";
        ShuttingDown => "the rate limiter was shut down while the call waited";
        SettlementsLost { lost, cause } => "{lost} settlements were lost, so the charges stay as they are; cause: {}",
            cause.as_ref().map_or_else(|| NOT_SENT.to_owned(), ToString::to_string);
        InFlight { units } => "calls hold {units} units in flight: end them before the shutdown, or keep the process \
             until they have ended";
    }
}

impl StoreError {
    /// Returns whether Redis replied with one of these codes, which spaces separate.
    pub(crate) fn has_code(&self, codes: &str) -> bool {
        matches!(self, Self::Server { code, .. } if codes.split(' ').any(|known| known == &**code))
    }
}

const NOT_SENT: &str = "they were not sent, because too many were pending";

/// What an operator can do about errors of the server: their codes, or parts of messages of code `ERR`, and the advice.
const ADVICE: &str = "\
    NOPERM: allow this user EVALSHA, EVAL, and the commands of the scripts on its key prefix: see \"What Redis \
    holds\"; if the server rejects TIME, set `clock(Clock::Client)`\n\
    NOAUTH|WRONGPASS|without any password: check the user and password of the Redis URL, a password alone is \
    `redis://:password@host`; the server must know a password before a provider returns it\n\
    OOM: raise `maxmemory`, or give the limiter a server of its own\n\
    READONLY: this is a replica: use the address of the primary, or `redis+sentinel://` to follow it\n\
    LOADING: the server is loading its data: wait until it has loaded it\n\
    BUSY: another script runs for longer than `busy-reply-threshold`: end it with SCRIPT KILL\n\
    MISCONF: the server cannot save to its disk and rejects writes: see its log, or set \
    `stop-writes-on-bgsave-error no`\n\
    NOREPLICAS: fewer replicas are connected than `min-replicas-to-write` requires: restore them, or lower it\n\
    CLUSTERDOWN: some slots of the cluster have no primary: find them with CLUSTER INFO, and restore their primaries\n\
    MOVED|CROSSSLOT: this server belongs to a cluster: begin the URL with `redis+cluster://`; if it does, the nodes \
    disagree: compare their replies to CLUSTER SLOTS\n\
    TRYAGAIN|ASK: the keys are moving to another node: retry once they have moved\n\
    MASTERDOWN: this replica has lost its primary: use `redis+sentinel://` to follow failovers\n\
    DB index is out of range|SELECT is not allowed: the server lacks the database in the path of the Redis URL: remove \
    the path, or raise `databases` (in a cluster of Valkey 9, `cluster-databases`)\n\
    not allowed from script: this server rejects TIME in scripts: set `clock(Clock::Client)`";

/// Returns what an operator can do about an error of the server, in parentheses.
fn advice(code: &str, message: &str) -> String {
    // A part of a message has a space, and a code has none.
    let is_about =
        |it: &str| it == code || code == "ERR" && it.contains(' ') && message.contains(it);
    let mut known = ADVICE.lines().filter_map(|line| line.split_once(": "));
    let found = known.find(|(errors, _)| errors.split('|').any(is_about));
    found.map_or_else(String::new, |(_, advice)| format!(" ({advice})"))
}

/// Why a limiter could not be built.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The Redis URL is invalid. The error does not repeat the URL, because it may contain a password.
    #[non_exhaustive]
    InvalidUrl {
        /// The mistake in the URL.
        message: Arc<str>,
    },
    /// A setting of a [`RateLimiterSettings`](crate::RateLimiterSettings) is invalid. The error does not repeat a
    /// secret.
    #[non_exhaustive]
    InvalidSetting {
        /// The name of the setting.
        name: Arc<str>,
        /// What is wrong.
        message: Arc<str>,
    },
    /// A password file or a provider of credentials is set, but no URL of a Redis is.
    CredentialsWithoutRedis,
    /// `RATELIMIT_REDIS_URL` is set, but this build lacks the feature `redis`.
    RedisDisabled,
    /// The deadline is zero, so every decision would fail.
    ZeroDeadline,
    /// `max_keys` is zero, so the embedded store could hold no key.
    ZeroKeys,
    /// `max_pending` is zero, so the limiter could send no request.
    ZeroPending,
    /// The key secret has fewer than 16 bytes, so it could be guessed.
    ShortKeySecret,
    /// The key prefix has braces, which would put all keys into one slot of a cluster.
    BracesInPrefix,
    /// The key prefix contains the name of an algorithm between colons. It stands between the prefix and the name of a
    /// limit, so a limit of another prefix could have the same key in Redis.
    #[non_exhaustive]
    LimitInPrefix {
        /// The name, such as `sliding`.
        part: Arc<str>,
    },
    /// The rules cannot be read. Names the file, and the line of a mistake.
    #[non_exhaustive]
    InvalidRules {
        /// What is wrong.
        message: Arc<str>,
    },
    /// [`Rules::redis`](crate::Rules::redis) is set, but no Redis is.
    RulesWithoutRedis,
    /// A limited function was called outside of a scope, after
    /// [`RateLimiter::require_scope`](crate::RateLimiter::require_scope).
    NoScope,
    /// The URL requires TLS, but this build lacks the feature `tls`.
    TlsDisabled,
    /// The URL requires TLS, but the application has installed no cryptography, and this build has none.
    NoCryptography,
    /// A certificate or key for TLS is invalid.
    #[non_exhaustive]
    InvalidCertificate {
        /// The mistake in the certificate or key.
        message: Arc<str>,
    },
    /// The name of the servers for TLS is neither a host name nor an IP address.
    InvalidServerName,
}

texts! {
    BuildError {
        InvalidUrl { message } => "the Redis URL is invalid ({message}): write \
             `redis://[user:password@]host[:port][/database]`, `unix:///path`, `redis+sentinel://host,host/service` or \
             `redis+cluster://host,host`, with `@ / : # % ?` in a password percent-encoded";
        InvalidSetting { name, message } => "the setting `{name}` of the rate limiter, in the environment \
             `RATELIMIT_{}`, is invalid: {message}", name.to_ascii_uppercase();
        CredentialsWithoutRedis => "`password_file` and `credentials` need the URL of a Redis: set `redis_url`, in the \
             environment `RATELIMIT_REDIS_URL`, or call `redis`";
        RedisDisabled => "RATELIMIT_REDIS_URL is set, but `ratelimit-runtime` was built without its feature `redis`: \
             enable the feature, or unset the variable";
        ZeroDeadline => "`deadline` must be above zero: with zero, every decision would fail";
        ZeroKeys => "`max_keys` must be at least 1: with 0, the store could not count";
        ZeroPending => "`max_pending` must be at least 1: with 0, the limiter could send no request";
        ShortKeySecret => "`key_secret` must have at least 16 bytes: write random ones, as `openssl rand -hex 16` \
             prints them";
        InvalidRules { message } => "{message}";
        RulesWithoutRedis => "`Rules::redis()` reads the rules from the Redis of the limiter: set its URL with \
             `redis`, or read the rules from a file with `Rules::file`";
        BracesInPrefix => "`key_prefix` must not contain `{{` or `}}`: they would put all keys into one slot of a \
             cluster";
        LimitInPrefix { part } => "`key_prefix` must not contain `{part}` between colons: an algorithm and a period \
             stand between the prefix and the name of a limit, so a limit of another prefix could have the same key in \
             Redis. Write another word";
        NoScope => "a limited function was called outside of a `RateLimiter::scope`, and `require_scope` forbids it: \
             spawn a task with `tokio::spawn(in_scope(future))`, and build the layers of a server with the limiter of \
             the test";
        TlsDisabled => "the Redis URL requires TLS, but `ratelimit-runtime` was built without its feature `tls`: \
             enable `tls-ring`, or `tls` if the application installs cryptography of its own, or write `redis://`";
        NoCryptography => "the Redis URL requires TLS, and no cryptography is chosen: enable the feature `tls-ring` or \
             `tls-aws-lc` of `ratelimit-runtime`, or install a `rustls::crypto::CryptoProvider` before the limiter is \
             built";
        InvalidCertificate { message } => "the certificates for TLS are invalid ({message}): pass the contents of PEM \
             files; a setting has their path";
        InvalidServerName => "`server_name` must be the name in the certificates of the servers: a host name, as \
             `cache.example.com`, or an IP address";
    }
}

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
    /// A limit that [remembers](crate::Limit::once) calls is beside a wait, calls in flight, or charges that can be
    /// settled: a repeated call has no charge.
    ChargedOnce,
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

texts! {
    Mistake {
        NoLimits => "`check_all` was called without limits: pass at least one";
        SharedCount { name } => "two limits named `{name}` have the same algorithm, period and align, so they would \
             share a count: rename one of them";
        MixedLimits => "the limits of one decision must have the same `scope`, `on_error`, `shadow` and `wait`: change \
             them, or check the limits one after the other (in separate layers)";
        Leased => "units of this limit are leased in advance, so they belong to no call: to settle charges, or to \
             decide it together with calls in flight, remove its `lease`";
        ChargedOnce => "a call that `Limit::once` remembers has no charge that could be settled, and no slot, and does \
             not wait: decide it by `check_all`, or a layer without `count_if`, beside rates without a `wait`";
        NeedsPermit => "a call of this limit holds its units until it ends, and a check returns nothing that could \
             give them back: use `acquire` and keep the permit, the attribute, or a layer of a server";
        NoKeySecret => "a hashed key that is counted on Redis needs a secret which all processes share: set \
             `key_secret` of the builder, or `RATELIMIT_KEY_SECRET` for the limiter of the environment, to 16 random \
             bytes or more";
        Configuration (error) => "{}{error}", error.variable();
    }
}

impl BuildError {
    /// Returns the variable whose value is wrong, for errors that do not name it.
    fn variable(&self) -> &'static str {
        let names_it = matches!(self, Self::NoScope | Self::RedisDisabled | Self::ShortKeySecret);
        if names_it { "" } else { "RATELIMIT_REDIS_URL cannot be used: " }
    }
}
