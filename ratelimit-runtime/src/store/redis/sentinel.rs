//! The primary of a service, as its Sentinels know it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError};
use tokio::time::timeout;

use super::address::Target;
use super::node::connect_to;

/// How long one Sentinel has to answer before the next is asked.
const ANSWER: Duration = Duration::from_millis(300);

pub(super) struct Sentinels {
    all: Vec<Target>,
    service: Box<str>,
    /// How the primary is logged in to.
    primary: Target,
    /// The one that answered last, which is asked first.
    first: AtomicUsize,
}

impl Sentinels {
    pub(super) fn new(all: Vec<Target>, service: Box<str>, primary: Target) -> Self {
        Self { all, service, primary, first: AtomicUsize::new(0) }
    }

    pub(super) fn name(&self) -> Box<str> {
        self.service.clone()
    }

    /// Connects to the server that is the primary now.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut last: RedisError =
            (ErrorKind::Io, "no Sentinel answered; are these their addresses?").into();
        for index in 0..self.all.len() {
            let index = (self.first.load(Ordering::Relaxed) + index) % self.all.len();
            match timeout(ANSWER, self.ask(&self.all[index])).await {
                Err(_) => {}
                Ok(Err(error)) => last = error,
                Ok(Ok((host, port))) => {
                    self.first.store(index, Ordering::Relaxed);
                    return self.connect_to_primary(&host, port).await;
                }
            }
        }
        Err(last)
    }

    async fn ask(&self, sentinel: &Target) -> Result<(String, u16), RedisError> {
        let mut connection = connect_to(sentinel).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.service);
        let address: Option<(String, u16)> = question.query_async(&mut connection).await?;
        address.ok_or_else(|| {
            let service = self.service.to_string();
            let kind = ErrorKind::MasterNameNotFoundBySentinel;
            (kind, "the Sentinels know no service of this name", service).into()
        })
    }

    /// Sentinels may not have noticed yet that it no longer is one, so it is asked itself.
    async fn connect_to_primary(
        &self,
        host: &str,
        port: u16,
    ) -> Result<MultiplexedConnection, RedisError> {
        let mut connection = connect_to(&self.primary.at(host, port)).await?;
        let role: redis::Value = redis::cmd("ROLE").query_async(&mut connection).await?;
        let is_primary = match &role {
            redis::Value::Array(parts) => parts.first().is_some_and(
                |role| matches!(role, redis::Value::BulkString(role) if role == b"master"),
            ),
            _ => false,
        };
        if is_primary {
            return Ok(connection);
        }
        Err((ErrorKind::Io, "the Sentinels name a server that is not the primary").into())
    }
}
