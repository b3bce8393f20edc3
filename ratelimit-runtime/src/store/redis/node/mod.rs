//! One server that is asked: a link for each tokio runtime that uses it, made when it is first needed and
//! anew when it broke.
//!
//! A connection is driven by a task of the runtime that made it, and dies with that runtime. A
//! limiter outlives runtimes (each `#[tokio::test]` has its own), so links are kept by runtime, and so
//! is the circuit breaker: a runtime that stands still holds up no other. The background thread probes
//! a server that does not answer, and closes the breakers of all runtimes. Nothing is ever sent again: a
//! broken connection fails the calls that were on it.

mod jobs;
mod runtime;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio::runtime::{Handle, Id};
use tokio::time::{Instant, timeout, timeout_at};

use self::jobs::Running;
use self::runtime::Socket;
use super::address::Target;
use super::breaker::STRIKES;
use super::connect::{CONNECT, connect_to};
use super::failure::{Failure, store_error};
use super::link::Link;
use super::sentinel::Sentinels;
use crate::background::Background;
use crate::reply::StoreError;
use crate::report;

/// How a server is found.
pub(super) enum ServerLookup {
    At(Target),
    Primary(Sentinels),
}

/// A server, or the one that is the primary at the time.
pub(super) struct Node {
    find: ServerLookup,
    /// Where it is, for people.
    name: Box<str>,
    /// How long a reply may take.
    deadline: Duration,
    /// Asks the server whether it decides.
    probe: Cmd,
    background: Arc<Background>,
    sockets: Mutex<HashMap<Id, Arc<Socket>>>,
    /// The background thread probes the server.
    probing: AtomicBool,
    /// How many times in a row the server has not answered a probe, or the call after one.
    setbacks: AtomicU32,
    /// The background thread watches which server is the primary.
    watching: AtomicBool,
    /// It has been looked at whether keys may be evicted.
    inspected: AtomicBool,
}

/// Why there is no reply.
enum SendError {
    /// There was no connection, so nothing was sent.
    Unsent(RedisError),
    Sent(RedisError),
}

impl Node {
    pub(super) fn new(
        find: ServerLookup,
        deadline: Duration,
        probe: Cmd,
        background: &Arc<Background>,
    ) -> Arc<Self> {
        let name = match &find {
            ServerLookup::At(target) => target.name(),
            ServerLookup::Primary(sentinels) => sentinels.name(),
        };
        Arc::new(Self {
            find,
            name,
            deadline,
            probe,
            background: Arc::clone(background),
            sockets: Mutex::default(),
            probing: AtomicBool::new(false),
            setbacks: AtomicU32::new(0),
            watching: AtomicBool::new(false),
            inspected: AtomicBool::new(false),
        })
    }

    pub(super) fn host(&self) -> &str {
        match &self.find {
            ServerLookup::At(target) => target.host(),
            ServerLookup::Primary(_) => "",
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
        let timed_out = || StoreError::Timeout { deadline: self.deadline };
        // Callers may have less patience than the deadline, so that none of them ever runs into it.
        if before.as_ref().is_some_and(|link| link.is_silent(STRIKES * self.deadline)) {
            self.trip(&socket, &timed_out());
            return Err(socket.breaker.is_open().map_or(Failure::Timeout, Failure::Open));
        }
        let Ok(reply) = timeout_at(by, self.exchange(&socket, command, asking)).await else {
            // What was asked on a link that is gone says nothing about the present one.
            let is_same = match (&before, &socket.link()) {
                (Some(before), Some(now)) => before.is(now),
                (before, now) => before.is_none() == now.is_none(),
            };
            if is_same && socket.breaker.strike() {
                self.trip(&socket, &timed_out());
            }
            return Err(Failure::Timeout);
        };
        match reply {
            Ok(value) => {
                if socket.breaker.answered() {
                    self.setbacks.store(0, Ordering::Relaxed);
                }
                Ok(value)
            }
            Err(SendError::Sent(error)) => {
                // An error is a reply as well.
                if !error.is_unrecoverable_error() && socket.breaker.answered() {
                    self.setbacks.store(0, Ordering::Relaxed);
                }
                self.look_for_replica(&store_error(&error, &[]));
                Err(Failure::Redis(error))
            }
            Err(SendError::Unsent(error)) => {
                // Another call may have connected meanwhile.
                if socket.link().is_none() {
                    self.trip(&socket, &store_error(&error, &[]));
                }
                Err(Failure::Redis(error))
            }
        }
    }

    /// Whether the server, which is not a node of a cluster, would decide now.
    pub(super) async fn ping(self: &Arc<Self>, by: Instant) -> Result<(), Failure> {
        self.send(&self.probe, false, by).await.map(drop)
    }

    async fn exchange(
        self: &Arc<Self>,
        socket: &Arc<Socket>,
        command: &Cmd,
        asking: bool,
    ) -> Result<Value, SendError> {
        let link = self.link(socket).await.map_err(SendError::Unsent)?;
        let reply = link.send(command, asking).await;
        if reply.as_ref().is_err_and(RedisError::is_unrecoverable_error) {
            socket.give_up(&link);
        }
        reply.map_err(SendError::Sent)
    }

    /// The link of this runtime; a new one where there is none, or the server has closed it.
    async fn link(self: &Arc<Self>, socket: &Arc<Socket>) -> Result<Link, RedisError> {
        if let Some(link) = socket.link() {
            if link.is_open().await {
                return Ok(link);
            }
            socket.give_up(&link);
        }
        self.connect(socket).await
    }

    /// Backs off where an error says that this is a replica. Another connection may lead to the primary,
    /// for the primary of an address may change.
    pub(super) fn look_for_replica(self: &Arc<Self>, error: &StoreError) {
        if is_replica(error) {
            self.trip(&self.socket(), error);
        }
    }

    /// Asks this server no more in the runtime of `socket`, until a probe is answered.
    fn trip(self: &Arc<Self>, socket: &Socket, cause: &StoreError) {
        *lock(&socket.link) = None;
        if !socket.breaker.opens(cause.clone()) {
            return;
        }
        report::breaker(&self.name, Some(cause));
        if !self.probing.swap(true, Ordering::SeqCst) {
            let running = Running::new(self, |node| &node.probing);
            self.background.spawn(Self::probe_until_closed(Arc::downgrade(self), running));
        }
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
            let link = attempt.await.unwrap_or_else(|_| {
                Err((ErrorKind::Io, "connecting to Redis takes too long").into())
            })?;
            *lock(&socket.link) = Some(link.clone());
            if node.inspected.swap(true, Ordering::Relaxed) {
                tracing::debug!(node = %node.name, "connected to Redis");
            } else {
                tracing::info!(node = %node.name, "connected to Redis");
                tokio::spawn(warn_of_eviction(node.name.clone(), link.clone()));
            }
            if link.primary().is_some() && !node.watching.swap(true, Ordering::SeqCst) {
                let running = Running::new(&node, |node| &node.watching);
                node.background.spawn(Self::watch(Arc::downgrade(&node), running));
            }
            Ok(link)
        });
        attempt.await.unwrap_or_else(|_| {
            Err((ErrorKind::Io, "the tokio runtime shut down while connecting").into())
        })
    }
}

impl ServerLookup {
    async fn connect(&self) -> Result<Link, RedisError> {
        match self {
            Self::At(target) => connect_to(target, None).await,
            Self::Primary(sentinels) => sentinels.connect().await,
        }
    }
}

/// Says so when the server may evict keys of the limiter, which then start anew.
async fn warn_of_eviction(node: Box<str>, link: Link) {
    let mut command = redis::cmd("INFO");
    let info = timeout(CONNECT, link.send(command.arg("memory"), false)).await;
    // A user who may not ask is not told.
    let Ok(Ok(info)) = info else { return };
    let Ok(info) = redis::from_redis_value::<String>(info) else { return };
    let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let (most, policy) = (value("maxmemory:"), value("maxmemory_policy:"));
    if let (Some(most), Some(policy)) = (most, policy)
        && most != "0"
        && policy != "noeviction"
    {
        report::may_evict(&node, policy);
    }
}

/// Whether the server is a replica, which decides nothing.
fn is_replica(error: &StoreError) -> bool {
    matches!(error, StoreError::Server { code, .. } if ["READONLY", "MASTERDOWN"].contains(&&**code))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
