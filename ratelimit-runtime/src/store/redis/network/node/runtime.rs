//! The state of a node for each tokio runtime: the connection and the circuit breaker.

use std::sync::Arc;

use redis::RedisError;
use tokio::sync::{oneshot, watch};

use super::lock;
use crate::store::redis::network::breaker::Breaker;
use crate::store::redis::network::connection::Connection;
use crate::threads::Mutex;

/// An attempt to connect. Receives the result once, and is closed when the attempt has ended.
pub(super) type Attempt = watch::Receiver<Option<Result<Connection, RedisError>>>;

/// The state of a node in one runtime.
pub(super) struct RuntimeState {
    pub(super) connection: Mutex<Option<Connection>>,
    pub(super) breaker: Breaker,
    /// Closed once the runtime has shut down, because a task of the runtime holds the receiver.
    pub(super) shutdown: oneshot::Sender<()>,
    /// The last attempt to connect. A task of this runtime makes it, and all calls without a connection await its
    /// result. A call that is not polled delays no other call.
    pub(super) attempt: Mutex<Option<Attempt>>,
}

impl RuntimeState {
    /// Creates the state for the current runtime.
    pub(super) fn new() -> Arc<Self> {
        let (shutdown, dropped) = oneshot::channel();
        tokio::spawn(async {
            // Completes when this state is dropped. The runtime drops the receiver when it shuts down.
            let _ = dropped.await;
        });
        Arc::new(Self {
            connection: Mutex::default(),
            breaker: Breaker::default(),
            shutdown,
            attempt: Mutex::default(),
        })
    }

    pub(super) fn connection(&self) -> Option<Connection> {
        lock(&self.connection).clone()
    }

    /// Removes a broken connection, unless another one has replaced it.
    pub(super) fn discard(&self, broken: &Connection) {
        let mut connection = lock(&self.connection);
        if connection.as_ref().is_some_and(|connection| connection.is_same(broken)) {
            *connection = None;
        }
    }
}
