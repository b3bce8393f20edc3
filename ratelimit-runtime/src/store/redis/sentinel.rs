//! The primary of a service, as its Sentinels know it.
//!
//! After a failover the old primary may live on, and take writes that will be lost until it is told
//! that it is a replica. So the Sentinels are asked again and again who the primary is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{ErrorKind, RedisError};
use tokio::time::timeout;

use super::address::Target;
use super::connect::connect_to;
use super::link::Link;
use super::primary::PrimaryAddress;

/// How long one Sentinel has to answer before the next is asked.
const ANSWER: Duration = Duration::from_millis(300);

/// How often they are asked whether the primary is still the same.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(250);

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

    /// Connects to the server that is the primary now.
    pub(super) async fn connect(&self) -> Result<Link, RedisError> {
        let primary = self.primary().await?;
        let (host, port) = &primary;
        let link = connect_to(&self.login.at(host, *port), Some(primary.clone())).await?;
        // Sentinels may not have noticed yet that it no longer is the primary, so it is asked itself.
        let role = link.send(&redis::cmd("ROLE"), false).await?;
        let is_primary = match &role {
            redis::Value::Array(parts) => parts.first().is_some_and(
                |role| matches!(role, redis::Value::BulkString(role) if role == b"master"),
            ),
            _ => false,
        };
        if is_primary {
            return Ok(link);
        }
        Err((ErrorKind::Io, "the Sentinels name a server that is not the primary").into())
    }

    /// Asks one Sentinel after the other, until one knows.
    pub(super) async fn primary(&self) -> Result<PrimaryAddress, RedisError> {
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

    async fn ask(&self, sentinel: &Target) -> Result<PrimaryAddress, RedisError> {
        let link = connect_to(sentinel, None).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.service);
        let reply = link.send(&command, false).await?;
        let address: Option<PrimaryAddress> = redis::from_redis_value(reply)?;
        address.ok_or_else(|| {
            let service = self.service.to_string();
            let kind = ErrorKind::MasterNameNotFoundBySentinel;
            (kind, "the Sentinels know no service of this name", service).into()
        })
    }
}
