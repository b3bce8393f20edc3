//! One multiplexed connection for each tokio runtime that uses the store, made when it is first
//! needed and anew when it broke.
//!
//! A connection is driven by a task of the runtime that made it, and dies with that runtime. A
//! limiter outlives runtimes (each `#[tokio::test]` has its own), so connections are kept by
//! runtime. Nothing is ever sent again: a broken connection fails the calls that were on it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, Value};
use tokio::runtime::{Handle, Id};

/// Connections of more runtimes than this are not kept; the oldest goes first.
const RUNTIMES: usize = 16;

/// How long an attempt to connect may take. Much longer than a decision: one that is slow to
/// connect times out, the attempt goes on, and a later one finds the connection.
const CONNECT: Duration = Duration::from_secs(5);

pub(super) struct Connection {
    client: Client,
    links: Mutex<Vec<Link>>,
    /// Held while connecting, so that calls that find no link wait for one attempt.
    connecting: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone)]
struct Link {
    runtime: Id,
    /// Tells this link from the one made after it.
    generation: u64,
    connection: MultiplexedConnection,
}

impl Connection {
    pub(super) fn new(client: Client) -> Self {
        Self { client, links: Mutex::default(), connecting: Arc::default() }
    }

    /// Sends one command, once. Must be called in a tokio runtime.
    pub(super) async fn send(self: &Arc<Self>, command: &Cmd) -> Result<Value, RedisError> {
        let runtime = Handle::current().id();
        let mut link = match self.link(runtime) {
            Some(link) => link,
            None => self.connect(runtime).await?,
        };
        let reply = link.connection.send_packed_command(command).await;
        let reply = reply.and_then(Value::extract_error);
        if reply.as_ref().is_err_and(RedisError::is_unrecoverable_error) {
            self.links().retain(|kept| kept.generation != link.generation);
        }
        reply
    }

    async fn connect(self: &Arc<Self>, runtime: Id) -> Result<Link, RedisError> {
        let turn = Arc::clone(&self.connecting).lock_owned().await;
        if let Some(link) = self.link(runtime) {
            return Ok(link);
        }
        // A task of its own, which does not end with the call that began it.
        let this = Arc::clone(self);
        let attempt = tokio::spawn(async move {
            let _turn = turn;
            this.establish(runtime).await
        });
        attempt.await.unwrap_or_else(|_| {
            Err((ErrorKind::Io, "the tokio runtime shut down while connecting").into())
        })
    }

    async fn establish(&self, runtime: Id) -> Result<Link, RedisError> {
        // The deadline of a decision covers its answer; no second one here.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(None);
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        tracing::info!("connected to Redis");

        let mut links = self.links();
        let generation = links.last().map_or(0, |newest| newest.generation + 1);
        let link = Link { runtime, generation, connection };
        links.push(link.clone());
        if links.len() > RUNTIMES {
            links.remove(0);
        }
        Ok(link)
    }

    fn link(&self, runtime: Id) -> Option<Link> {
        self.links().iter().find(|link| link.runtime == runtime).cloned()
    }

    fn links(&self) -> std::sync::MutexGuard<'_, Vec<Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
