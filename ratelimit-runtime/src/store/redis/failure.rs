//! Why a command has no reply, and what that means to a caller of the limiter.

use std::time::Duration;

use redis::{ErrorKind, RedisError};

use crate::error::StoreError;

pub(super) enum Failure {
    /// No reply in time.
    Timeout,
    /// Nothing was asked.
    Open(StoreError),
    Redis(RedisError),
}

impl Failure {
    pub(super) fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Redis(error) => Some(error.kind()),
            _ => None,
        }
    }

    pub(super) fn into_store_error(self, deadline: Duration, keys: &[Vec<u8>]) -> StoreError {
        match self {
            Self::Timeout => StoreError::Timeout { deadline },
            Self::Open(error) => error,
            Self::Redis(error) => store_error(&error, keys),
        }
    }
}

/// What an error of the client library means here. A server before Redis 7 wraps the error of a
/// command in a script's, so its text is searched and not its code alone.
pub(super) fn store_error(error: &RedisError, keys: &[Vec<u8>]) -> StoreError {
    let message = error.detail().unwrap_or(error.category());
    let code = error.code().unwrap_or("ERR");
    let says = |code_of: &str| code == code_of || message.contains(code_of);
    if says("BADSTATE") || says("WRONGTYPE") {
        let keys: Vec<_> = keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
        return StoreError::ForeignKey { key: keys.join("` or `").into() };
    }
    // Errors of the commands of a script, which are wrapped as well.
    let wrapped = ["OOM", "READONLY", "NOPERM", "MISCONF", "NOREPLICAS"];
    let inner = wrapped.iter().find(|code| message.contains(**code));
    // In Redis 7 it has lost its code.
    let forbidden = message.contains("The user executing the script can't").then_some(&"NOPERM");
    let inner = inner.or(forbidden);
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            StoreError::Server { code: "NOAUTH".into(), message: message.into() }
        }
        ErrorKind::Server(_) | ErrorKind::Extension => {
            let code = if code == "ERR" { inner.map_or(code, |inner| inner) } else { code };
            StoreError::Server { code: code.into(), message: message.into() }
        }
        _ => StoreError::Connection { message: error.to_string().into() },
    }
}
