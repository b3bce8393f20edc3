//! The Redis store: one decision is one script, in one round trip, on the keys of its limits.

mod connection;
mod script;

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, RedisError, ServerErrorKind, Value};

use self::connection::Connection;
use self::script::{REPLY, Script, decode_reply, named_arguments};
use super::Store;
use crate::algorithm::Op;
use crate::check::Answer;
use crate::clock::Clock;
use crate::decision::{Answered, Decision, Source, Verdict};
use crate::error::{BuildError, StoreError};
use crate::key::{Key, KeyWriter};
use crate::limit::Limit;
use crate::part::Part;

pub(crate) struct Redis {
    connection: Arc<Connection>,
    prefix: Box<str>,
    deadline: Duration,
    clock: Clock,
}

impl Redis {
    /// A store on the server at `url`. Nothing is connected before the first decision.
    pub(crate) fn new(
        url: &str,
        prefix: &str,
        deadline: Duration,
        clock: Clock,
    ) -> Result<Self, BuildError> {
        let client = ::redis::Client::open(url).map_err(|error| BuildError::InvalidUrl {
            message: error.to_string().trim_end_matches(" - InvalidClientConfig").into(),
        })?;
        Ok(Self {
            connection: Arc::new(Connection::new(client)),
            prefix: prefix.into(),
            deadline,
            clock,
        })
    }

    fn key(&self, limit: &Limit, key: &dyn Key) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + limit.name().len() + 48);
        name.extend_from_slice(self.prefix.as_bytes());
        name.push(b':');
        KeyWriter::stream(|chunk| name.extend_from_slice(chunk), |out| out.identity(limit, key));
        name
    }

    /// Runs `work` on the connection, within the deadline.
    fn answer<T, F>(&self, work: impl FnOnce(Arc<Connection>) -> F) -> Answer<T>
    where
        T: 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let deadline = self.deadline;
        let connection = Arc::clone(&self.connection);
        let work = work(Arc::clone(&connection));
        Answer::later(async move {
            // Timers and sockets belong to a runtime, and panic without one.
            if tokio::runtime::Handle::try_current().is_err() {
                return Err(StoreError::NoRuntime);
            }
            tokio::time::timeout(deadline, work).await.unwrap_or_else(|_| {
                connection.strike();
                Err(StoreError::Timeout { deadline })
            })
        })
    }
}

impl Store for Redis {
    fn apply(&self, op: Op, limit: &Limit, key: &dyn Key, cost: u32) -> Answer<Answered> {
        let script = Script::of(limit.algorithm());
        let arguments = [script::arguments(op, limit, self.clock.sent(), cost)];
        let keys = [self.key(limit, key)];
        self.answer(|connection| async move {
            let reply = run(&connection, script, &keys, &arguments).await?;
            let outcome = decode_reply(&reply).ok_or_else(unexpected)?;
            Ok(Answered { outcome, source: Source::Redis })
        })
    }

    fn apply_all(&self, parts: &[Part<'_>]) -> Answer<Verdict> {
        let clock = self.clock.sent();
        let keys: Vec<_> = parts.iter().map(|part| self.key(part.limit, part.key)).collect();
        let arguments = parts.iter().map(|part| named_arguments(part.limit, clock, part.cost));
        let arguments: Vec<_> = arguments.collect();
        let limits: Vec<_> = parts.iter().map(|part| *part.limit).collect();
        self.answer(|connection| async move {
            let reply = run(&connection, Script::all(), &keys, &arguments).await?;
            let replies = limits.iter().zip(reply.chunks(REPLY));
            let verdicts = replies.map(|(limit, reply)| {
                let (outcome, source) = (decode_reply(reply)?, Source::Redis);
                let decision = Decision::new(limit.capacity(), Answered { outcome, source });
                Some(Verdict { name: limit.name(), decision })
            });
            let hardest = verdicts.reduce(|one, other| Some(one?.harder(other?))).flatten();
            hardest.filter(|_| reply.len() == limits.len() * REPLY).ok_or_else(unexpected)
        })
    }

    fn reset(&self, limit: &Limit, key: &dyn Key) -> Answer<()> {
        let key = self.key(limit, key);
        self.answer(|connection| async move {
            let mut unlink = Cmd::new();
            unlink.arg("UNLINK").arg(&key);
            match connection.send(&unlink).await {
                Ok(_) => Ok(()),
                Err(error) => Err(store_error(&error, &[key])),
            }
        })
    }

    fn source(&self) -> Source {
        Source::Redis
    }
}

/// Runs a script once, whether the server knows it or not.
async fn run(
    connection: &Arc<Connection>,
    script: &Script,
    keys: &[Vec<u8>],
    arguments: &[Vec<u8>],
) -> Result<Vec<u8>, StoreError> {
    let mut reply = connection.send(&script.by_hash(keys, arguments)).await;
    let unknown = ::redis::ErrorKind::Server(ServerErrorKind::NoScript);
    if reply.as_ref().is_err_and(|error| error.kind() == unknown) {
        // Certainly not executed, so this is the only charge.
        reply = connection.send(&script.by_text(keys, arguments)).await;
    }
    match reply {
        Ok(Value::BulkString(reply)) => Ok(reply),
        Ok(_) => Err(unexpected()),
        Err(error) => Err(store_error(&error, keys)),
    }
}

fn unexpected() -> StoreError {
    StoreError::Server { code: "ERR".into(), message: "the script gave another reply".into() }
}

/// What an error of the client library means here. A server before Redis 7 wraps the error of a
/// command in a script's, so its text is searched and not its code alone.
fn store_error(error: &RedisError, keys: &[Vec<u8>]) -> StoreError {
    let message = error.detail().unwrap_or(error.category());
    let code = error.code().unwrap_or("ERR");
    if code == "BADSTATE"
        || code == "WRONGTYPE"
        || message.contains("WRONGTYPE")
        || message.contains("BADSTATE")
    {
        let keys: Vec<_> = keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
        return StoreError::ForeignKey { key: keys.join("` or `").into() };
    }
    match error.kind() {
        ::redis::ErrorKind::AuthenticationFailed => {
            StoreError::Server { code: "NOAUTH".into(), message: message.into() }
        }
        ::redis::ErrorKind::Server(_) | ::redis::ErrorKind::Extension => {
            StoreError::Server { code: code.into(), message: message.into() }
        }
        _ => StoreError::Connection { message: error.to_string().into() },
    }
}
