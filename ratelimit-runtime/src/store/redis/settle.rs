//! Corrects charges once their calls have ended. Caller of `lua/settle.lua`.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::script::{self, REPLY, Script};
use super::{ScriptCall, Servers, unexpected};
use crate::algorithm::Outcome;
use crate::reply::StoreError;
use crate::store::SettledCharge;

/// A result for each charge, in their order.
type SettleResults = Vec<Result<Outcome, StoreError>>;

/// The most charges of a script, because Redis does nothing else while it runs a script.
const MAX_CHARGES: usize = 64;

/// The most scripts that are in flight at a time.
const CONCURRENT_SCRIPTS: usize = 16;

impl Servers {
    /// Corrects charges, in one script for each hash slot and [`MAX_CHARGES`]. Returns a result for each charge, in
    /// their order.
    pub(super) async fn settle(self: &Arc<Self>, charges: Vec<SettledCharge>) -> SettleResults {
        let by_slot = self.by_slot(&charges);
        if by_slot.len() == 1 {
            return self.settle_group(&charges).await;
        }
        let mut results = vec![Err(unexpected()); charges.len()];
        let mut scripts = JoinSet::new();
        for indices in by_slot {
            if scripts.len() == CONCURRENT_SCRIPTS {
                keep_next(&mut scripts, &mut results).await;
            }
            let group: Vec<_> = indices.iter().map(|index| charges[*index].clone()).collect();
            let servers = Arc::clone(self);
            scripts.spawn(async move { (indices, servers.settle_group(&group).await) });
        }
        while !scripts.is_empty() {
            keep_next(&mut scripts, &mut results).await;
        }
        results
    }

    /// Returns the indices of charges that share a script.
    fn by_slot(&self, charges: &[SettledCharge]) -> Vec<Vec<usize>> {
        let mut slots: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, settled) in charges.iter().enumerate() {
            slots.entry(self.slot(&settled.charge.count_name)).or_default().push(index);
        }
        let scripts = slots.values().flat_map(|indices| indices.chunks(MAX_CHARGES));
        scripts.map(<[usize]>::to_vec).collect()
    }

    /// Corrects charges of one hash slot.
    async fn settle_group(&self, group: &[SettledCharge]) -> SettleResults {
        let arguments = script::arguments_of_each(
            group.iter().map(|settled| (&settled.charge.terms, settled)),
            |out, settled| script::put_settlement(out, settled.settlement, settled.opening),
            self.clock.sent(),
        );
        let call = ScriptCall {
            script: Script::settle(),
            keys: group.iter().map(|settled| &settled.charge.count_name[..]).collect(),
            arguments,
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
                    let one = std::slice::from_ref(settled);
                    results.append(&mut Box::pin(self.settle_group(one)).await);
                }
                results
            }
            Err(error) => vec![Err(error); group.len()],
        }
    }
}

/// Keeps the results of the next script that ends.
async fn keep_next(
    scripts: &mut JoinSet<(Vec<usize>, SettleResults)>,
    results: &mut [Result<Outcome, StoreError>],
) {
    if let Some(Ok((indices, ended))) = scripts.join_next().await {
        for (index, result) in indices.into_iter().zip(ended) {
            results[index] = result;
        }
    }
}

/// Decodes the reply; `None` if it is malformed.
fn decode(reply: &Value, group: &[SettledCharge]) -> Option<SettleResults> {
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
