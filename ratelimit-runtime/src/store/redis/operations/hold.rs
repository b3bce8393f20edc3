//! States what this process holds of counts of calls in flight. Caller of `lua/hold.lua`.

use std::sync::Arc;

use redis::Value;
use tokio::time::Instant;

use super::script_call::{ScriptCall, unexpected};
use crate::algorithm::{Outcome, Receipt};
use crate::reply::StoreError;
use crate::store::Charge;
use crate::store::redis::Servers;
use crate::store::redis::scripts::script::{self, RECEIPT, REPLY, ScriptOp, decode_acquired};

type HoldResult = Result<(Outcome, Receipt), StoreError>;

impl Servers {
    /// States counts of one hash slot in one script. Returns a result for each, in their order.
    pub(crate) async fn hold(&self, charges: &[Arc<Charge>], by: Instant) -> Vec<HoldResult> {
        if let [charge] = charges {
            // The end of a call: the script of one key creates fewer functions than `lua/hold.lua`.
            let stated = self.apply_one(ScriptOp::HOLD, charge, by).await;
            return vec![stated];
        }
        let entries = charges.iter().map(|charge| (&**charge, ()));
        let call = ScriptCall {
            script: &script::HOLD,
            keys: charges.iter().map(|charge| &charge.count_name[..]).collect(),
            arguments: script::arguments_of_each(entries, |_, ()| {}, self.clock.sent()),
            is_atomic: false,
        };
        let error = match self.run_for(&call, by).await {
            Ok(reply) => {
                let malformed = || vec![Err(unexpected()); charges.len()];
                return decode(&reply, charges).unwrap_or_else(malformed);
            }
            Err(error) => error,
        };
        // Some keys of the hash slot may have migrated to another node: a statement can be repeated.
        if matches!(error, StoreError::Server { .. }) {
            let mut results = Vec::with_capacity(charges.len());
            for charge in charges {
                let (one, by) = (std::slice::from_ref(charge), Instant::now() + self.deadline);
                results.append(&mut Box::pin(self.hold(one, by)).await);
            }
            return results;
        }
        vec![Err(error); charges.len()]
    }
}

/// Decodes the reply; `None` if it is malformed.
fn decode(reply: &Value, charges: &[Arc<Charge>]) -> Option<Vec<HoldResult>> {
    let Value::Array(parts) = reply else { return None };
    let mut parts = parts.iter();
    let Some(Value::BulkString(replies)) = parts.next() else { return None };
    let mut results = Vec::with_capacity(charges.len());
    for (reply, charge) in replies.chunks(REPLY + RECEIPT).zip(charges) {
        results.push(if reply.iter().all(|byte| *byte == 0) {
            let Some(Value::BulkString(message)) = parts.next() else { return None };
            Err(script::error_of(&String::from_utf8_lossy(message), &charge.count_name))
        } else {
            Ok(decode_acquired(reply)?)
        });
    }
    (results.len() == charges.len()).then_some(results)
}
