//! Corrects charges once their calls have ended, blocks, unblocks and resets keys: caller of `lua/correct.lua`. States
//! what this process holds of counts of calls in flight: caller of `lua/hold.lua`.

use std::slice;
use std::sync::Arc;

use redis::Value;
use tokio::time::Instant;

use super::script_call::{ScriptCall, script_op, unexpected};
use crate::algorithm::{Op, Outcome, Receipt};
use crate::reply::{Source, StoreError};
use crate::store::redis::Redis;
use crate::store::redis::network::failure::{correct_error, is_of_another_node};
use crate::store::redis::scripts::script::{
    self, RECEIPT, REPLY, Script, ScriptOp, decode_acquired, put_correction,
};
use crate::store::{Charge, CorrectError, CorrectedCharge, Reply, Stated};

/// A script that does something with each of its keys by itself.
struct KeysScript<E, T> {
    script: &'static Script,
    charge: fn(&E) -> &Charge,
    /// Appends an entry after its limit.
    put: fn(&mut Vec<u8>, &E),
    /// The length of the reply to an entry, in bytes.
    reply: usize,
    decode: fn(&[u8]) -> Option<T>,
}

impl Redis {
    /// Corrects charges, each once at most: up to [`MAX_CORRECTED`](crate::store::MAX_CORRECTED) of one
    /// [hash slot](Self::slot). Returns a result for each, in their order: the outcome of a peek at the key as it was
    /// before. Of a reset, the outcome is admitted if there was a count; of one of calls in flight, it has the time of
    /// the reset in place of the remaining units.
    pub(crate) async fn correct(
        &self,
        charges: &[CorrectedCharge],
    ) -> Vec<Result<Outcome, CorrectError>> {
        let script = KeysScript {
            script: &script::CORRECT,
            charge: |corrected: &CorrectedCharge| &corrected.charge,
            put: put_correction,
            reply: REPLY,
            decode: |reply| Some(decode_acquired(reply)?.0),
        };
        self.run_for_keys(&script, charges).await
    }

    /// States what this process holds of counts of calls in flight: up to
    /// [`MAX_CORRECTED`](crate::store::MAX_CORRECTED) of one [hash slot](Self::slot). Returns a result for each.
    pub(crate) async fn hold(&self, charges: &[Arc<Charge>]) -> Vec<Result<Stated, StoreError>> {
        if let [charge] = charges {
            // The end of a call: the script of one key creates fewer functions than `lua/hold.lua`.
            let stated = async { self.apply_one(ScriptOp::HOLD, charge, self.begin()?).await };
            return vec![stated.await.map(|(_, receipt)| Stated::new(receipt, 0))];
        }
        let script = KeysScript {
            script: &script::HOLD,
            charge: |charge: &Arc<Charge>| charge,
            put: |_, _| {},
            reply: REPLY + RECEIPT,
            decode: |reply| Some(Stated::new(decode_acquired(reply)?.1, 0)),
        };
        let results = self.run_for_keys(&script, charges).await.into_iter();
        results.map(|result| result.map_err(|error| error.error().clone())).collect()
    }

    /// Takes units of one call, and states what the process held before.
    pub(crate) async fn take_slot(
        &self,
        charge: &Charge,
        by: Instant,
    ) -> Result<Reply, StoreError> {
        let op = script_op(Op::ACQUIRE, charge.cost);
        let (outcome, receipt) = self.apply_one(op, charge, by).await?;
        let granted = if outcome.is_allowed() { charge.cost } else { 0 };
        let decided = (outcome, Receipt::default());
        let statements = vec![Some(Stated::new(receipt, granted))];
        Ok(Reply { statements, ..Reply::to_call(Op::ACQUIRE, decided, Source::Redis) })
    }

    /// Runs a script for keys of one hash slot. Returns a result for each, in their order.
    async fn run_for_keys<E, T: Clone>(
        &self,
        script: &KeysScript<E, T>,
        entries: &[E],
    ) -> Vec<Result<T, CorrectError>> {
        let error = match self.run_once(script, entries).await {
            Ok(results) => return results,
            Err(error) => error,
        };
        if entries.len() == 1 || !is_of_one_key(&error) {
            return vec![Err(error); entries.len()];
        }
        let mut results: Vec<Result<T, CorrectError>> = Vec::with_capacity(entries.len());
        for entry in entries {
            let key_id = (script.charge)(entry).key_id;
            // The entries of a key keep their order.
            let refused = entries.iter().zip(&results).find(|(before, result)| {
                (script.charge)(before).key_id == key_id
                    && matches!(result, Err(CorrectError::NotExecuted(_)))
            });
            if let Some((_, refused)) = refused {
                results.push(refused.clone());
            } else {
                let result = self.run_once(script, slice::from_ref(entry)).await;
                results.append(&mut result.unwrap_or_else(|error| vec![Err(error)]));
            }
        }
        results
    }

    async fn run_once<E, T>(
        &self,
        script: &KeysScript<E, T>,
        entries: &[E],
    ) -> Result<Vec<Result<T, CorrectError>>, CorrectError> {
        let by = self.begin().map_err(CorrectError::NotExecuted)?;
        let charges: Vec<_> = entries.iter().map(script.charge).collect();
        let arguments = script::arguments_of_each(
            charges.iter().copied().zip(entries),
            script.put,
            self.clock.sent(),
        );
        let call = ScriptCall {
            script: script.script,
            keys: charges.iter().map(|charge| &charge.count_name[..]).collect(),
            arguments,
            is_atomic: entries.len() == 1,
            node: None,
        };
        let reply = self.exchange(&call, by).await;
        let reply = reply.map_err(|failure| failure.into_correct_error(&call.keys))?;
        let results = script.decode_results(&reply, &call.keys);
        let results = results.ok_or_else(|| CorrectError::Replied(unexpected()))?;
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            self.back_off_if_unfit(error.error());
        }
        Ok(results)
    }
}

/// Returns whether nothing was executed because of one of several keys: it has migrated to another node, or the user
/// may not use it.
fn is_of_one_key(error: &CorrectError) -> bool {
    let CorrectError::NotExecuted(error) = error else { return false };
    matches!(error, StoreError::Server { code, .. } if ["TRYAGAIN", "NOPERM"].contains(&&**code))
        || is_of_another_node(error)
}

impl<E, T> KeysScript<E, T> {
    /// Decodes the list that `lua/each.lua` returns; `None` if it is malformed.
    fn decode_results(
        &self,
        reply: &Value,
        keys: &[&[u8]],
    ) -> Option<Vec<Result<T, CorrectError>>> {
        let Value::Array(parts) = reply else { return None };
        let mut parts = parts.iter();
        let Some(Value::BulkString(replies)) = parts.next() else { return None };
        let mut results = Vec::with_capacity(keys.len());
        for (reply, key) in replies.chunks(self.reply).zip(keys) {
            results.push(if reply.iter().all(|byte| *byte == 0) {
                let Some(Value::BulkString(message)) = parts.next() else { return None };
                Err(correct_error(script::error_of(&String::from_utf8_lossy(message), key)))
            } else {
                Ok((self.decode)(reply)?)
            });
        }
        (results.len() == keys.len()).then_some(results)
    }
}
