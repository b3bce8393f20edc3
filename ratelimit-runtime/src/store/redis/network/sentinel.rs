//! Finds the primary of a service through its Sentinels.
//!
//! After a failover, the old primary can still accept writes until it becomes a replica; these writes are
//! lost. So the background thread requests the address of the primary regularly (`node.rs`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{ErrorKind, RedisError};
use tokio::time::timeout;

use super::connection::{Connection, ServerAddress, Target, connect_to};

/// The time in which a Sentinel must connect and reply. After that, the next Sentinel receives the request.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(300);

/// The interval at which a node requests the address of the primary.
pub(crate) const PRIMARY_INTERVAL: Duration = Duration::from_millis(250);

pub(crate) struct Sentinels {
    all: Vec<Target>,
    pub(crate) service: Box<str>,
    /// The user, the password, the database and the certificates of the primary.
    primary_login: Target,
    /// The index of the Sentinel that replied last. It receives the next request first.
    last_replied: AtomicUsize,
}

impl Sentinels {
    pub(crate) fn new(all: Vec<Target>, service: Box<str>, primary_login: Target) -> Self {
        Self { all, service, primary_login, last_replied: AtomicUsize::new(0) }
    }

    /// Connects to the current primary.
    pub(crate) async fn connect(&self) -> Result<Connection, RedisError> {
        let (host, port) = self.primary().await?;
        let connection = connect_to(&self.primary_login.with_address(&host, port)).await?;
        // The server can have become a replica before the Sentinels report it, so this checks its role.
        let role = connection.send(&redis::cmd("ROLE"), false).await?;
        let role: Vec<redis::Value> = redis::from_redis_value(role)?;
        if matches!(role.first(), Some(redis::Value::BulkString(role)) if role == b"master") {
            return Ok(connection);
        }
        Err((ErrorKind::Io, "the Sentinels report a server that is not the primary").into())
    }

    /// Returns the address of the primary. Sends the request to one Sentinel after the other, until one
    /// reports it.
    pub(crate) async fn primary(&self) -> Result<ServerAddress, RedisError> {
        let mut last_error: RedisError = (
            ErrorKind::Io,
            "no Sentinel replied: check that the URL has the addresses of the Sentinels",
        )
            .into();
        for index in 0..self.all.len() {
            let index = (self.last_replied.load(Ordering::Relaxed) + index) % self.all.len();
            match timeout(SENTINEL_TIMEOUT, self.primary_from(&self.all[index])).await {
                Err(_) => {}
                Ok(Err(error)) => last_error = error,
                Ok(Ok(primary)) => {
                    self.last_replied.store(index, Ordering::Relaxed);
                    return Ok(primary);
                }
            }
        }
        Err(last_error)
    }

    async fn primary_from(&self, sentinel: &Target) -> Result<ServerAddress, RedisError> {
        let connection = connect_to(sentinel).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.service);
        let reply = connection.send(&command, false).await?;
        let address: Option<ServerAddress> = redis::from_redis_value(reply)?;
        address.ok_or_else(|| {
            let service = self.service.to_string();
            let kind = ErrorKind::MasterNameNotFoundBySentinel;
            (kind, "the Sentinels do not know the service", service).into()
        })
    }
}
