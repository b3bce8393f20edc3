//! One server that is asked: a multiplexed connection for each tokio runtime that uses it, made when
//! it is first needed and anew when it broke.
//!
//! A connection is driven by a task of the runtime that made it, and dies with that runtime. A
//! limiter outlives runtimes (each `#[tokio::test]` has its own), so connections are kept by
//! runtime, and so is the circuit breaker: a runtime that stands still holds up no other. Nothing is
//! ever sent again: a broken connection fails the calls that were on it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::address::Target;
use super::breaker::{Breaker, pauses};
use super::failure::{Failure, store_error};
use super::sentinel::{ASK_AGAIN, Primary, Sentinels};
use crate::error::StoreError;
use crate::report;

/// How long an attempt to connect may take. Longer than a decision: one that is slow to connect
/// runs into its deadline, the attempt goes on, and a later one finds the connection.
const CONNECT: Duration = Duration::from_secs(1);

/// How a server is found.
pub(super) enum Find {
    At(Target),
    Primary(Sentinels),
}

/// A server, or the one that is the primary at the time.
pub(super) struct Node {
    find: Find,
    /// Where it is, for people.
    name: Box<str>,
    /// How long a probe may take.
    deadline: Duration,
    sockets: Mutex<HashMap<Id, Arc<Socket>>>,
    /// It has been looked at whether keys may be evicted.
    inspected: AtomicBool,
}

/// The link of one runtime, if there is one.
struct Socket {
    link: Mutex<Option<Link>>,
    breaker: Breaker,
    /// The other end is held by a task, and closes with the runtime.
    runtime: oneshot::Sender<()>,
    /// Held while connecting, so that calls that find no link wait for one attempt. It is a task of
    /// the same runtime that holds it: a runtime that stands still keeps nobody else.
    connecting: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone)]
struct Link {
    connection: MultiplexedConnection,
    /// Tells this link from the next.
    identity: Arc<()>,
}

/// Why there is no reply.
enum Lost {
    /// There was no connection, so nothing was sent.
    Unsent(RedisError),
    Sent(RedisError),
}

impl Node {
    pub(super) fn new(find: Find, deadline: Duration) -> Arc<Self> {
        let name = match &find {
            Find::At(target) => target.name(),
            Find::Primary(sentinels) => sentinels.name(),
        };
        let inspected = AtomicBool::new(false);
        Arc::new(Self { find, name, deadline, sockets: Mutex::default(), inspected })
    }

    pub(super) fn host(&self) -> &str {
        match &self.find {
            Find::At(target) => target.host(),
            Find::Primary(_) => "",
        }
    }

    /// Sends one command, once, and waits for the reply until `by`. After `asking`, a node of a
    /// cluster answers for a slot that it is about to take over. Must be called in a tokio runtime.
    pub(super) async fn send(
        self: &Arc<Self>,
        command: &Cmd,
        asking: bool,
        by: Instant,
    ) -> Result<Value, Failure> {
        let socket = self.socket();
        if let Some(open) = socket.breaker.is_open() {
            return Err(Failure::Open(open));
        }
        let before = socket.link();
        let Ok(reply) = timeout_at(by, self.exchange(&socket, command, asking)).await else {
            // What was asked on a link that is gone says nothing about the present one.
            let is_same = match (&before, &socket.link()) {
                (Some(before), Some(now)) => Arc::ptr_eq(&before.identity, &now.identity),
                (before, now) => before.is_none() == now.is_none(),
            };
            if is_same && socket.breaker.strike() {
                self.trip(&socket, &StoreError::Timeout { deadline: self.deadline });
            }
            return Err(Failure::Timeout);
        };
        match reply {
            Ok(value) => {
                socket.breaker.answered();
                Ok(value)
            }
            Err(Lost::Sent(error)) => Err(Failure::Redis(error)),
            Err(Lost::Unsent(error)) => {
                self.trip(&socket, &store_error(&error, &[]));
                Err(Failure::Redis(error))
            }
        }
    }

    async fn exchange(
        self: &Arc<Self>,
        socket: &Arc<Socket>,
        command: &Cmd,
        asking: bool,
    ) -> Result<Value, Lost> {
        let mut link = match socket.link() {
            Some(link) => link,
            None => self.connect(socket).await.map_err(Lost::Unsent)?,
        };
        let reply = if asking {
            let mut both = redis::pipe();
            both.cmd("ASKING").add_command(command.clone());
            let replies = link.connection.send_packed_commands(&both, 1, 1).await;
            replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
        } else {
            link.connection.send_packed_command(command).await
        };
        let reply = reply.and_then(Value::extract_error);
        if reply.as_ref().is_err_and(leads_nowhere) {
            socket.give_up(&link);
        }
        reply.map_err(Lost::Sent)
    }

    /// Asks this server no more until a probe is answered.
    fn trip(self: &Arc<Self>, socket: &Arc<Socket>, cause: &StoreError) {
        *lock(&socket.link) = None;
        if !socket.breaker.opens(cause.clone()) {
            return;
        }
        report::breaker(&self.name, Some(cause));
        let (node, socket) = (Arc::downgrade(self), Arc::downgrade(socket));
        tokio::spawn(async move {
            for pause in pauses() {
                tokio::time::sleep(pause).await;
                match Self::probe(&node, &socket).await {
                    Some(false) => {}
                    Some(true) | None => return,
                }
            }
        });
    }

    /// Whether the server answers; `None` when nobody wants to know any more.
    async fn probe(node: &Weak<Self>, socket: &Weak<Socket>) -> Option<bool> {
        let (node, socket) = (node.upgrade()?, socket.upgrade()?);
        // A script, as decisions are: what answers a `PING` may still not run them.
        let mut script = redis::cmd("EVAL");
        script.arg("return 1").arg(0);
        let limit = Instant::now() + node.deadline.max(CONNECT);
        let reply = timeout_at(limit, node.exchange(&socket, &script, false)).await;
        // Any reply is one: what is wrong with it is told to those who ask.
        let answers = match reply {
            Ok(Ok(_)) => true,
            Ok(Err(Lost::Sent(error))) => !error.is_unrecoverable_error(),
            Ok(Err(Lost::Unsent(_))) | Err(_) => false,
        };
        if answers {
            socket.breaker.closes();
            report::breaker(&node.name, None);
        } else {
            *lock(&socket.link) = None;
        }
        Some(answers)
    }

    fn socket(&self) -> Arc<Socket> {
        let mut sockets = lock(&self.sockets);
        if let Some(socket) = sockets.get(&Handle::current().id()) {
            return Arc::clone(socket);
        }
        // A new runtime is rare: time to look for those that are gone, and their links with them.
        sockets.retain(|_, socket| !socket.runtime.is_closed());
        Arc::clone(sockets.entry(Handle::current().id()).or_insert_with(Socket::new))
    }

    async fn connect(self: &Arc<Self>, socket: &Arc<Socket>) -> Result<Link, RedisError> {
        let turn = Arc::clone(&socket.connecting).lock_owned().await;
        if let Some(link) = socket.link() {
            return Ok(link);
        }
        // A task of its own, which does not end with the call that began it.
        let (node, socket) = (Arc::clone(self), Arc::clone(socket));
        let attempt = tokio::spawn(async move {
            let _turn = turn;
            // All of it: whoever waits for this attempt waits for no other.
            let attempt = timeout(3 * CONNECT, node.find.connect());
            let (connection, primary) = attempt.await.unwrap_or_else(|_| {
                Err((ErrorKind::Io, "connecting to Redis takes too long").into())
            })?;
            let link = Link { connection, identity: Arc::default() };
            *lock(&socket.link) = Some(link.clone());
            if node.inspected.swap(true, Ordering::Relaxed) {
                tracing::debug!(node = %node.name, "connected to Redis");
            } else {
                tracing::info!(node = %node.name, "connected to Redis");
                tokio::spawn(warn_of_eviction(node.name.clone(), link.connection.clone()));
            }
            if let Some(primary) = primary {
                tokio::spawn(watch(
                    Arc::downgrade(&node),
                    Arc::downgrade(&socket),
                    Arc::downgrade(&link.identity),
                    primary,
                ));
            }
            Ok(link)
        });
        attempt.await.unwrap_or_else(|_| {
            Err((ErrorKind::Io, "the tokio runtime shut down while connecting").into())
        })
    }
}

impl Find {
    /// Connects, and says which server is the primary where that may change.
    async fn connect(&self) -> Result<(MultiplexedConnection, Option<Primary>), RedisError> {
        match self {
            Self::At(target) => Ok((connect_to(target).await?, None)),
            Self::Primary(sentinels) => {
                let (connection, primary) = sentinels.connect().await?;
                Ok((connection, Some(primary)))
            }
        }
    }
}

/// Gives up a link when another server becomes the primary. Ends with the link.
async fn watch(node: Weak<Node>, socket: Weak<Socket>, link: Weak<()>, primary: Primary) {
    loop {
        tokio::time::sleep(ASK_AGAIN).await;
        let (Some(node), Some(socket), Some(identity)) =
            (node.upgrade(), socket.upgrade(), link.upgrade())
        else {
            return;
        };
        let Find::Primary(sentinels) = &node.find else { return };
        if sentinels.primary().await.is_ok_and(|now| now != primary) {
            tracing::info!(node = %node.name, "another server is the primary now");
            let mut now = lock(&socket.link);
            if now.as_ref().is_some_and(|now| Arc::ptr_eq(&now.identity, &identity)) {
                *now = None;
            }
            return;
        }
    }
}

/// Says so when the server may evict keys of the limiter, which then start anew.
async fn warn_of_eviction(node: Box<str>, mut connection: MultiplexedConnection) {
    let mut question = redis::cmd("INFO");
    let info = timeout(CONNECT, question.arg("memory").query_async(&mut connection)).await;
    // A user who may not ask is not told.
    let Ok(Ok::<String, _>(info)) = info else { return };
    let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let (most, policy) = (value("maxmemory:"), value("maxmemory_policy:"));
    if let (Some(most), Some(policy)) = (most, policy)
        && most != "0"
        && policy != "noeviction"
    {
        report::may_evict(&node, policy);
    }
}

pub(super) async fn connect_to(target: &Target) -> Result<MultiplexedConnection, RedisError> {
    // The deadline of a decision covers its answer; no second one here.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(None);
    target.client()?.get_multiplexed_async_connection_with_config(&config).await
}

impl Socket {
    fn new() -> Arc<Self> {
        let (runtime, end) = oneshot::channel();
        tokio::spawn(async {
            // Ends with the runtime, or with this socket.
            let _ = end.await;
        });
        Arc::new(Self {
            link: Mutex::default(),
            breaker: Breaker::default(),
            runtime,
            connecting: Arc::default(),
        })
    }

    fn link(&self) -> Option<Link> {
        lock(&self.link).clone()
    }

    fn give_up(&self, given_up: &Link) {
        let mut link = lock(&self.link);
        if link.as_ref().is_some_and(|link| Arc::ptr_eq(&link.identity, &given_up.identity)) {
            *link = None;
        }
    }
}

/// Whether another connection may fare better: this one broke, or leads to a server that is no
/// longer the primary.
fn leads_nowhere(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || matches!(
            error.kind(),
            ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown)
        )
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
