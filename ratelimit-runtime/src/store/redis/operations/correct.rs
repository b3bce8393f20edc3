//! Corrects charges once their calls have ended, blocks, unblocks and resets keys. Caller of `lua/correct.lua`.

use redis::{ErrorKind, ServerErrorKind, Value};
use tokio::time::Instant;

use super::script_call::{ScriptCall, unexpected};
use crate::algorithm::Outcome;
use crate::store::redis::Servers;
use crate::store::redis::network::failure::correct_error;
use crate::store::redis::scripts::script::{self, REPLY};
use crate::store::{CorrectError, CorrectedCharge};

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
