//! The failures of commands, and the [`StoreError`] that a caller of the limiter receives for each.

use redis::{ErrorKind, RedisError};

use crate::key::shown;
use crate::reply::StoreError;
use crate::store::CorrectError;

pub(crate) enum Failure {
    /// Nothing was sent: there was no connection, or the breaker is open.
    NotSent(StoreError),
    /// No reply before the deadline.
    NoReply(StoreError),
    /// The connection broke, or the server replied with an error.
    Redis(RedisError),
}

/// The codes of errors with which a server executes nothing, and that end without a change of the request. A script
/// that has written is not refused with them, and the first write of each script is one that they refuse.
const NOT_EXECUTED: [&str; 12] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
];

/// A part of the error message of a script whose key is on another node. A node checks this before it executes the
/// first command of the script.
const OF_ANOTHER_NODE: &str = "non local key";

/// Returns whether an error shows that a node does not serve a key of a script, so it has executed nothing. Managed
/// servers reply so while a hash slot moves, also for keys that the script declares.
pub(crate) fn is_of_another_node(error: &StoreError) -> bool {
    matches!(error, StoreError::Server { message, .. } if message.contains(OF_ANOTHER_NODE))
}

impl Failure {
    /// Returns whether a node has executed nothing of a script, because it does not serve a key of it.
    pub(crate) fn is_of_another_node(&self) -> bool {
        matches!(self, Self::Redis(error) if is_of_another_node(&store_error(error, &[])))
    }

    pub(crate) fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Redis(error) => Some(error.kind()),
            Self::NotSent(_) | Self::NoReply(_) => None,
        }
    }

    pub(crate) fn into_store_error(self, keys: &[&[u8]]) -> StoreError {
        match self {
            Self::NotSent(error) | Self::NoReply(error) => error,
            Self::Redis(error) => store_error(&error, keys),
        }
    }

    pub(crate) fn into_correct_error(self, keys: &[&[u8]]) -> CorrectError {
        match self {
            Self::NotSent(error) => CorrectError::NotExecuted(error),
            Self::NoReply(error) => CorrectError::NoReply(error),
            Self::Redis(error) => correct_error(store_error(&error, keys)),
        }
    }
}

/// Returns the error of a charge that was not corrected, for an error of the connection or the server.
pub(crate) fn correct_error(error: StoreError) -> CorrectError {
    match &error {
        StoreError::Connection { .. } => CorrectError::NoReply(error),
        StoreError::Server { code, message }
            if NOT_EXECUTED.contains(&&**code)
                || &**code == "NOPERM" && !is_of_script(message)
                || is_of_another_node(&error) =>
        {
            CorrectError::NotExecuted(error)
        }
        _ => CorrectError::Replied(error),
    }
}

/// Returns the store error for an error of the client library.
pub(crate) fn store_error(error: &RedisError, keys: &[&[u8]]) -> StoreError {
    let message = error.detail().unwrap_or(error.category());
    match error.kind() {
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

/// Returns whether a script that runs may not run a command: it may have written before.
fn is_of_script(message: &str) -> bool {
    NO_PERMISSION.into_iter().any(|part| message.contains(part))
}

/// Returns the store error for an error reply of the server. If `keys` is one key, the error can be
/// [`StoreError::ForeignKey`]; for a script with several keys, the reply does not name the key.
///
/// Servers before Redis 7 wrap the error of a command in the error of the script, so this searches the
/// message as well as the code.
pub(crate) fn server_error(code: &str, message: &str, keys: &[&[u8]]) -> StoreError {
    let contains = |word: &str| code == word || code == "ERR" && message.contains(word);
    // Checked first, because the message contains the name of the user, which can be one of the other words.
    let code = if is_of_script(message) {
        "NOPERM"
    } else if let [key] = keys
        && (contains("BADSTATE") || contains("WRONGTYPE"))
    {
        return StoreError::ForeignKey { key: shown(key).into() };
    } else {
        let wrapped = ["OOM", "READONLY", "NOPERM", "MISCONF", "NOREPLICAS"];
        wrapped.into_iter().find(|code| contains(code)).unwrap_or(code)
    };
    StoreError::Server { code: code.into(), message: message.into() }
}
