//! The builder of a limiter.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::RateLimiter;
#[cfg(feature = "rules")]
use super::rules::{RuleFeed, Rules};
use crate::backend::{Backend, BackendSettings};
use crate::check::Checker;
use crate::clock::Clock;
use crate::key::KeySecret;
use crate::lease::Leases;
use crate::limit::OnError;
use crate::local::Local;
use crate::reply::BuildError;
use crate::report::{self, LogSecret, RejectedCall, ReportSettings};
#[cfg(feature = "redis")]
use crate::store::redis::{CredentialsProvider, LoginSettings, Provider, Redis};
use crate::waiting::Waiting;

/// The longest deadline. A longer one is shortened to this.
const MAX_DEADLINE: Duration = Duration::from_secs(86_400);

/// Builds a [`RateLimiter`]. Without [`redis`](Self::redis), the limiter uses the embedded store: it counts in
/// this process.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::RateLimiter;
///
/// let limiter = RateLimiter::builder()
///     .redis("redis://127.0.0.1:6379")
///     .key_prefix("shop")
///     .deadline(Duration::from_millis(50))
///     .build()?;
/// # Ok::<(), ratelimit_runtime::BuildError>(())
/// ```
#[derive(Clone)]
#[must_use = "call `build` to get the limiter"]
pub struct Builder {
    pub(super) redis: Option<String>,
    #[cfg(feature = "redis")]
    pub(super) login: LoginSettings,
    max_pending: usize,
    pub(super) key_prefix: String,
    pub(super) max_keys: usize,
    max_waiting: usize,
    clock: Clock,
    pub(super) key_secret: Option<Vec<u8>>,
    /// Its secret is random; `build` replaces it by `key_secret`, if that is set.
    pub(super) settings: BackendSettings,
    #[cfg(feature = "rules")]
    rules: Option<Rules>,
}

#[cfg(feature = "redis")]
impl Builder {
    /// Keeps counts in the Redis or Valkey at `url`, so that all processes that use it share them. The limiter
    /// connects with the first decision, and reconnects when a connection breaks.
    ///
    /// | URL | server |
    /// | --- | --- |
    /// | `redis://host[:port][/database]` | one server |
    /// | `unix:///path/to/socket[?db=database]` | one server, on this machine |
    /// | `redis+sentinel://host[:port],host[:port]/service[/database]` | the primary of a service |
    /// | `redis+cluster://host[:port],host[:port][/database]` | a cluster; only Valkey 9 has databases there |
    ///
    /// The limiter finds the primary of a service through its Sentinels, and follows failovers. When it first connects
    /// to a cluster, it must reach at least one of the hosts.
    ///
    /// A user and a password precede the hosts: `user:password@` or `:password@`. Percent-encode `@ / : # % ?` in the
    /// user and the password. For the user and the password of the Sentinels, append
    /// `?sentinel_user=…&sentinel_password=…`, and for those of a socket `?user=…&pass=…`. With `rediss`
    /// instead of `redis`, rustls encrypts the connections (features `tls-ring`, `tls-aws-lc`, `tls`). `valkey` and
    /// `valkeys` mean the same as `redis` and `rediss`, and `-` the same as `+`. A URL with any other part is an error
    /// of [`build`](Self::build).
    ///
    /// In a tokio runtime, I/O and time must be enabled, as in the one of `#[tokio::main]`: otherwise, tokio panics.
    /// Without one, the runtime of the limiter's thread sends the requests.
    pub fn redis(mut self, url: impl Into<String>) -> Self {
        self.redis = Some(url.into());
        self
    }

    /// Logs in with the credentials that `provider` returns, and not with a password of the URL: for passwords and
    /// tokens that change. The provider is asked at each login, and before the credentials
    /// [expire](crate::Credentials::valid_for), to authenticate open connections again. It does not provide the user of
    /// Sentinels.
    ///
    /// A login takes at most a second, the provider included, and calls that wait for it have their
    /// [deadline](Self::deadline), so a provider that asks a service keeps what that returned until it expires. If the
    /// server refuses the credentials, the provider is asked once more. If it fails, hangs or panics, the attempt to
    /// connect fails, and [`on_error`](Self::on_error) applies.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Credentials, RateLimiter};
    ///
    /// # async fn token() -> std::io::Result<String> { Ok("token".to_owned()) }
    /// let limiter = RateLimiter::builder()
    ///     .redis("redis://limits@127.0.0.1:6379")
    ///     .credentials(|| async {
    ///         let token = token().await?;
    ///         Ok(Credentials::password(token).valid_for(Duration::from_secs(900)))
    ///     })
    ///     .build()?;
    /// # Ok::<(), ratelimit_runtime::BuildError>(())
    /// ```
    ///
    /// [`PasswordFile`](crate::PasswordFile) reads the password from a file.
    pub fn credentials(mut self, provider: impl CredentialsProvider) -> Self {
        self.login.provider = Some(Provider::new(provider));
        self
    }
}

#[cfg(feature = "tls")]
impl Builder {
    /// Verifies servers with these root certificates, as PEM, instead of the root certificates of the system.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.login.root_certificates = Some(pem.into());
        self
    }

    /// Authenticates this client by a certificate with its private key, both as PEM.
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.login.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// Verifies all servers by this name in their certificates, and not each by the host to which the limiter connects:
    /// for a cluster whose nodes announce addresses, and have one certificate.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.login.server_name = Some(name.into());
        self
    }
}

impl Builder {
    /// Sets the prefix of every key in Redis; `rl` unless set. If applications share a server, but must not
    /// share their counts, they need different prefixes. A prefix must not contain `{` or `}`, or the name of an
    /// algorithm between colons (`sliding`): two limits under different prefixes could then have the same key.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// Sets how long a decision may take, including the time to connect; 100 milliseconds unless set. After that,
    /// [`on_error`](Self::on_error) applies.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// Sets how many decisions of this limiter may be pending in Redis at a time; 10,000 unless set. Above
    /// that, the limiter sends no request, and [`OnError`] applies to the call.
    pub fn max_pending(mut self, decisions: usize) -> Self {
        self.max_pending = decisions;
        self
    }

    /// Sets how many keys the embedded store holds at most, rounded up to a multiple of 64; 1,000,000 unless set. To
    /// make room for a new key, a full store compares five keys and evicts one, whose count then starts at zero. It
    /// prefers a key without a rejected call, and of several such keys the one that resets first. So a client that
    /// sends fresh keys does not get its exhausted key back. With a threshold of 1 it can: before its first rejection,
    /// an exhausted key looks like any used key. Up to half of the store stays with keys that were not rejected. A
    /// blocked key is evicted only if more than half of the keys are blocked.
    ///
    /// A key with calls [in flight](crate::Limit::in_flight) is not evicted. Once such keys take twice the number, a
    /// call in flight of another key is rejected as [`Busy`](crate::Rejection::Busy), and an event warns once.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// Sets how many calls of this limiter may [wait](crate::Limit::wait) at a time, for all keys together; 10,000
    /// unless set. A further call with a wait does not wait: if no call waits for its counts, it is decided at once.
    /// Otherwise it must not overtake these calls: unless it is admitted with them at once, it is rejected as
    /// [`Limited`](crate::Rejection::Limited), until the time at which it would be admitted behind them.
    pub fn max_waiting(mut self, calls: usize) -> Self {
        self.max_waiting = calls;
        self
    }

    /// Sets what happens to a call when Redis cannot decide, for limits that do not set it;
    /// [`OnError::Local`] unless set.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.settings.on_error = on_error;
        self
    }

    /// Sets how many processes share the limits; 1 unless set, and 0 counts as 1. While Redis cannot decide,
    /// [`OnError::Local`] lets this process admit its share: the threshold and the burst, each divided by this
    /// number and rounded down, but at least 1.
    ///
    /// Unless set, each of `n` processes then admits the whole limit, so together up to `n` times as much. The share is
    /// counted anew: a period that begins with Redis and ends without it can have up to twice the limit.
    pub fn instances(mut self, instances: u32) -> Self {
        self.settings.instances = instances;
        self
    }

    /// Sets whether this process caches rejections by Redis; `true` unless set. A cached rejection rejects calls of
    /// cost 1 on its key without a request. It expires when its `retry_after` has passed, after a second at most. A
    /// client that retries too early then costs Redis little.
    ///
    /// When this limiter gives units back or resets a key, the next call observes it. When another process gives units
    /// back or resets the key, this process observes it within that second.
    pub fn cache_rejections(mut self, enabled: bool) -> Self {
        self.settings.caches_rejections = enabled;
        self
    }

    /// Sets the clock by which the limiter decides; the clock of the store unless set.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Calls `hook` with each rejected call, for instance to count the rejections of each key. Calls that a
    /// [shadow](crate::Limit::shadow) would reject are included. If a call has several limits, `hook` receives the
    /// limit that the rejection names. The caller waits until `hook` returns, so keep it short. It is not called for
    /// a check with invalid limits.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::{Limit, RateLimiter, RejectedCall};
    ///
    /// const LOGIN: Limit = Limit::sliding("login", 1, Duration::from_secs(60));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::builder()
    ///     .on_rejected(|call: &RejectedCall<'_>| println!("{} of {}", call.rejection.name(), call.key))
    ///     .build()?;
    /// limiter.check(&LOGIN, "alice", 1).await?;
    /// assert!(limiter.check(&LOGIN, "alice", 1).await.is_err()); // prints `login of alice`
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_rejected(mut self, hook: impl Fn(&RejectedCall<'_>) + Send + Sync + 'static) -> Self {
        self.settings.reports.on_rejected = Some(Arc::new(hook));
        self
    }

    /// Sets whether `tracing` events of rejections contain the text of the key, and not a hash of it; `false` unless
    /// set. The same holds for [`Operator::rejected_keys`](crate::Operator::rejected_keys), which a limiter with rules
    /// in Redis announces there. A key can be personal: an address, a user, an API key.
    pub fn log_keys(mut self, enabled: bool) -> Self {
        self.settings.reports.logs_keys = enabled;
        self
    }

    /// Sets the secret under which [hashed keys](KeySecret) are hashed: at least 16 bytes, random, and the same in all
    /// processes that share counts. Keep it like a password: a reader with the secret can test guesses of a key. Unless
    /// set, each limiter has a random one, and a hashed key that is counted on Redis is a mistake.
    ///
    /// Each secret has counts of its own: while a new one is rolled out, a key has its limit under both.
    pub fn key_secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.key_secret = Some(secret.into());
        self
    }

    /// Sets the secret under which `tracing` events of rejections hash keys; a random one of each process unless set.
    /// Processes with the same secret have the same hash for a key. A reader who knows the secret can test guesses of a
    /// key, so keep it like a password; use 16 random bytes or more.
    pub fn log_hash_secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.settings.reports.log_secret = Some(LogSecret::new(secret.as_ref()));
        self
    }

    /// Sets where the limiter reads its rules: what operators change about limits while the service runs. New rules are
    /// in force within two seconds.
    ///
    /// ```no_run
    /// use ratelimit_runtime::{RateLimiter, Rules};
    ///
    /// let limiter = RateLimiter::builder().rules(Rules::file("rules.toml")).build()?;
    /// # Ok::<(), ratelimit_runtime::BuildError>(())
    /// ```
    #[cfg(feature = "rules")]
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = Some(rules);
        self
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// [`BuildError`] on an invalid URL, certificate or server name, and if there is no cryptography for TLS; on
    /// credentials without a URL; on a key prefix with braces, or with the name of an algorithm; on a deadline, a
    /// `max_keys` or a `max_pending` of 0; on a key secret of fewer than 16 bytes; on a file of rules that cannot be
    /// read or has a mistake.
    #[cfg_attr(feature = "actix", track_caller)]
    pub fn build(self) -> Result<RateLimiter, BuildError> {
        let default = Self::default();
        let sets_redis = self.key_prefix != default.key_prefix
            || self.settings.deadline != default.settings.deadline
            || self.max_pending != default.max_pending;
        let is_alone = cfg!(feature = "redis") && self.redis.is_none() && sets_redis;
        let limiter = self.build_unreported()?;
        if is_alone && std::env::var_os("RATELIMIT_REDIS_URL").is_some_and(|url| !url.is_empty()) {
            tracing::warn!(
                "this rate limiter counts in this process, with settings for Redis: a builder does not read \
                 RATELIMIT_REDIS_URL, so call `redis`, or begin with `RateLimiterSettings::from_environment()`"
            );
        }
        #[cfg(feature = "actix")]
        if limiter.checker.backend.shared.is_none() {
            super::workers::check(std::panic::Location::caller());
        }
        report::describe();
        Ok(limiter)
    }

    /// Builds the limiter, and calls neither the recorder of metrics nor a subscriber of events.
    pub(super) fn build_unreported(mut self) -> Result<RateLimiter, BuildError> {
        if self.settings.deadline.is_zero() {
            return Err(BuildError::ZeroDeadline);
        }
        if self.max_keys == 0 {
            return Err(BuildError::ZeroKeys);
        }
        if self.max_pending == 0 {
            return Err(BuildError::ZeroPending);
        }
        if let Some(secret) = self.key_secret.as_deref() {
            if secret.len() < KeySecret::FEWEST {
                return Err(BuildError::ShortKeySecret);
            }
            self.settings.key_secret = KeySecret::new(secret);
        }
        // With a longer deadline, the end of a request could exceed the range of `Instant`.
        self.settings.deadline = self.settings.deadline.min(MAX_DEADLINE);
        let background = Arc::default();
        #[cfg(not(feature = "redis"))]
        let shared = None;
        #[cfg(feature = "redis")]
        let shared = match &self.redis {
            None if self.login.provider.is_some() => {
                return Err(BuildError::CredentialsWithoutRedis);
            }
            None => None,
            Some(url) => Some(Redis::new(
                url,
                &self.login,
                &self.key_prefix,
                self.settings.deadline,
                self.max_pending,
                self.clock.clone(),
                Arc::clone(&background),
            )?),
        };
        let local = Local::new(self.max_keys, self.clock);
        let backend = Backend::new(local, shared, background, self.settings);
        let checker = create_checker(backend, self.max_waiting);
        Ok(RateLimiter {
            #[cfg(feature = "rules")]
            feed: self.rules.map(|rules| RuleFeed::start(rules, &checker)).transpose()?,
            checker,
        })
    }
}

fn create_checker(backend: Backend, max_waiting: usize) -> Checker {
    let backend = Arc::new(backend);
    let leases = Leases::new(&backend);
    let holder = Arc::downgrade(&leases);
    let listener = move |key_id| {
        if let Some(leases) = holder.upgrade() {
            leases.give_back(key_id);
        }
    };
    let _ = backend.notices.on_block.set(Box::new(listener));
    let rules = Arc::default();
    let waiting = Waiting::new(&backend, &rules, max_waiting);
    Checker { backend, leases, waiting, rules }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            redis: None,
            #[cfg(feature = "redis")]
            login: LoginSettings::default(),
            max_pending: 10_000,
            key_prefix: "rl".to_owned(),
            max_keys: 1_000_000,
            max_waiting: 10_000,
            clock: Clock::Store,
            key_secret: None,
            settings: BackendSettings {
                on_error: OnError::Local,
                instances: 1,
                deadline: Duration::from_millis(100),
                caches_rejections: true,
                key_secret: KeySecret::random(),
                reports: ReportSettings::default(),
            },
            #[cfg(feature = "rules")]
            rules: None,
        }
    }
}

/// Omits the URL and the secret: both can contain a password.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("key_prefix", &self.key_prefix)
            .field("deadline", &self.settings.deadline)
            .field("max_pending", &self.max_pending)
            .field("max_keys", &self.max_keys)
            .field("max_waiting", &self.max_waiting)
            .field("clock", &self.clock)
            .field("on_error", &self.settings.on_error)
            .field("instances", &self.settings.instances)
            .field("cache_rejections", &self.settings.caches_rejections)
            .finish_non_exhaustive()
    }
}
