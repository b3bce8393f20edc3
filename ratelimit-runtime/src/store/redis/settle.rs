//! Corrects charges once their calls have ended. Caller of `lua/settle.lua`.

use std::collections::BTreeMap;

use redis::Value;
use tokio::time::Instant;

use super::script::{self, REPLY, Script};
use super::{ScriptCall, Servers, unexpected};
use crate::algorithm::Outcome;
use crate::limit::Terms;
use crate::reply::StoreError;
use crate::store::SettledCharge;

/// The most charges of a script, because Redis does nothing else while it runs a script.
const MAX_CHARGES: usize = 64;

impl Servers {
    /// Corrects charges, in one script for each hash slot and [`MAX_CHARGES`]. Returns a result for each charge, in
    /// their order.
    pub(super) async fn settle(
        &self,
        charges: Vec<SettledCharge>,
    ) -> Vec<Result<Outcome, StoreError>> {
        let mut slots: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, settled) in charges.iter().enumerate() {
            slots.entry(self.slot(&settled.charge.count_name)).or_default().push(index);
        }
        let mut results = vec![Err(unexpected()); charges.len()];
        for indices in slots.values().flat_map(|indices| indices.chunks(MAX_CHARGES)) {
            let group: Vec<&SettledCharge> = indices.iter().map(|index| &charges[*index]).collect();
            for (index, result) in indices.iter().zip(self.settle_group(&group).await) {
                results[*index] = result;
            }
        }
        results
    }

    /// Corrects charges of one hash slot.
    async fn settle_group(&self, group: &[&SettledCharge]) -> Vec<Result<Outcome, StoreError>> {
        let mut limits: Vec<&Terms> = Vec::new();
        let mut packed = Vec::with_capacity(30 * group.len());
        for SettledCharge { charge, settlement, closure } in group {
            let known = limits.iter().position(|terms| **terms == charge.terms);
            let limit = known.unwrap_or_else(|| {
                limits.push(&charge.terms);
                limits.len() - 1
            });
            script::put_settlement(&mut packed, limit, *settlement, *closure);
        }
        let call = ScriptCall {
            script: Script::settle(),
            keys: group.iter().map(|settled| &settled.charge.count_name[..]).collect(),
            arguments: script::arguments_of_batch(packed, &limits, self.clock.sent()),
            is_atomic: group.len() == 1,
        };
        match self.run_for(&call, Instant::now() + self.deadline).await {
            Ok(reply) => {
                let results = decode(&reply, group);
                let results = results.unwrap_or_else(|| vec![Err(unexpected()); group.len()]);
                for error in results.iter().filter_map(|result| result.as_ref().err()) {
                    self.back_off_from_replica(error);
                }
                results
            }
            // Some keys of the hash slot have migrated to another node. Nothing was executed.
            Err(StoreError::Server { code, .. }) if &*code == "TRYAGAIN" && group.len() > 1 => {
                let mut results = Vec::with_capacity(group.len());
                for settled in group {
                    results.append(&mut Box::pin(self.settle_group(&[settled])).await);
                }
                results
            }
            Err(error) => vec![Err(error); group.len()],
        }
    }
}

/// Decodes the reply; `None` if it is malformed.
fn decode(reply: &Value, group: &[&SettledCharge]) -> Option<Vec<Result<Outcome, StoreError>>> {
    let Value::Array(parts) = reply else { return None };
    let mut parts = parts.iter();
    let Some(Value::BulkString(replies)) = parts.next() else { return None };
    let mut results = Vec::with_capacity(group.len());
    for (reply, settled) in replies.chunks(REPLY).zip(group) {
        results.push(if reply.iter().all(|byte| *byte == 0) {
            let Some(Value::BulkString(message)) = parts.next() else { return None };
            Err(script::error_of(&String::from_utf8_lossy(message), &settled.charge.count_name))
        } else {
            Ok(script::decode_reply(reply)?)
        });
    }
    (results.len() == group.len()).then_some(results)
}
