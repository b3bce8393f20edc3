//! One multiplexed connection for each tokio runtime that uses the store, made when it is first
//! needed and anew when it broke.
//!
//! A connection is driven by a task of the runtime that made it, and dies with that runtime. A
//! limiter outlives runtimes (each `#[tokio::test]` has its own), so connections are kept by
//! runtime. Nothing is ever sent again: a broken connection fails the calls that were on it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

/// How long an attempt to connect may take. Much longer than a decision: one that is slow to
/// connect times out, the attempt goes on, and a later one finds the connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A link on which that many decisions in a row timed out is given up: it may lead nowhere, and
/// nothing else would say so for many minutes.
const STRIKES: u32 = 3;

pub(super) struct Connection {
    client: Client,
    sockets: Mutex<HashMap<Id, Arc<Socket>>>,
}

/// Where the link of one runtime is, if there is one.
struct Socket {
    link: Mutex<Option<Link>>,
    /// The other end is held by a task, and closes with the runtime.
    runtime: oneshot::Sender<()>,
    /// Held while connecting, so that calls that find no link wait for one attempt. It is a task of
    /// the same runtime that holds it: a runtime that stands still keeps nobody else.
    connecting: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone)]
struct Link {
    connection: MultiplexedConnection,
    /// Decisions that timed out since the last answer. Also tells this link from the next.
    strikes: Arc<AtomicU32>,
}

impl Connection {
    pub(super) fn new(client: Client) -> Self {
        Self { client, sockets: Mutex::default() }
    }

    /// Sends one command, once. Must be called in a tokio runtime.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        let socket = self.socket();
        let mut link = match socket.link() {
            Some(link) => link,
            None => socket.connect(&self.client).await?,
        };
        let reply = link.connection.send_packed_command(command).await;
        let reply = reply.and_then(Value::extract_error);
        link.strikes.store(0, Ordering::Relaxed);
        if reply.as_ref().is_err_and(leads_nowhere) {
            socket.give_up(&link);
        }
        reply
    }

    /// A decision of this runtime timed out.
    pub(super) fn strike(&self) {
        let socket = self.socket();
        if let Some(link) = socket.link()
            && link.strikes.fetch_add(1, Ordering::Relaxed) + 1 >= STRIKES
        {
            socket.give_up(&link);
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
}

impl Socket {
    fn new() -> Arc<Self> {
        let (runtime, end) = oneshot::channel();
        tokio::spawn(async {
            // Ends with the runtime, or with this socket.
            let _ = end.await;
        });
        Arc::new(Self { link: Mutex::default(), runtime, connecting: Arc::default() })
    }

    async fn connect(self: &Arc<Self>, client: &Client) -> Result<Link, RedisError> {
        let turn = Arc::clone(&self.connecting).lock_owned().await;
        if let Some(link) = self.link() {
            return Ok(link);
        }
        // A task of its own, which does not end with the call that began it.
        let (this, client) = (Arc::clone(self), client.clone());
        let attempt = tokio::spawn(async move {
            let _turn = turn;
            this.establish(&client).await
        });
        attempt.await.unwrap_or_else(|_| {
            Err((ErrorKind::Io, "the tokio runtime shut down while connecting").into())
        })
    }

    async fn establish(&self, client: &Client) -> Result<Link, RedisError> {
        // The deadline of a decision covers its answer; no second one here.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        tracing::debug!("connected to Redis");
        let link = Link { connection, strikes: Arc::default() };
        *lock(&self.link) = Some(link.clone());
        Ok(link)
    }

    fn link(&self) -> Option<Link> {
        lock(&self.link).clone()
    }

    fn give_up(&self, given_up: &Link) {
        let mut link = lock(&self.link);
        if link.as_ref().is_some_and(|link| Arc::ptr_eq(&link.strikes, &given_up.strikes)) {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
