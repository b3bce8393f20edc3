//! Corrects charges once their calls have ended, blocks, unblocks and resets keys: caller of `lua/correct.lua`. States
//! what this process holds of counts of calls in flight: caller of `lua/hold.lua`.

use std::sync::Arc;

use redis::{ErrorKind, ServerErrorKind, Value};
use tokio::time::Instant;

use super::script_call::{ScriptCall, unexpected};
use crate::algorithm::{Op, Outcome, Receipt};
use crate::one_or_many::OneOrMany;
use crate::reply::{Source, StoreError};
use crate::store::redis::Servers;
use crate::store::redis::network::failure::{correct_error, is_of_another_node};
use crate::store::redis::scripts::script::{self, RECEIPT, REPLY, ScriptOp, decode_acquired};
use crate::store::{Charge, CorrectError, CorrectedCharge, Reply, Stated};

/// A result for each charge, in their order.
type CorrectResults = Vec<Result<Outcome, CorrectError>>;

impl Servers {
    /// Corrects charges of one hash slot in one script. Returns a result for each charge, in their order.
    pub(crate) async fn correct(&self, charges: &[CorrectedCharge], by: Instant) -> CorrectResults {
        let arguments = script::arguments_of_each(
            charges.iter().map(|corrected| (&*corrected.charge, corrected)),
            script::put_correction,
            self.clock.sent(),
        );
        let call = ScriptCall {
            script: &script::CORRECT,
            keys: charges.iter().map(|corrected| &corrected.charge.count_name[..]).collect(),
            arguments,
            is_atomic: charges.len() == 1,
        };
        let failure = match self.exchange(&call, by).await {
            Ok(reply) => {
                let malformed = || vec![Err(CorrectError::Replied(unexpected())); charges.len()];
                let results = decode(&reply, charges).unwrap_or_else(malformed);
                for error in results.iter().filter_map(|result| result.as_ref().err()) {
                    self.back_off_if_unfit(error.error());
                }
                return results;
            }
            Err(failure) => failure,
        };
        // Some keys of the hash slot have migrated to another node, or the user may not use one of them. Nothing was
        // executed.
        let of_one_key =
            [ServerErrorKind::TryAgain, ServerErrorKind::NoPerm].map(ErrorKind::Server);
        if failure.kind().is_some_and(|kind| of_one_key.contains(&kind)) && charges.len() > 1 {
            let mut results: CorrectResults = Vec::with_capacity(charges.len());
            for (index, corrected) in charges.iter().enumerate() {
                // The corrections of a key keep their order.
                let mut before = charges[..index].iter().zip(&results);
                let is_refused = |(it, result): &(&CorrectedCharge, &Result<_, _>)| {
                    it.charge.key_id == corrected.charge.key_id
                        && matches!(result, Err(CorrectError::NotExecuted(_)))
                };
                if let Some((_, refused)) = before.find(is_refused) {
                    results.push(refused.clone());
                    continue;
                }
                let (one, by) = (std::slice::from_ref(corrected), Instant::now() + self.deadline);
                results.append(&mut Box::pin(self.correct(one, by)).await);
            }
            return results;
        }
        vec![Err(failure.into_correct_error(self.deadline, &call.keys)); charges.len()]
    }
}

/// Decodes a reply of `lua/correct.lua`; `None` if it is malformed.
fn decode(reply: &Value, charges: &[CorrectedCharge]) -> Option<CorrectResults> {
    let Value::Array(parts) = reply else { return None };
    let mut parts = parts.iter();
    let Some(Value::BulkString(replies)) = parts.next() else { return None };
    let mut results = Vec::with_capacity(charges.len());
    for (reply, corrected) in replies.chunks(REPLY).zip(charges) {
        results.push(if reply.iter().all(|byte| *byte == 0) {
            let Some(Value::BulkString(message)) = parts.next() else { return None };
            let message = String::from_utf8_lossy(message);
            Err(correct_error(script::error_of(&message, &corrected.charge.count_name)))
        } else {
            Ok(script::decode_reply(reply)?)
        });
    }
    (results.len() == charges.len()).then_some(results)
}

type HoldResult = Result<Stated, StoreError>;

impl Servers {
    /// Takes units of one call, and states what the process held before.
    pub(crate) async fn take_slot(
        &self,
        charge: &Charge,
        by: Instant,
    ) -> Result<Reply, StoreError> {
        let op = self.script_op(Op::ACQUIRE, charge.cost);
        let (outcome, receipt) = self.apply_one(op, charge, by).await?;
        let granted = if outcome.is_allowed() { charge.cost } else { 0 };
        let mut reply = Reply::one(outcome, Source::Redis);
        reply.statements = vec![Some(Stated::new(receipt, granted))];
        if outcome.is_allowed() {
            reply.receipts = OneOrMany::from([Receipt::default()]);
        }
        Ok(reply)
    }

    /// States counts of one hash slot in one script. Returns a result for each, in their order.
    pub(crate) async fn hold(&self, charges: &[Arc<Charge>], by: Instant) -> Vec<HoldResult> {
        if let [charge] = charges {
            // The end of a call: the script of one key creates fewer functions than `lua/hold.lua`.
            let stated = self.apply_one(ScriptOp::HOLD, charge, by).await;
            return vec![stated.map(|(_, receipt)| Stated::new(receipt, 0))];
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
                return decode_statements(&reply, charges).unwrap_or_else(malformed);
            }
            Err(error) => error,
        };
        // Some keys of the hash slot have migrated to another node, and nothing was executed.
        if matches!(&error, StoreError::Server { code, .. } if &**code == "TRYAGAIN")
            || is_of_another_node(&error)
        {
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
fn decode_statements(reply: &Value, charges: &[Arc<Charge>]) -> Option<Vec<HoldResult>> {
    let Value::Array(parts) = reply else { return None };
    let mut parts = parts.iter();
    let Some(Value::BulkString(replies)) = parts.next() else { return None };
    let mut results = Vec::with_capacity(charges.len());
    for (reply, charge) in replies.chunks(REPLY + RECEIPT).zip(charges) {
        results.push(if reply.iter().all(|byte| *byte == 0) {
            let Some(Value::BulkString(message)) = parts.next() else { return None };
            Err(script::error_of(&String::from_utf8_lossy(message), &charge.count_name))
        } else {
            Ok(Stated::new(decode_acquired(reply)?.1, 0))
        });
    }
    (results.len() == charges.len()).then_some(results)
}
