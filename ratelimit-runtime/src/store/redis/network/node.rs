//! One server and its connections: one connection for each tokio runtime that uses the server.
//!
//! A task of the runtime that opened a connection drives it, so the connection ends with that runtime. A
//! limiter outlives runtimes (each `#[tokio::test]` has its own), so a node keeps connections by runtime. The
//! first command in a runtime opens its connection; the first command after the connection broke opens
//! another. A node sends each command at most once: if a connection breaks, the pending calls on it fail.
//!
//! A server that does not answer has an open circuit breaker: no call connects or sends a request on a
//! silent connection, so a server that is down costs no time.
//!
//! A node has two jobs of the background thread: one probes the server, and one follows the primary.
//!
//! A call that has no reply or no connection shows only that its own runtime does not reach the server: the runtime may
//! be blocked, or the server may have as many clients as it accepts. So it asks for a probe, which the background
//! thread sends from its own runtime. If the server does not answer the probe, the breaker opens for all runtimes.
//! Until the server answers a later probe, only a connection that replies is used.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant as RealInstant};

use redis::{Cmd, ErrorKind, InfoDict, RedisError, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{CONNECT_TIMEOUT, Connection, Target, connect_to};
use super::failure::{failure_of, store_error};
use super::sentinel::{PRIMARY_INTERVAL, Sentinels};
use crate::background::{Background, OwnValue, lock_own};
use crate::clock::complete_by;
use crate::reply::StoreError;
use crate::report;
use crate::store::Failure;
use crate::threads::Mutex;

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
    pub(crate) name: Box<str>,
    /// The longest time that a reply may take.
    deadline: Duration,
    /// A command that succeeds if the server would decide.
    pub(crate) probe: Cmd,
    background: Arc<Background>,
    state: Mutex<OwnValue<NodeState>>,
    /// Whether a connection was opened before. The first one logs at a higher level, and asks whether keys are evicted.
    has_connected: AtomicBool,
}

/// The state of a node in one process.
#[derive(Default)]
struct NodeState {
    /// The last attempt to connect from each runtime; its result is the connection of the runtime. A task of the
    /// runtime makes it, and all calls without a connection await its result. A call that is not polled delays no other
    /// call.
    attempts: HashMap<Id, Attempt>,
    /// Why the circuit breaker is open: its newest cause.
    open: Option<Arc<StoreError>>,
    /// The cause that was reported last.
    reported: Option<Arc<StoreError>>,
    /// Held by the job that probes the server.
    probing: Weak<()>,
}

impl Node {
    pub(crate) fn new(
        lookup: ServerLookup,
        deadline: Duration,
        probe: Cmd,
        background: &Arc<Background>,
    ) -> Arc<Self> {
        let name = match &lookup {
            ServerLookup::At(target) => target.address.to_string().into(),
            ServerLookup::Primary(sentinels) => sentinels.service.clone(),
        };
        Arc::new(Self {
            lookup,
            name,
            deadline,
            probe,
            background: Arc::clone(background),
            state: Mutex::default(),
            has_connected: AtomicBool::new(false),
        })
    }

    pub(crate) fn host(&self) -> &str {
        match &self.lookup {
            ServerLookup::At(target) => target.host_and_port().0,
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
        let open = lock_own(&self.state).open.clone();
        // After a fork, or if the thread could not start, a call starts the thread that follows the primary.
        self.background.revive();
        let (was_open, mut is_sent) = (open.is_some(), false);
        // Pinned here: `complete_by` would keep room for it twice.
        let reply = complete_by(by, pin!(self.exchange(open, command, asking, &mut is_sent))).await;
        let has_ended = reply.is_some() && is_sent;
        let reply = reply.unwrap_or_else(|| Err(self.timed_out(is_sent)));
        match &reply {
            Ok(_) => {}
            Err(it) if has_ended && is_unfit(it.error()) => self.open_breaker(it.error()),
            Err(_) if has_ended => {}
            // Its late replies would otherwise make the next calls wait as well.
            Err(_) if was_open && is_sent => self.give_attempt_up(),
            Err(_) => self.ask_for_probe(),
        }
        reply
    }

    fn timed_out(&self, is_sent: bool) -> Failure {
        let error = StoreError::Timeout { deadline: self.deadline };
        if is_sent { Failure::NoReply(error) } else { Failure::NotExecuted(error) }
    }

    async fn exchange(
        self: &Arc<Self>,
        open: Option<Arc<StoreError>>,
        command: &Cmd,
        asking: bool,
        is_sent: &mut bool,
    ) -> Result<Value, Failure> {
        let mut connection = self.connection(open.clone()).await?;
        *is_sent = true;
        let mut reply = connection.send(command, asking).await;
        if connection.was_logged_out(&reply) {
            // The server has executed nothing.
            self.discard(|other| Arc::ptr_eq(other, &connection));
            connection = self.connection(open).await?;
            reply = connection.send(command, asking).await;
        }
        if reply.as_ref().is_err_and(RedisError::is_unrecoverable_error) {
            self.discard(|other| Arc::ptr_eq(other, &connection));
        }
        reply.map_err(|error| failure_of(store_error(&error)))
    }

    /// Returns the connection of the current runtime. Connects if there is none, or if the server has closed it or does
    /// not reply on it. The connection itself records that, because a call that is dropped early records no timeout.
    /// While the breaker is open, a call uses a connection that replies, and opens none.
    async fn connection(
        self: &Arc<Self>,
        open: Option<Arc<StoreError>>,
    ) -> Result<Arc<Connection>, Failure> {
        if let Some(connection) = self.known_connection() {
            let deadlines = if open.is_some() { 1 } else { SILENCE };
            if connection.is_unresponsive(deadlines * self.deadline) {
                self.ask_for_probe();
            } else if connection.is_alive().await {
                return Ok(connection);
            }
            self.discard(|other| Arc::ptr_eq(other, &connection));
        }
        if let Some(cause) = open {
            return Err(Failure::NotExecuted(StoreError::CircuitOpen { cause }));
        }
        self.connect().await.map_err(|error| Failure::NotExecuted(store_error(&error)))
    }

    /// Returns the connection of the current runtime, if there is one.
    fn known_connection(&self) -> Option<Arc<Connection>> {
        lock_own(&self.state).attempts.get(&Handle::current().id()).and_then(connection_by)
    }

    /// Removes broken connections. Returns whether there were any.
    fn discard(&self, is_broken: impl Fn(&Arc<Connection>) -> bool) -> bool {
        let attempts = &mut lock_own(&self.state).attempts;
        let before = attempts.len();
        attempts.retain(|_, attempt| !connection_by(attempt).is_some_and(|it| is_broken(&it)));
        attempts.len() < before
    }

    /// Removes the attempt to connect, or the connection, of the current runtime.
    fn give_attempt_up(&self) {
        lock_own(&self.state).attempts.remove(&Handle::current().id());
    }

    async fn connect(self: &Arc<Self>) -> Result<Arc<Connection>, RedisError> {
        let mut attempt = {
            let attempts = &mut lock_own(&self.state).attempts;
            // Attempts are rare, so this also removes those of runtimes that have shut down.
            attempts.retain(|_, attempt| is_valid(attempt));
            let start = || self.start_attempt();
            attempts.entry(Handle::current().id()).or_insert_with(start).clone()
        };
        let result = attempt.wait_for(Option::is_some).await.ok().and_then(|result| result.clone());
        match result {
            Some(result) => result.map_err(|(error, _)| error),
            None => Err((ErrorKind::Io, "the tokio runtime shut down while connecting").into()),
        }
    }

    /// Starts a task that connects, so the attempt continues if the call that starts it is dropped.
    fn start_attempt(self: &Arc<Self>) -> Attempt {
        let (result, attempt) = watch::channel(None);
        let (node, own) = (Arc::clone(self), attempt.clone());
        tokio::spawn(async move {
            // One timeout limits the lookup and the connection, because all calls wait for this attempt.
            let connected = timeout(3 * CONNECT_TIMEOUT, async {
                match &node.lookup {
                    ServerLookup::At(target) => connect_to(target).await,
                    ServerLookup::Primary(sentinels) => sentinels.connect().await,
                }
            });
            let connected = connected.await.unwrap_or_else(|_| {
                Err((ErrorKind::Io, "the attempt to connect to Redis timed out").into())
            });
            let connected = connected.map(Arc::new);
            if connected.is_ok() {
                // A probe may have given this attempt up.
                lock_own(&node.state).attempts.insert(Handle::current().id(), own);
            }
            let reported = connected.as_ref().map(Arc::clone).map_err(store_error);
            result.send_replace(Some(connected.map_err(|error| (error, RealInstant::now()))));
            match reported {
                Ok(connection) => node.report_connection(&connection).await,
                // A login can be refused after the deadline of the probe.
                Err(cause) if lock_own(&node.state).open.is_some() => node.open_breaker(&cause),
                Err(_) => {}
            }
        });
        attempt
    }

    /// Reports a new connection. After the first one, follows the server if it is a primary that can move, and logs a
    /// warning if the server may evict keys of the limiter: their counts then start anew.
    async fn report_connection(self: &Arc<Self>, connection: &Connection) {
        if self.has_connected.swap(true, Ordering::Relaxed) {
            tracing::debug!(node = %self.name, "connected to Redis");
            return;
        }
        if let ServerLookup::Primary(_) = self.lookup {
            self.background.spawn_resident(self, |node| follow(Arc::downgrade(&node)));
        }
        tracing::info!(node = %self.name, "connected to Redis");
        let mut command = redis::cmd("INFO");
        let info = timeout(CONNECT_TIMEOUT, connection.send(command.arg("memory"), false)).await;
        // Without the permission for INFO, there is no warning.
        let Ok(Ok(info)) = info else { return };
        let Ok(info) = redis::from_redis_value::<InfoDict>(info) else { return };
        let policy = info.get::<String>("maxmemory_policy").filter(|it| it != "noeviction");
        if let (Some(1..), Some(policy)) = (info.get::<u64>("maxmemory"), policy) {
            report::may_evict(&self.name, &policy);
        }
    }
}

/// Returns whether an error shows that the server decides no calls, because it is a replica.
fn is_unfit(error: &StoreError) -> bool {
    error.has_code("READONLY MASTERDOWN")
}

/// The time after a failed attempt to connect in which calls receive its error. The next attempt comes after it.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(25);

/// An attempt to connect. Receives the result once; an error has the time of the failure.
type Attempt = watch::Receiver<Option<Result<Arc<Connection>, (RedisError, RealInstant)>>>;

fn connection_by(attempt: &Attempt) -> Option<Arc<Connection>> {
    let result = attempt.borrow();
    result.as_ref().and_then(|result| result.as_ref().ok()).cloned()
}

/// Returns whether a call awaits this attempt, or receives its result, instead of starting another one.
fn is_valid(attempt: &Attempt) -> bool {
    match &*attempt.borrow() {
        // An error if the runtime has shut down.
        None => attempt.has_changed().is_ok(),
        Some(Ok(connection)) => !connection.has_ended(),
        Some(Err((_, failed_at))) => failed_at.elapsed() < ATTEMPT_PAUSE,
    }
}

/// The first and the longest pause after a probe, before jitter.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(400)];

impl Node {
    /// Starts to probe the server, unless a job does so. Each call that fails asks, because the job can panic, or fail
    /// to start.
    fn ask_for_probe(self: &Arc<Self>) {
        let mut state = lock_own(&self.state);
        if state.probing.strong_count() == 0 {
            let held = Arc::new(());
            state.probing = Arc::downgrade(&held);
            drop(state);
            self.background.spawn(probe(Arc::downgrade(self), held));
        }
    }

    /// Opens the breaker, or gives it a newer cause. Reports that if it was closed, or if the server now refuses with
    /// another error. Discards all connections to a server that is not the primary: an address can move, so the next
    /// ones may lead to another server.
    fn open_breaker(self: &Arc<Self>, cause: &StoreError) {
        let mut state = lock_own(&self.state);
        if is_unfit(cause) {
            state.attempts.clear();
        }
        let newest = Arc::new(cause.clone());
        let was_open = state.open.replace(Arc::clone(&newest)).is_some();
        let is_refusal = matches!(cause, StoreError::Server { .. });
        let is_news = !was_open || is_refusal && state.reported.as_ref() != Some(&newest);
        if is_news {
            state.reported = Some(newest);
        }
        drop(state);
        // Before the report, whose subscriber may panic: the probe closes the breaker.
        self.ask_for_probe();
        if is_news {
            report::breaker(&self.name, Some(cause));
        }
    }

    /// Sends a probe from this runtime. Returns an error if the server does not answer in time, or would not decide. A
    /// connection that was there before may have broken in silence, so the probe is then sent again on a new one.
    async fn answers_probe(self: &Arc<Self>) -> Result<(), StoreError> {
        loop {
            let (was_connected, mut is_sent) = (self.known_connection().is_some(), false);
            let exchange = self.exchange(None, &self.probe, false, &mut is_sent);
            let failure = match timeout(self.deadline, exchange).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(failure)) => failure,
                Err(_) => {
                    // An attempt goes on, but the next probe does not wait for it: its bytes may be lost. The next
                    // probe uses a new connection that is there now: the login can take most of the deadline.
                    if was_connected || !is_sent {
                        self.give_attempt_up();
                    }
                    self.timed_out(is_sent)
                }
            };
            let cause = failure.into();
            if is_sent && matches!(cause, StoreError::Server { .. }) {
                // Callers receive other errors from the server.
                return if is_unfit(&cause) { Err(cause) } else { Ok(()) };
            }
            if !was_connected {
                return Err(cause);
            }
        }
    }
}

/// Sends a probe, and another one after each pause while the breaker is open. Ends with the node. Drops `_held` when it
/// ends, also by a panic.
async fn probe(probed: Weak<Node>, _held: Arc<()>) {
    let mut failures = 0;
    while let Some(node) = probed.upgrade() {
        if let Err(cause) = node.answers_probe().await {
            failures += 1;
            node.open_breaker(&cause);
        } else {
            failures = 0;
            let was_open = lock_own(&node.state).open.take().is_some();
            if was_open {
                report::breaker(&node.name, None);
            }
        }
        drop(node);
        sleep(pause_after(failures)).await;
        if probed.upgrade().is_none_or(|node| lock_own(&node.state).open.is_none()) {
            return;
        }
    }
}

/// Discards connections to a server that is no longer the primary, until the node is dropped.
async fn follow(node: Weak<Node>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        let ServerLookup::Primary(sentinels) = &node.lookup else { return };
        if let Ok(primary) = sentinels.primary().await
            && node.discard(|connection| connection.address != primary)
        {
            tracing::info!(node = %node.name, "the primary has changed");
        }
        drop(node);
        sleep(PRIMARY_INTERVAL).await;
    }
}

/// Returns the pause after a probe, the last of so many failed ones. It doubles with each of them up to the longest.
/// Jitter makes it up to a quarter shorter or longer, so that the processes of a fleet do not probe at the same time.
fn pause_after(failures: u32) -> Duration {
    let [first, longest] = PAUSES;
    let pause = first.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(longest);
    let jitter = RandomState::new().hash_one(failures) % 512;
    pause * (768 + jitter as u32) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_have_jitter() {
        let first: Vec<_> = (0..20).map(|_| pause_after(0)).collect();
        assert!(first.iter().all(|pause| (37..=63).contains(&pause.as_millis())), "{first:?}");
        assert!(first.iter().any(|pause| *pause != first[0]), "{first:?}");
        for failures in [4, 10, u32::MAX] {
            let pause = pause_after(failures).as_millis();
            assert!((300..=500).contains(&pause), "{pause} ms after {failures}");
        }
    }
}
