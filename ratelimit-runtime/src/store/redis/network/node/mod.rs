//! One server and its connections: one connection for each tokio runtime that uses the server.
//!
//! A task of the runtime that opened a connection drives it, so the connection ends with that runtime. A
//! limiter outlives runtimes (each `#[tokio::test]` has its own), so a node keeps connections by runtime. The
//! first command in a runtime opens its connection; the first command after the connection broke opens
//! another. A node sends each command at most once: if a connection breaks, the pending calls on it fail.
//!
//! A server that does not answer has an open circuit breaker ([`watch`]): no call connects or sends a request on a
//! silent connection, so a server that is down costs no time.

mod runtime;
mod watch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant as RealInstant};

use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::{mpsc, watch as result_channel};
use tokio::time::{Instant, timeout};

use self::runtime::{Attempt, RuntimeState, is_valid};
use super::address::Target;
use super::connect::{CONNECT_TIMEOUT, connect_to};
use super::connection::Connection;
use super::failure::{Failure, store_error};
use super::sentinel::Sentinels;
use crate::background::{Background, OwnValue, lock_own};
use crate::clock::complete_by;
use crate::reply::StoreError;
use crate::report;
use crate::threads::{Mutex, MutexGuard};

/// A connection on which a request has been unanswered for so many deadlines is discarded while the breaker is closed.
const SILENCE: u32 = 3;

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
    state: Mutex<OwnValue<NodeState>>,
    /// Whether the background thread has the jobs of [`watch`].
    is_watched: AtomicBool,
    /// Whether a connection was opened before. The first one logs at a higher level, and asks whether keys are evicted.
    has_connected: AtomicBool,
}

/// The state of a node in one process.
#[derive(Default)]
struct NodeState {
    runtimes: HashMap<Id, Arc<RuntimeState>>,
    /// Why the circuit breaker is open.
    open: Option<Arc<StoreError>>,
    /// Asks for a probe.
    asked: Option<mpsc::Sender<()>>,
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
            state: Mutex::default(),
            is_watched: AtomicBool::new(false),
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
        let (runtime, open) = self.state();
        // After a fork, or if the thread could not start, a call starts the thread of the watch.
        self.background.revive();
        let (was_open, mut is_sent) = (open.is_some(), false);
        let exchange = self.exchange(&runtime, open, command, asking, &mut is_sent);
        let reply = complete_by(by, exchange).await;
        let reply = reply.unwrap_or(Err(Failure::Timeout { is_sent }));
        match &reply {
            // Its late replies would otherwise make the next calls wait as well.
            Err(Failure::Timeout { .. }) if was_open => *lock(&runtime.connection) = None,
            Err(Failure::Timeout { .. } | Failure::NotConnected(_)) => self.ask_for_probe(),
            Err(Failure::Redis(error)) => self.back_off_if_unfit(&store_error(error, &[])),
            Err(Failure::BreakerOpen(_)) | Ok(_) => {}
        }
        reply
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
        open: Option<Arc<StoreError>>,
        command: &Cmd,
        asking: bool,
        is_sent: &mut bool,
    ) -> Result<Value, Failure> {
        let connection = self.connection(runtime, open).await?;
        *is_sent = true;
        let reply = connection.send(command, asking).await;
        if reply.as_ref().is_err_and(RedisError::is_unrecoverable_error) {
            runtime.discard(&connection);
        }
        reply.map_err(Failure::Redis)
    }

    /// Returns the state of the current runtime, and why the breaker is open.
    fn state(&self) -> (Arc<RuntimeState>, Option<Arc<StoreError>>) {
        let mut state = lock_own(&self.state);
        let (open, id) = (state.open.clone(), Handle::current().id());
        if let Some(runtime) = state.runtimes.get(&id) {
            return (Arc::clone(runtime), open);
        }
        // New runtimes are rare, so this also removes the runtimes that have shut down.
        state.runtimes.retain(|_, runtime| !runtime.shutdown.is_closed());
        (Arc::clone(state.runtimes.entry(id).or_insert_with(RuntimeState::new)), open)
    }

    /// Returns the connection of a runtime. Connects if there is none, or if the server has closed it or does not reply
    /// on it. The connection itself records that, because a call that is dropped early records no timeout. While the
    /// breaker is open, a call uses a connection that replies, and opens none.
    async fn connection(
        self: &Arc<Self>,
        runtime: &Arc<RuntimeState>,
        open: Option<Arc<StoreError>>,
    ) -> Result<Connection, Failure> {
        if let Some(connection) = runtime.connection() {
            let deadlines = if open.is_some() { 1 } else { SILENCE };
            if connection.is_unresponsive(deadlines * self.deadline) {
                self.ask_for_probe();
            } else if connection.is_alive().await {
                return Ok(connection);
            }
            runtime.discard(&connection);
        }
        match open {
            Some(cause) => Err(Failure::BreakerOpen(StoreError::CircuitOpen { cause })),
            None => self.connect(runtime).await.map_err(Failure::NotConnected),
        }
    }

    async fn connect(
        self: &Arc<Self>,
        runtime: &Arc<RuntimeState>,
    ) -> Result<Connection, RedisError> {
        let mut attempt = {
            let mut last = lock(&runtime.attempt);
            match &*last {
                Some(attempt) if is_valid(attempt) => attempt.clone(),
                _ => match runtime.connection() {
                    // The last attempt has ended since this call looked for its connection.
                    Some(connection) => return Ok(connection),
                    None => last.insert(self.start_attempt(runtime)).clone(),
                },
            }
        };
        let result = attempt.wait_for(Option::is_some).await.ok().and_then(|result| result.clone());
        result.map_or_else(
            || Err((ErrorKind::Io, "the tokio runtime shut down while connecting").into()),
            |result| result.map_err(|(error, _)| error),
        )
    }

    /// Starts a task that connects, so the attempt continues if the call that starts it is dropped.
    fn start_attempt(self: &Arc<Self>, runtime: &Arc<RuntimeState>) -> Attempt {
        let (result, attempt) = result_channel::channel(None);
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
            result.send_replace(Some(connected.map_err(|error| (error, RealInstant::now()))));
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
        if connection.primary().is_some() {
            self.start_watch();
        }
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
