//! One multiplexed connection for each tokio runtime that uses the store, made when it is first
//! needed and anew when it broke.
//!
//! A connection is driven by a task of the runtime that made it, and dies with that runtime. A
//! limiter outlives runtimes (each `#[tokio::test]` has its own), so connections are kept by
//! runtime. Nothing is ever sent again: a broken connection fails the calls that were on it.

use std::sync::{Mutex, PoisonError};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, Value};
use tokio::runtime::{Handle, Id};

/// Connections of more runtimes than this are not kept; the oldest goes first.
const RUNTIMES: usize = 16;

pub(super) struct Connection {
    client: Client,
    links: Mutex<Vec<Link>>,
    /// Held while connecting, so that calls that find no link wait for one attempt.
    connecting: tokio::sync::Mutex<()>,
}

struct Link {
    runtime: Id,
    /// Tells this link from the one made after it.
    generation: u64,
    connection: MultiplexedConnection,
}

impl Connection {
    pub(super) fn new(client: Client) -> Self {
        Self { client, links: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// Sends one command, once.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        let runtime = Handle::current().id();
        let (mut connection, generation) = match self.link(runtime) {
            Some(link) => link,
            None => self.connect(runtime).await?,
        };
        let reply = connection.send_packed_command(command).await.and_then(Value::extract_error);
        if reply.as_ref().is_err_and(RedisError::is_unrecoverable_error) {
            self.links().retain(|link| (link.runtime, link.generation) != (runtime, generation));
        }
        reply
    }

    async fn connect(&self, runtime: Id) -> Result<(MultiplexedConnection, u64), RedisError> {
        let _turn = self.connecting.lock().await;
        if let Some(link) = self.link(runtime) {
            return Ok(link);
        }
        // The deadline of the decision covers connecting and the answer; no second one here.
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut links = self.links();
        let generation = links.iter().map(|link| link.generation).max().unwrap_or(0) + 1;
        links.push(Link { runtime, generation, connection: connection.clone() });
        if links.len() > RUNTIMES {
            links.remove(0);
        }
        drop(links);
        tracing::info!("connected to Redis");
        Ok((connection, generation))
    }

    fn link(&self, runtime: Id) -> Option<(MultiplexedConnection, u64)> {
        let links = self.links();
        let link = links.iter().find(|link| link.runtime == runtime)?;
        Some((link.connection.clone(), link.generation))
    }

    fn links(&self) -> std::sync::MutexGuard<'_, Vec<Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
