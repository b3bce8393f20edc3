//! Corrects charges once their calls have ended, blocks, unblocks and resets keys, and states what this process holds
//! of counts of calls in flight: caller of `lua/correct.lua`.

use std::slice;
use std::sync::Arc;

use redis::Value;

use super::script_call::{ScriptCall, unexpected};
use crate::algorithm::{Correction, Outcome, Receipt};
use crate::reply::StoreError;
use crate::store::redis::Redis;
use crate::store::redis::network::failure::{failure_of, is_of_another_node};
use crate::store::redis::scripts::script::{
    self, HOLD, REPLY, decode_acquired, put_correction, take_error,
};
use crate::store::{Charge, CorrectedCharge, Failure, Stated};

impl Redis {
    /// Corrects charges, each once at most: up to [`MAX_CORRECTED`](crate::store::MAX_CORRECTED) of one
    /// [hash slot](Self::slot). Returns a result for each, in their order: the outcome of a peek at the key as it was
    /// before. Of a reset, the outcome is admitted if there was a count; of one of calls in flight, it has the time of
    /// the reset in place of the remaining units.
    pub(crate) async fn correct(
        &self,
        charges: &[CorrectedCharge],
    ) -> Vec<Result<Outcome, Failure>> {
        let error = match self.correct_once(charges).await {
            Ok(results) => return results,
            Err(error) => error,
        };
        if charges.len() == 1 || !is_of_one_key(&error) {
            return vec![Err(error); charges.len()];
        }
        let mut results: Vec<Result<Outcome, Failure>> = Vec::with_capacity(charges.len());
        for corrected in charges {
            // The corrections of a key keep their order.
            let refused = charges.iter().zip(&results).find(|(before, result)| {
                before.charge.key_id == corrected.charge.key_id
                    && matches!(result, Err(Failure::NotExecuted(_)))
            });
            if let Some((_, refused)) = refused {
                results.push(refused.clone());
            } else {
                let result = self.correct_once(slice::from_ref(corrected)).await;
                results.append(&mut result.unwrap_or_else(|error| vec![Err(error)]));
            }
        }
        results
    }

    /// States what this process holds of counts of calls in flight: up to
    /// [`MAX_CORRECTED`](crate::store::MAX_CORRECTED) of one [hash slot](Self::slot). Returns a result for each.
    pub(crate) async fn hold(&self, charges: &[Arc<Charge>]) -> Vec<Result<Stated, StoreError>> {
        if let [charge] = charges {
            // The end of a call: the script of one key creates fewer functions than `lua/correct.lua`.
            let stated = async { self.apply_one(HOLD, charge, self.begin()?).await };
            return vec![stated.await.map(|(_, receipt)| Stated::new(receipt, 0))];
        }
        let stated = |charge| CorrectedCharge::by(Arc::clone(charge), Correction::default());
        let results = self.correct(&charges.iter().map(stated).collect::<Vec<_>>()).await;
        // The receipt is in place of the remaining units and of the wait.
        let receipt_in = |it: Outcome| Receipt { birth: it.remaining, place: it.retry_us };
        let decoded = |result: Result<_, Failure>| Ok(Stated::new(receipt_in(result?), 0));
        results.into_iter().map(decoded).collect()
    }

    /// Corrects charges by one script.
    async fn correct_once(
        &self,
        charges: &[CorrectedCharge],
    ) -> Result<Vec<Result<Outcome, Failure>>, Failure> {
        let by = self.begin().map_err(Failure::NotExecuted)?;
        let entries = charges.iter().map(|corrected| (&*corrected.charge, corrected));
        let call = ScriptCall {
            script: &script::CORRECT,
            keys: charges.iter().map(|corrected| &corrected.charge.count_name[..]).collect(),
            arguments: script::arguments_of_each(entries, put_correction, self.clock.sent()),
            is_atomic: charges.len() == 1,
            node: None,
            by,
        };
        let reply = self.exchange(&call).await?;
        let results = decode_results(&reply, &call.keys);
        results.ok_or_else(|| Failure::Replied(unexpected()))
    }
}

/// Returns whether nothing was executed because of one of several keys: it has migrated to another node, or the user
/// may not use it.
fn is_of_one_key(error: &Failure) -> bool {
    let Failure::NotExecuted(error) = error else { return false };
    error.has_code("TRYAGAIN NOPERM") || is_of_another_node(error)
}

/// Decodes the list that `lua/each.lua` returns; `None` if it is malformed.
fn decode_results(reply: &Value, keys: &[&[u8]]) -> Option<Vec<Result<Outcome, Failure>>> {
    let Value::Array(parts) = reply else { return None };
    let mut parts = parts.iter();
    let Some(Value::BulkString(replies)) = parts.next() else { return None };
    let mut results = Vec::with_capacity(keys.len());
    for (reply, key) in replies.chunks(REPLY).zip(keys) {
        results.push(if reply.iter().all(|byte| *byte == 0) {
            Err(failure_of(take_error(&mut parts, key)?))
        } else {
            Ok(decode_acquired(reply)?.0)
        });
    }
    (results.len() == keys.len()).then_some(results)
}
