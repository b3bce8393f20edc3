//! The connection of a node in one tokio runtime.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::RedisError;
use tokio::sync::{oneshot, watch};

use super::lock;
use crate::store::redis::network::connection::Connection;
use crate::threads::Mutex;

/// The time after a failed attempt to connect in which calls receive its error. The next attempt comes after it.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(25);

/// An attempt to connect. Receives the result once; an error has the time of the failure.
pub(super) type Attempt = watch::Receiver<Option<Result<Connection, (RedisError, Instant)>>>;

/// The state of a node in one runtime.
pub(super) struct RuntimeState {
    pub(super) connection: Mutex<Option<Connection>>,
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
        Arc::new(Self { connection: Mutex::default(), shutdown, attempt: Mutex::default() })
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

/// Returns whether a call awaits this attempt, or receives its error, instead of starting another one.
pub(super) fn is_valid(attempt: &Attempt) -> bool {
    match &*attempt.borrow() {
        // An error if the runtime has shut down.
        None => attempt.has_changed().is_ok(),
        Some(Ok(_)) => false,
        Some(Err((_, failed_at))) => failed_at.elapsed() < ATTEMPT_PAUSE,
    }
}
