//! The failures of commands, and the [`StoreError`] that a caller of the limiter receives for each.

use std::time::Duration;

use redis::{ErrorKind, RedisError};

use crate::reply::StoreError;

pub(super) enum Failure {
    /// No reply before the deadline.
    Timeout,
    /// The breaker is open, so nothing was sent.
    BreakerOpen(StoreError),
    /// There was no connection, it broke, or the server replied with an error.
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
            Self::BreakerOpen(error) => error,
            Self::Redis(error) => store_error(&error, keys),
        }
    }
}

/// Returns the store error for an error of the client library.
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

/// Parts of the error messages of servers if the user may not run a command of the script. The code is `ERR`.
const NO_PERMISSION: [&str; 2] = [
    "The user executing the script can't", // Redis 7
    "ACL failure in script",               // Redis 7.2 and later, Valkey
];

/// Returns the store error for an error reply of the server. If `keys` is one key, the error can be
/// [`StoreError::ForeignKey`]; for a script with several keys, the reply does not name the key.
///
/// Servers before Redis 7 wrap the error of a command in the error of the script, so this searches the
/// message as well as the code.
pub(super) fn server_error(code: &str, message: &str, keys: &[&[u8]]) -> StoreError {
    let contains = |word: &str| code == word || code == "ERR" && message.contains(word);
    // Checked first, because the message contains the name of the user, which can be one of the other words.
    let code = if NO_PERMISSION.into_iter().any(contains) {
        "NOPERM"
    } else if let [key] = keys
        && (contains("BADSTATE") || contains("WRONGTYPE"))
    {
        return StoreError::ForeignKey { key: String::from_utf8_lossy(key).into() };
    } else {
        let wrapped = ["OOM", "READONLY", "NOPERM", "MISCONF", "NOREPLICAS"];
        wrapped.into_iter().find(|code| contains(code)).unwrap_or(code)
    };
    StoreError::Server { code: code.into(), message: message.into() }
}
