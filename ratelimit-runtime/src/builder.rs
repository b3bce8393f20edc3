//! How a limiter is set up.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::background::Background;
use crate::clock::Clock;
use crate::error::BuildError;
use crate::limit::OnError;
use crate::limiter::RateLimiter;
use crate::store::Store;
use crate::store::embedded::Embedded;
#[cfg(feature = "redis")]
use crate::store::redis::{Certificates, Redis, Settings};

/// A deadline beyond this is this.
#[cfg(feature = "redis")]
const LONGEST: Duration = Duration::from_secs(86_400);

/// Sets up a [`RateLimiter`]. Without [`redis`](Self::redis), counts are held in this process.
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
    #[cfg(feature = "redis")]
    redis: Option<String>,
    #[cfg(feature = "redis")]
    certificates: Certificates,
    max_in_flight: usize,
    key_prefix: String,
    deadline: Duration,
    max_keys: usize,
    clock: Clock,
    on_error: OnError,
    instances: u32,
    remember_refusals: bool,
}

impl Builder {
    /// Holds counts in the Redis or Valkey at `url`, so that all processes that use it share them.
    /// Nothing is connected before the first decision, and connections that break are made anew.
    ///
    /// | URL | what it is |
    /// | --- | --- |
    /// | `redis://host[:port][/database]` | one server |
    /// | `unix:///path/to/socket` | one server, on this machine |
    /// | `redis+sentinel://host[:port],host[:port]/service[/database]` | the primary of a service, as its Sentinels know it; failovers are followed |
    /// | `redis+cluster://host[:port],host[:port]` | a cluster; one of the hosts must answer to begin with |
    ///
    /// In front of the hosts stand a user and a password, if there are any: `user:password@`, or
    /// `:password@`, with `@ / : # % ?` in them percent-encoded. Sentinels have their own:
    /// `?sentinel_user=…&sentinel_password=…`. With `rediss` for `redis`, connections are encrypted by
    /// rustls (feature `tls`).
    ///
    /// Decisions are then awaited in a tokio runtime with I/O and time enabled, as `#[tokio::main]`
    /// makes it; tokio panics where time is disabled.
    #[cfg(feature = "redis")]
    pub fn redis(mut self, url: impl Into<String>) -> Self {
        self.redis = Some(url.into());
        self
    }

    /// Trusts the servers whose certificates these sign, as PEM, instead of those that the system
    /// trusts.
    #[cfg(feature = "tls")]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.root = Some(pem.into());
        self
    }

    /// Shows servers a certificate of this client, as PEM, with its private key.
    #[cfg(feature = "tls")]
    pub fn client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// What every key in Redis begins with; `ratelimit` unless set. Applications that share a
    /// server and not their counts need different ones. Without `{` and `}`, and without an algorithm and a
    /// period as segments between colons (`sliding:1m`): then no two prefixes make one key.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// How long a decision may take before it is given up; 100 milliseconds unless set. It covers
    /// connecting.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How many decisions may be awaited from Redis at a time, by this limiter; 10,000 unless set. The
    /// next one is not asked for, and [`OnError`] says what becomes of it.
    pub fn max_in_flight(mut self, decisions: usize) -> Self {
        self.max_in_flight = decisions;
        self
    }

    /// How many keys the embedded store holds at most, to the next multiple of 64; 1,000,000 unless
    /// set. When it is full of keys in use, a new one takes the place of one that is soon to be
    /// reset, and that one starts anew.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// What becomes of a call when Redis cannot decide and its limit does not say;
    /// [`OnError::Local`] unless set.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// How many processes share the limits; 1 unless set, and 0 counts as 1. While Redis cannot decide and
    /// [`OnError::Local`] says that this process does, it admits its share: the threshold, and the
    /// burst, divided by this number, and at least 1. Without it, each process admits the whole limit.
    pub fn instances(mut self, instances: u32) -> Self {
        self.instances = instances;
        self
    }

    /// Whether calls of cost 1 that Redis has just refused are refused here, without asking, until the
    /// wait that it told is over, and for a second at most; so it is unless set to `false`. A caller who
    /// hammers then costs Redis next to nothing.
    ///
    /// Units that are given back, or keys that are reset, by this limiter are seen at once; those of
    /// other processes within that second.
    pub fn remember_refusals(mut self, remember: bool) -> Self {
        self.remember_refusals = remember;
        self
    }

    /// Whose time limits are decided by; the store's own unless set.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// [`BuildError`] on a URL or a certificate that cannot be read, a key prefix with braces or with the
    /// algorithm and the period of a limit, and zeros where they make no sense.
    pub fn build(self) -> Result<RateLimiter, BuildError> {
        if self.deadline.is_zero() {
            return Err(BuildError::ZeroDeadline);
        }
        if self.max_keys == 0 {
            return Err(BuildError::ZeroKeys);
        }
        if self.max_in_flight == 0 {
            return Err(BuildError::ZeroInFlight);
        }
        let background = Arc::default();
        #[cfg(feature = "redis")]
        if let Some(url) = &self.redis {
            let shared = Redis::new(Settings {
                url,
                certificates: &self.certificates,
                prefix: &self.key_prefix,
                // A moment further away than this may be none that a clock can tell.
                deadline: self.deadline.min(LONGEST),
                max_in_flight: self.max_in_flight,
                clock: self.clock.clone(),
                background: Arc::clone(&background),
            })?;
            return Ok(self.build_on(Some(Box::new(shared)), background));
        }
        Ok(self.build_on(None, background))
    }

    pub(crate) fn build_embedded(self) -> RateLimiter {
        self.build_on(None, Arc::default())
    }

    fn build_on(self, shared: Option<Box<dyn Store>>, background: Arc<Background>) -> RateLimiter {
        let local = Embedded::new(self.max_keys, self.clock);
        let Self { on_error, instances, remember_refusals, .. } = self;
        RateLimiter::new(local, shared, on_error, instances, remember_refusals, background)
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            #[cfg(feature = "redis")]
            redis: None,
            #[cfg(feature = "redis")]
            certificates: Certificates::default(),
            max_in_flight: 10_000,
            key_prefix: "ratelimit".to_owned(),
            deadline: Duration::from_millis(100),
            max_keys: 1_000_000,
            clock: Clock::Store,
            on_error: OnError::Local,
            instances: 1,
            remember_refusals: true,
        }
    }
}

/// Without the URL: it may hold a password.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("key_prefix", &self.key_prefix)
            .field("deadline", &self.deadline)
            .field("max_in_flight", &self.max_in_flight)
            .field("max_keys", &self.max_keys)
            .field("clock", &self.clock)
            .field("on_error", &self.on_error)
            .field("instances", &self.instances)
            .field("remember_refusals", &self.remember_refusals)
            .finish_non_exhaustive()
    }
}
