//! Why a command has no reply, and what that means to a caller of the limiter.

use std::time::Duration;

use redis::{ErrorKind, RedisError};

use crate::reply::StoreError;

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

    pub(super) fn into_store_error(self, deadline: Duration, keys: &[&[u8]]) -> StoreError {
        match self {
            Self::Timeout => StoreError::Timeout { deadline },
            Self::Open(error) => error,
            Self::Redis(error) => store_error(&error, keys),
        }
    }
}

/// What an error of the client library means here.
pub(super) fn store_error(error: &RedisError, keys: &[&[u8]]) -> StoreError {
    let message = error.detail().unwrap_or(error.category());
    match error.kind() {
        ErrorKind::AuthenticationFailed => server_error("NOAUTH", message, keys),
        ErrorKind::Server(_) | ErrorKind::Extension => {
            server_error(error.code().unwrap_or("ERR"), message, keys)
        }
        _ => StoreError::Connection { message: error.to_string().into() },
    }
}

/// What a server says when a command of a script lacks a right. The code is `ERR` then.
const FORBIDDEN: [&str; 2] = [
    "The user executing the script can't", // Redis 7
    "ACL failure in script",               // Redis 7.2 and later, Valkey
];

/// Returns what an error of the server means here. It names a foreign key if `keys` is one key: the
/// error of a script with several does not say which.
///
/// A server before Redis 7 wraps the error of a command in the error of the script, so its text is
/// searched as well as its code.
pub(super) fn server_error(code: &str, message: &str, keys: &[&[u8]]) -> StoreError {
    let says = |word: &str| code == word || code == "ERR" && message.contains(word);
    // First: the message has the name of the user, which may be any of the other words.
    let code = if FORBIDDEN.into_iter().any(says) {
        "NOPERM"
    } else if let [key] = keys
        && (says("BADSTATE") || says("WRONGTYPE"))
    {
        return StoreError::ForeignKey { key: String::from_utf8_lossy(key).into() };
    } else {
        let wrapped = ["OOM", "READONLY", "NOPERM", "MISCONF", "NOREPLICAS"];
        wrapped.into_iter().find(|code| says(code)).unwrap_or(code)
    };
    StoreError::Server { code: code.into(), message: message.into() }
}
