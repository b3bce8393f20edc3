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

/// What an error of the client library means here.
pub(super) fn store_error(error: &RedisError, keys: &[Vec<u8>]) -> StoreError {
    let message = error.detail().unwrap_or(error.category());
    match error.kind() {
        ErrorKind::AuthenticationFailed => server_error("NOAUTH", message, keys),
        ErrorKind::Server(_) | ErrorKind::Extension => {
            server_error(error.code().unwrap_or("ERR"), message, keys)
        }
        _ => StoreError::Connection { message: error.to_string().into() },
    }
}

/// What an error of the server means here. A server before Redis 7 wraps the error of a command in a
/// script's, so its text is searched and not its code alone.
pub(super) fn server_error(code: &str, message: &str, keys: &[Vec<u8>]) -> StoreError {
    let says = |word: &str| code == word || message.contains(word);
    if says("BADSTATE") || says("WRONGTYPE") {
        let keys: Vec<_> = keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
        return StoreError::ForeignKey { key: keys.join("` or `").into() };
    }
    let wrapped = ["OOM", "READONLY", "NOPERM", "MISCONF", "NOREPLICAS"];
    let inner = wrapped.into_iter().find(|code| message.contains(code));
    // In Redis 7 it has lost its code.
    let forbidden = message.contains("The user executing the script can't").then_some("NOPERM");
    let code = match inner.or(forbidden) {
        Some(inner) if code == "ERR" => inner,
        _ => code,
    };
    StoreError::Server { code: code.into(), message: message.into() }
}
