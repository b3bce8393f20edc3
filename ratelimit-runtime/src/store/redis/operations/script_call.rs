//! Calls of scripts: sends them to their server, and their texts to a server that does not know them. Also makes the
//! births of states: random numbers, by which a charge finds only the state that counts it.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use redis::{Cmd, Value};
use tokio::time::Instant;

use crate::algorithm::{Op, Outcome, Receipt};
use crate::background::seen_process;
use crate::reply::StoreError;
use crate::store::redis::network::cluster::hash_slot;
use crate::store::redis::network::failure::about;
use crate::store::redis::network::node::Node;
use crate::store::redis::scripts::script::{self, Script, ScriptOp, decode_acquired};
use crate::store::redis::{Redis, Topology};
use crate::store::{Charge, Failure};

/// A call of a script.
pub(crate) struct ScriptCall<'a> {
    pub(crate) script: &'static Script,
    pub(crate) keys: Vec<&'a [u8]>,
    pub(crate) arguments: Vec<Vec<u8>>,
    /// Whether the script decides all keys together. Otherwise the caller can send the keys one by one.
    pub(crate) is_atomic: bool,
    /// The node of the keys, if the script does not declare them.
    pub(crate) node: Option<&'a Arc<Node>>,
    pub(crate) by: Instant,
}

impl Redis {
    /// Applies an operation to one charge. Returns the receipt of an admitted take that needs one.
    pub(crate) async fn apply_one(
        &self,
        op: ScriptOp,
        charge: &Charge,
        by: Instant,
    ) -> Result<(Outcome, Receipt), StoreError> {
        let call = ScriptCall {
            script: Script::of(&charge.terms),
            arguments: script::arguments_of_one(op, charge, self.clock.sent()),
            keys: vec![&charge.count_name],
            is_atomic: true,
            node: None,
            by,
        };
        decode_acquired(&self.run(&call).await?).ok_or_else(unexpected)
    }

    /// Runs a script whose reply is one string, or the error of one of its keys.
    pub(crate) async fn run(&self, call: &ScriptCall<'_>) -> Result<Vec<u8>, StoreError> {
        match self.exchange(call).await? {
            Value::BulkString(reply) => Ok(reply),
            reply => Err(error_of_key(&reply, &call.keys).unwrap_or_else(unexpected)),
        }
    }

    /// Runs a script once. If the server does not know the script, sends its text.
    pub(crate) async fn exchange(&self, call: &ScriptCall<'_>) -> Result<Value, Failure> {
        let ScriptCall { script, keys, arguments, is_atomic, node, by } = call;
        let key = keys.first().copied().unwrap_or_default();
        // Boxed, so that a call of a batch keeps no room for a request of its own (`benches/all -- redis`).
        let send = |command: Cmd| {
            Box::pin(async move {
                match node {
                    Some(node) => node.send(&command, false, *by).await,
                    None => self.send(&command, key, *is_atomic, *by).await,
                }
            })
        };
        let mut reply = send(script.call(true, keys, arguments)).await;
        if reply.as_ref().is_err_and(|failure| failure.error().has_code("NOSCRIPT")) {
            // The server has not executed anything, so the next attempt is the only charge.
            reply = send(script.call(false, keys, arguments)).await;
        }
        reply.map_err(|failure| match failure {
            Failure::Replied(error) => Failure::Replied(about(error, keys)),
            failure => failure,
        })
    }

    pub(crate) async fn send(
        &self,
        command: &Cmd,
        key: &[u8],
        is_atomic: bool,
        by: Instant,
    ) -> Result<Value, Failure> {
        match &self.topology {
            Topology::One(node) => node.send(command, false, by).await,
            Topology::Cluster(cluster) => {
                cluster.send(command, hash_slot(key), is_atomic, by).await
            }
        }
    }
}

/// Reads the error of one limit in the reply of `lua/all.lua`.
fn error_of_key(reply: &Value, keys: &[&[u8]]) -> Option<StoreError> {
    let Value::Array(parts) = reply else { return None };
    let [Value::Int(index), message @ ..] = &parts[..] else { return None };
    let key = keys.get(usize::try_from(*index).ok()?.checked_sub(1)?)?;
    script::take_error(&mut message.iter(), key)
}

pub(crate) fn unexpected() -> StoreError {
    StoreError::Server { code: "ERR".into(), message: "the script sent an unexpected reply".into() }
}

/// Returns a take without a wait, or a peek. A take that needs a receipt has a birth: a number of 7 bytes that is not
/// 0, and that no other draw returns, also not in a process that was forked.
pub(crate) fn script_op(op: Op, cost: u64) -> ScriptOp {
    match op {
        Op::Take { receipt: false, .. } => ("take", [cost, 0, 0]),
        // The keys of each `RandomState` differ, except from those of a parent.
        Op::Take { .. } => {
            let birth = RandomState::new().hash_one(seen_process()) >> 8;
            ("take", [cost, birth.max(1), 0])
        }
        Op::Measure => ("peek", [cost, 0, 1]),
        Op::Peek => ("peek", [cost, 0, 0]),
        Op::Correct(_) => unreachable!("it decides no call"),
    }
}
