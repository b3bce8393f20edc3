//! Corrects charges once their calls have ended. Caller of `lua/correct.lua`.

use redis::{ErrorKind, ServerErrorKind, Value};
use tokio::time::Instant;

use super::script_call::{ScriptCall, unexpected};
use crate::algorithm::Outcome;
use crate::store::redis::Servers;
use crate::store::redis::network::failure::settle_error;
use crate::store::redis::scripts::script::{self, REPLY};
use crate::store::{SettleError, SettledCharge};

/// A result for each charge, in their order.
type SettleResults = Vec<Result<Outcome, SettleError>>;

impl Servers {
    /// Corrects charges of one hash slot in one script. Returns a result for each charge, in their order.
    pub(crate) async fn settle(&self, charges: &[SettledCharge], by: Instant) -> SettleResults {
        let arguments = script::arguments_of_each(
            charges.iter().map(|settled| (&*settled.charge, settled)),
            |out, settled| script::put_correction(out, settled.correction, settled.opening),
            self.clock.sent(),
        );
        let call = ScriptCall {
            script: &script::CORRECT,
            keys: charges.iter().map(|settled| &settled.charge.count_name[..]).collect(),
            arguments,
            is_atomic: charges.len() == 1,
        };
        let failure = match self.exchange(&call, by).await {
            Ok(reply) => {
                let malformed = || vec![Err(SettleError::Replied(unexpected())); charges.len()];
                let results = decode(&reply, charges).unwrap_or_else(malformed);
                for error in results.iter().filter_map(|result| result.as_ref().err()) {
                    self.back_off_if_unfit(error.error());
                }
                return results;
            }
            Err(failure) => failure,
        };
        // Some keys of the hash slot have migrated to another node. Nothing was executed.
        let try_again = ErrorKind::Server(ServerErrorKind::TryAgain);
        if failure.kind() == Some(try_again) && charges.len() > 1 {
            let mut results = Vec::with_capacity(charges.len());
            for settled in charges {
                let (one, by) = (std::slice::from_ref(settled), Instant::now() + self.deadline);
                results.append(&mut Box::pin(self.settle(one, by)).await);
            }
            return results;
        }
        vec![Err(failure.into_settle_error(self.deadline, &call.keys)); charges.len()]
    }
}

/// Decodes the reply; `None` if it is malformed.
fn decode(reply: &Value, charges: &[SettledCharge]) -> Option<SettleResults> {
    let Value::Array(parts) = reply else { return None };
    let mut parts = parts.iter();
    let Some(Value::BulkString(replies)) = parts.next() else { return None };
    let mut results = Vec::with_capacity(charges.len());
    for (reply, settled) in replies.chunks(REPLY).zip(charges) {
        results.push(if reply.iter().all(|byte| *byte == 0) {
            let Some(Value::BulkString(message)) = parts.next() else { return None };
            let message = String::from_utf8_lossy(message);
            Err(settle_error(script::error_of(&message, &settled.charge.count_name)))
        } else {
            Ok(script::decode_reply(reply)?)
        });
    }
    (results.len() == charges.len()).then_some(results)
}
