//! The limiters: three that are written by hand again and again, and this library.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use anyhow::bail;
use ratelimit_runtime::{Limit, RateLimiter, Rejection};
use redis::Script;

use super::{PERIOD, THRESHOLD};
use crate::Context;
use crate::connection::Connection;

const LIMIT: Limit = Limit::sliding("limit", THRESHOLD, PERIOD);

/// A sliding log as many articles have it, with the clock of the server.
const TEXTBOOK: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then
    return 0
end
redis.call('ZADD', KEYS[1], now, ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2] / 1000)
return 1";

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    IncrExpire,
    ThreeCommands,
    Textbook,
    EachCall,
    Library,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] =
        [Self::IncrExpire, Self::ThreeCommands, Self::Textbook, Self::EachCall, Self::Library];

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::EachCall | Self::Library)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::IncrExpire => "INCR, EXPIRE",
            Self::ThreeCommands => "a sorted set, three commands",
            Self::Textbook => "the textbook script",
            Self::EachCall => "this library, each call to Redis",
            Self::Library => "this library",
        }
    }
}

/// A limiter, for all clients.
#[derive(Clone)]
pub(crate) struct Limiter {
    kind: Kind,
    connection: Connection,
    library: RateLimiter,
    textbook: Arc<Script>,
    prefix: Arc<str>,
    /// The number of calls, which tells members of a sorted set apart.
    calls: Arc<AtomicU64>,
}

impl Limiter {
    pub(crate) fn new(
        kind: Kind,
        context: &Context,
        connection: Connection,
        prefix: &str,
    ) -> anyhow::Result<Self> {
        let prefix = format!("{prefix}-{}", kind as u8);
        let library = context
            .builder()?
            .key_prefix(&*prefix)
            .cache_rejections(matches!(kind, Kind::Library))
            .build()?;
        let (textbook, calls) = (Arc::new(Script::new(TEXTBOOK)), Arc::default());
        Ok(Self { kind, connection, library, textbook, prefix: prefix.into(), calls })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Decides one call. Each round has a key of its own.
    pub(crate) async fn admits(&self, round: u32) -> anyhow::Result<bool> {
        match self.kind {
            Kind::IncrExpire => self.incr_expire(round).await,
            Kind::ThreeCommands => self.three_commands(round).await,
            Kind::Textbook => self.textbook(round).await,
            Kind::EachCall | Kind::Library => match self.library.check(&LIMIT, round, 1).await {
                Ok(_) => Ok(true),
                Err(Rejection::Limited { .. }) => Ok(false),
                Err(other) => bail!(other),
            },
        }
    }

    async fn incr_expire(&self, round: u32) -> anyhow::Result<bool> {
        let (mut connection, key) = (self.connection.clone(), self.key(round));
        let calls: u64 = redis::cmd("INCR").arg(&key).query_async(&mut connection).await?;
        if calls == 1 {
            let mut expire = redis::cmd("EXPIRE");
            expire.arg(&key).arg(PERIOD.as_secs()).exec_async(&mut connection).await?;
        }
        Ok(calls <= THRESHOLD)
    }

    async fn three_commands(&self, round: u32) -> anyhow::Result<bool> {
        let (mut connection, key) = (self.connection.clone(), self.key(round));
        let now = SystemTime::UNIX_EPOCH.elapsed()?.as_micros() as u64;
        let left = now - PERIOD.as_micros() as u64;
        let mut remove = redis::cmd("ZREMRANGEBYSCORE");
        remove.arg(&key).arg("-inf").arg(left).exec_async(&mut connection).await?;
        let calls: u64 = redis::cmd("ZCARD").arg(&key).query_async(&mut connection).await?;
        if calls >= THRESHOLD {
            return Ok(false);
        }
        redis::cmd("ZADD")
            .arg(&key)
            .arg(now)
            .arg(self.member())
            .exec_async(&mut connection)
            .await?;
        Ok(true)
    }

    async fn textbook(&self, round: u32) -> anyhow::Result<bool> {
        let mut call = self.textbook.key(self.key(round));
        call.arg(THRESHOLD).arg(PERIOD.as_micros() as u64).arg(self.member());
        Ok(call.invoke_async(&mut self.connection.clone()).await?)
    }

    /// Removes the key of a round. A key that was removed or has expired is no error.
    pub(crate) async fn remove(&self, round: u32) -> anyhow::Result<()> {
        let mut connection = self.connection.clone();
        redis::cmd("DEL").arg(self.key(round)).exec_async(&mut connection).await?;
        self.library.reset(&LIMIT, round).await?;
        Ok(())
    }

    fn key(&self, round: u32) -> String {
        format!("{}:{round}", self.prefix)
    }

    fn member(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }
}
