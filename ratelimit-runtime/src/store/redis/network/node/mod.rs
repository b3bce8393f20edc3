//! One server and its connections: one connection for each tokio runtime that uses the server.
//!
//! A task of the runtime that opened a connection drives it, so the connection ends with that runtime. A
//! limiter outlives runtimes (each `#[tokio::test]` has its own), so a node keeps connections by runtime. It
//! keeps the circuit breaker by runtime as well, so that a blocked runtime does not affect the others. The
//! first command in a runtime opens its connection; the first command after the connection broke opens
//! another.
//!
//! The background thread probes a server that does not answer, and half-opens the breakers of all runtimes. A
//! node sends each command at most once: if a connection breaks, the pending calls on it fail.

mod jobs;
mod runtime;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use self::runtime::{Attempt, RuntimeState};
use super::address::Target;
use super::breaker::TIMEOUTS_TO_OPEN;
use super::connect::{CONNECT_TIMEOUT, connect_to};
use super::connection::Connection;
use super::failure::{Failure, store_error};
use super::sentinel::Sentinels;
use crate::background::{Background, JobSlot, OwnValue, lock_own};
use crate::clock::complete_by;
use crate::reply::StoreError;
use crate::report;
use crate::threads::{Mutex, MutexGuard};

/// How to find a server.
pub(crate) enum ServerLookup {
    At(Target),
    Primary(Sentinels),
}

/// A server, or the current primary of a service.
pub(crate) struct Node {
    lookup: ServerLookup,
    /// The address of the server, or the name of the service, for logs.
    name: Box<str>,
    /// The longest time that a reply may take.
    deadline: Duration,
    /// A command that succeeds if the server would decide.
    probe: Cmd,
    background: Arc<Background>,
    runtimes: Mutex<OwnValue<HashMap<Id, Arc<RuntimeState>>>>,
    /// The job that probes the server.
    prober: JobSlot,
    /// The number of probes in a row that had no answer, or were followed by a call without a reply.
    failed_probes: AtomicU32,
    /// The job that follows the primary.
    follower: JobSlot,
    /// Whether a connection was opened before. The first one logs at a higher level, and asks whether keys are evicted.
    has_connected: AtomicBool,
}

/// Why a command has no reply.
enum ExchangeError {
    /// There was no connection, so nothing was sent.
    NotConnected(RedisError),
    /// The server replied with an error, or the connection broke.
    Failed(RedisError),
}

impl Node {
    pub(crate) fn new(
        lookup: ServerLookup,
        deadline: Duration,
        probe: Cmd,
        background: &Arc<Background>,
    ) -> Arc<Self> {
        let name = match &lookup {
            ServerLookup::At(target) => target.name(),
            ServerLookup::Primary(sentinels) => sentinels.name(),
        };
        Arc::new(Self {
            lookup,
            name,
            deadline,
            probe,
            background: Arc::clone(background),
            runtimes: Mutex::default(),
            prober: JobSlot::default(),
            failed_probes: AtomicU32::new(0),
            follower: JobSlot::default(),
            has_connected: AtomicBool::new(false),
        })
    }

    pub(crate) fn host(&self) -> &str {
        match &self.lookup {
            ServerLookup::At(target) => target.host(),
            ServerLookup::Primary(_) => "",
        }
    }

    /// Sends one command, once, and waits for its reply until `by`. With `asking`, a node of a cluster
    /// accepts a command for a slot that is migrating to it. Panics outside a tokio runtime.
    pub(crate) async fn send(
        self: &Arc<Self>,
        command: &Cmd,
        asking: bool,
        by: Instant,
    ) -> Result<Value, Failure> {
        let runtime = self.runtime();
        self.background.revive();
        if let Some(error) = runtime.breaker.open_error() {
            // The job may have been dropped, because its thread could not start.
            if !self.prober.is_running() {
                self.probe();
            }
            return Err(Failure::BreakerOpen(error));
        }
        let before = runtime.connection();
        let timed_out = || StoreError::Timeout { deadline: self.deadline };
        // Callers may drop their futures before the deadline. Then no call times out, and only the connection shows
        // that the server does not reply.
        let silence = TIMEOUTS_TO_OPEN * self.deadline;
        if before.as_ref().is_some_and(|connection| connection.is_unresponsive(silence)) {
            self.open_breaker(&runtime, &timed_out());
            let error = runtime.breaker.open_error();
            return Err(error.map_or(Failure::Timeout { is_sent: false }, Failure::BreakerOpen));
        }
        let mut is_sent = false;
        let exchange = self.exchange(&runtime, command, asking, &mut is_sent);
        let Some(reply) = complete_by(by, exchange).await else {
            // A timeout on a connection that was replaced does not concern the current connection.
            let is_current = match (&before, &runtime.connection()) {
                (Some(before), Some(now)) => before.is_same(now),
                (before, now) => before.is_none() == now.is_none(),
            };
            if is_current && runtime.breaker.record_timeout() {
                self.open_breaker(&runtime, &timed_out());
            }
            return Err(Failure::Timeout { is_sent });
        };
        match reply {
            Ok(value) => {
                self.record_reply(&runtime);
                Ok(value)
            }
            Err(ExchangeError::Failed(error)) => {
                // An error from the server is a reply.
                if !error.is_unrecoverable_error() {
                    self.record_reply(&runtime);
                }
                self.back_off_if_unfit(&store_error(&error, &[]));
                Err(Failure::Redis(error))
            }
            Err(ExchangeError::NotConnected(error)) => {
                // Another call may have connected in the meantime.
                if runtime.connection().is_none() {
                    self.open_breaker(&runtime, &store_error(&error, &[]));
                }
                Err(Failure::NotConnected(error))
            }
        }
    }

    /// Returns the address of the server, or the name of the service.
    #[cfg(feature = "rules")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Checks whether the server would decide now. For a server that is not a node of a cluster.
    pub(crate) async fn ping(self: &Arc<Self>, by: Instant) -> Result<(), Failure> {
        self.send(&self.probe, false, by).await.map(drop)
    }

    async fn exchange(
        self: &Arc<Self>,
        runtime: &Arc<RuntimeState>,
        command: &Cmd,
        asking: bool,
        is_sent: &mut bool,
    ) -> Result<Value, ExchangeError> {
        let connection = self.connection(runtime).await.map_err(ExchangeError::NotConnected)?;
        *is_sent = true;
        let reply = connection.send(command, asking).await;
        if reply.as_ref().is_err_and(RedisError::is_unrecoverable_error) {
            runtime.discard(&connection);
        }
        reply.map_err(ExchangeError::Failed)
    }

    fn record_reply(&self, runtime: &RuntimeState) {
        if runtime.breaker.record_reply() {
            self.failed_probes.store(0, Ordering::Relaxed);
        }
    }

    /// Opens the breaker if an error shows that the server does not decide calls. The next connection may lead to
    /// another server, such as the primary, because an address can move.
    pub(crate) fn back_off_if_unfit(self: &Arc<Self>, error: &StoreError) {
        if is_unfit(error) {
            self.open_breaker(&self.runtime(), error);
        }
    }

    /// Opens the breaker of a runtime, discards its connection, and starts the probes.
    fn open_breaker(self: &Arc<Self>, runtime: &RuntimeState, cause: &StoreError) {
        *lock(&runtime.connection) = None;
        if !runtime.breaker.open(cause.clone()) {
            return;
        }
        report::breaker(&self.name, Some(cause));
        self.probe();
    }

    /// Starts the probes if they are not running.
    fn probe(self: &Arc<Self>) {
        if let Some(job) = self.prober.start() {
            self.background.spawn(jobs::probe(Arc::downgrade(self), job));
        }
    }

    /// Starts to follow the primary if `connection` leads to one.
    fn follow(self: &Arc<Self>, connection: &Connection) {
        // Each call comes here, so it only reads the slot while the job runs.
        if connection.primary().is_some()
            && !self.follower.is_running()
            && let Some(job) = self.follower.start()
        {
            self.background.spawn(jobs::follow(Arc::downgrade(self), job));
        }
    }

    /// Returns the state of the current runtime.
    fn runtime(&self) -> Arc<RuntimeState> {
        let mut runtimes = lock_own(&self.runtimes);
        if let Some(runtime) = runtimes.get(&Handle::current().id()) {
            return Arc::clone(runtime);
        }
        // New runtimes are rare, so this also removes the runtimes that have shut down.
        runtimes.retain(|_, runtime| !runtime.shutdown.is_closed());
        Arc::clone(runtimes.entry(Handle::current().id()).or_insert_with(RuntimeState::new))
    }

    /// Returns the connection of a runtime. Connects if there is none or the server has closed it.
    async fn connection(
        self: &Arc<Self>,
        runtime: &Arc<RuntimeState>,
    ) -> Result<Connection, RedisError> {
        if let Some(connection) = runtime.connection() {
            if connection.is_alive().await {
                self.follow(&connection);
                return Ok(connection);
            }
            runtime.discard(&connection);
        }
        self.connect(runtime).await
    }

    async fn connect(
        self: &Arc<Self>,
        runtime: &Arc<RuntimeState>,
    ) -> Result<Connection, RedisError> {
        let mut attempt = {
            let mut last = lock(&runtime.attempt);
            match &*last {
                Some(attempt) if attempt.has_changed().is_ok() => attempt.clone(),
                _ => match runtime.connection() {
                    // The last attempt has ended since this call looked for its connection.
                    Some(connection) => return Ok(connection),
                    None => last.insert(self.start_attempt(runtime)).clone(),
                },
            }
        };
        let result = attempt.wait_for(Option::is_some).await.ok().and_then(|result| result.clone());
        result.unwrap_or_else(|| {
            Err((ErrorKind::Io, "the tokio runtime shut down while connecting").into())
        })
    }

    /// Starts a task that connects, so the attempt continues if the call that starts it is dropped.
    fn start_attempt(self: &Arc<Self>, runtime: &Arc<RuntimeState>) -> Attempt {
        let (result, attempt) = watch::channel(None);
        let (node, runtime) = (Arc::clone(self), Arc::clone(runtime));
        tokio::spawn(async move {
            // One timeout limits the lookup and the connection, because all calls wait for this attempt.
            let connected = timeout(3 * CONNECT_TIMEOUT, node.lookup.connect());
            let connected = connected.await.unwrap_or_else(|_| {
                Err((ErrorKind::Io, "the attempt to connect to Redis timed out").into())
            });
            if let Ok(connection) = &connected {
                node.use_connection(&runtime, connection);
            }
            result.send_replace(Some(connected));
        });
        attempt
    }

    /// Makes a new connection the one of its runtime.
    fn use_connection(self: &Arc<Self>, runtime: &RuntimeState, connection: &Connection) {
        *lock(&runtime.connection) = Some(connection.clone());
        if self.has_connected.swap(true, Ordering::Relaxed) {
            tracing::debug!(node = %self.name, "connected to Redis");
        } else {
            tracing::info!(node = %self.name, "connected to Redis");
            let (node, connection) = (Arc::clone(self), connection.clone());
            tokio::spawn(async move { warn_of_eviction(&node.name, &connection).await });
        }
        self.follow(connection);
    }
}

impl ServerLookup {
    async fn connect(&self) -> Result<Connection, RedisError> {
        match self {
            Self::At(target) => connect_to(target, None).await,
            Self::Primary(sentinels) => sentinels.connect().await,
        }
    }
}

/// Logs a warning if the server may evict keys of the limiter: their counts then start anew.
async fn warn_of_eviction(node: &str, connection: &Connection) {
    let mut command = redis::cmd("INFO");
    let info = timeout(CONNECT_TIMEOUT, connection.send(command.arg("memory"), false)).await;
    // Without the permission for INFO, there is no warning.
    let Ok(Ok(info)) = info else { return };
    let Ok(info) = redis::from_redis_value::<String>(info) else { return };
    let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let (max_memory, policy) = (value("maxmemory:"), value("maxmemory_policy:"));
    if let (Some(max_memory), Some(policy)) = (max_memory, policy)
        && max_memory != "0"
        && policy != "noeviction"
    {
        report::may_evict(node, policy);
    }
}

/// Returns whether an error shows that the server decides no calls, because it is a replica.
fn is_unfit(error: &StoreError) -> bool {
    matches!(error, StoreError::Server { code, .. } if ["READONLY", "MASTERDOWN"].contains(&&**code))
}

/// Locks a mutex. A panic in another thread leaves its data valid.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
