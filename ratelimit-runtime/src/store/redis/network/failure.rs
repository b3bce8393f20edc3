//! The [`Failure`] of a command for each error of the client library and of a server.

use redis::{ErrorKind, RedisError};

use crate::key::shown;
use crate::reply::StoreError;
use crate::store::Failure;

/// The codes of errors with which a server executes nothing, and that end without a change of the request. A script
/// that has written is not refused with them, and the first write of each script is one that they refuse.
const NOT_EXECUTED: &str = "ASK BUSY CLUSTERDOWN LOADING MASTERDOWN MISCONF MOVED NOAUTH NOREPLICAS OOM READONLY \
    TRYAGAIN";

/// A part of the error message of a script whose key is on another node. A node checks this before it executes the
/// first command of the script.
const OF_ANOTHER_NODE: &str = "non local key";

/// Returns whether an error shows that a node does not serve a key of a script, so it has executed nothing. Managed
/// servers reply so while a hash slot moves, also for keys that the script declares.
pub(crate) fn is_of_another_node(error: &StoreError) -> bool {
    matches!(error, StoreError::Server { message, .. } if message.contains(OF_ANOTHER_NODE))
}

/// Returns the failure of a command that was sent, or of one of its keys.
pub(crate) fn failure_of(error: StoreError) -> Failure {
    match &error {
        StoreError::Connection { .. } => Failure::NoReply(error),
        _ if error.has_code(NOT_EXECUTED) || is_of_another_node(&error) => {
            Failure::NotExecuted(error)
        }
        StoreError::Server { code, message } if &**code == "NOPERM" && !is_of_script(message) => {
            Failure::NotExecuted(error)
        }
        _ => Failure::Replied(error),
    }
}

/// Returns the store error for an error of the client library.
pub(crate) fn store_error(error: &RedisError) -> StoreError {
    let message = error.detail().unwrap_or(error.category());
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => {
            server_error(error.code().unwrap_or("ERR"), message)
        }
        _ => StoreError::Connection { message: error.to_string().into() },
    }
}

/// Returns whether a script that runs may not run a command: it may have written before. The code is `ERR`.
fn is_of_script(message: &str) -> bool {
    // Of Redis 7; of Redis 7.2 and later, and of Valkey.
    let texts = ["The user executing the script can't", "ACL failure in script"];
    texts.into_iter().any(|text| message.contains(text))
}

/// The codes of errors that servers before Redis 7 wrap in the error of the script.
const WRAPPED: &str = "BADSTATE WRONGTYPE OOM READONLY NOPERM MISCONF NOREPLICAS";

/// Returns the store error for an error reply of the server.
pub(crate) fn server_error(code: &str, message: &str) -> StoreError {
    let is_wrapped = |word: &&str| code == "ERR" && message.contains(word);
    // Checked first, because the message contains the name of the user, which can be one of the other words.
    let code = if is_of_script(message) {
        "NOPERM"
    } else {
        WRAPPED.split(' ').find(is_wrapped).unwrap_or(code)
    };
    StoreError::Server { code: code.into(), message: message.into() }
}

/// Returns the error of a script about its keys. If it has one, the error can be [`StoreError::ForeignKey`]; for
/// several keys, the reply does not name the key.
pub(crate) fn about(error: StoreError, keys: &[&[u8]]) -> StoreError {
    match keys {
        [key] if error.has_code("BADSTATE WRONGTYPE") => {
            StoreError::ForeignKey { key: shown(key).into() }
        }
        _ => error,
    }
}
