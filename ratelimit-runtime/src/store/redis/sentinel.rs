//! The primary of a service, as its Sentinels know it.
//!
//! After a failover the old primary may live on, and take writes that will be lost until it is told
//! that it is a replica. So the Sentinels are asked again and again who the primary is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError};
use tokio::time::timeout;

use super::address::Target;
use super::node::connect_to;

/// How long one Sentinel has to answer before the next is asked.
const ANSWER: Duration = Duration::from_millis(300);

/// How often they are asked whether the primary is still the same.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Host and port.
pub(super) type Primary = (String, u16);

pub(super) struct Sentinels {
    all: Vec<Target>,
    service: Box<str>,
    /// How the primary is logged in to.
    login: Target,
    /// The one that answered last, which is asked first.
    first: AtomicUsize,
}

impl Sentinels {
    pub(super) fn new(all: Vec<Target>, service: Box<str>, login: Target) -> Self {
        Self { all, service, login, first: AtomicUsize::new(0) }
    }

    pub(super) fn name(&self) -> Box<str> {
        self.service.clone()
    }

    /// Connects to the server that is the primary now, and says which that is.
    pub(super) async fn connect(&self) -> Result<(MultiplexedConnection, Primary), RedisError> {
        let primary = self.primary().await?;
        let connection = self.connect_to_primary(&primary).await?;
        Ok((connection, primary))
    }

    /// Asks one Sentinel after the other, until one knows.
    pub(super) async fn primary(&self) -> Result<Primary, RedisError> {
        let mut last: RedisError =
            (ErrorKind::Io, "no Sentinel answered; are these their addresses?").into();
        for index in 0..self.all.len() {
            let index = (self.first.load(Ordering::Relaxed) + index) % self.all.len();
            match timeout(ANSWER, self.ask(&self.all[index])).await {
                Err(_) => {}
                Ok(Err(error)) => last = error,
                Ok(Ok(primary)) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(primary);
                }
            }
        }
        Err(last)
    }

    async fn ask(&self, sentinel: &Target) -> Result<Primary, RedisError> {
        let mut connection = connect_to(sentinel).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.service);
        let address: Option<Primary> = question.query_async(&mut connection).await?;
        address.ok_or_else(|| {
            let service = self.service.to_string();
            let kind = ErrorKind::MasterNameNotFoundBySentinel;
            (kind, "the Sentinels know no service of this name", service).into()
        })
    }

    /// Sentinels may not have noticed yet that it no longer is one, so it is asked itself.
    async fn connect_to_primary(
        &self,
        (host, port): &Primary,
    ) -> Result<MultiplexedConnection, RedisError> {
        let mut connection = connect_to(&self.login.at(host, *port)).await?;
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
