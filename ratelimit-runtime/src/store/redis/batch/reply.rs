//! The reply of `lua/batch.lua`, entry by entry and call by call.

use std::slice;

use redis::Value;

use crate::algorithm::Outcome;
use crate::reply::StoreError;
use crate::store::Charge;
use crate::store::redis::script::{self, REPLY};

/// The reply of an entry that failed.
const FAILED: u32 = u32::MAX;

/// Reads the reply entry by entry.
pub(super) struct BatchReply<'a> {
    outcomes: &'a [u8],
    errors: slice::Iter<'a, Value>,
}

impl<'a> BatchReply<'a> {
    pub(super) fn new(reply: &'a Value) -> Option<Self> {
        let Value::Array(parts) = reply else { return None };
        let mut parts = parts.iter();
        let Some(Value::BulkString(outcomes)) = parts.next() else { return None };
        Some(Self { outcomes, errors: parts })
    }

    /// Reads the outcome of `calls` equal calls of the key `name`; `None` if the reply is malformed.
    pub(super) fn next(
        &mut self,
        name: &[u8],
        calls: usize,
    ) -> Option<Result<EntryOutcome, StoreError>> {
        let admitted = u32::from_be_bytes(*self.outcomes.first_chunk()?);
        if admitted == FAILED {
            self.take(4)?;
            let Some(Value::BulkString(message)) = self.errors.next() else { return None };
            let message = String::from_utf8_lossy(message);
            return Some(Err(script::error_of(&message, name)));
        }
        if calls == 1 {
            let (outcome, slack) = self.outcome()?;
            let admitted = usize::from(outcome.is_allowed());
            return Some(Ok(EntryOutcome { admitted, last: outcome, slack, rejected: outcome }));
        }
        self.take(4)?;
        let admitted = (admitted as usize).min(calls);
        let last = if admitted > 0 { Some(self.outcome()?) } else { None };
        let rejected = if admitted < calls { Some(self.outcome()?.0) } else { None };
        let (last, slack) = last.or(rejected.map(|rejected| (rejected, 0)))?;
        Some(Ok(EntryOutcome { admitted, last, slack, rejected: rejected.unwrap_or(last) }))
    }

    fn outcome(&mut self) -> Option<(Outcome, u32)> {
        let reply = self.take(REPLY)?;
        Some((script::decode_reply(reply)?, script::decode_slack(reply)?))
    }

    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.outcomes.split_at_checked(bytes)?;
        self.outcomes = rest;
        Some(taken)
    }
}

/// The outcome of equal calls.
pub(super) struct EntryOutcome {
    admitted: usize,
    /// The outcome of the last admitted call.
    last: Outcome,
    slack: u32,
    /// The outcome of each rejected call.
    rejected: Outcome,
}

impl EntryOutcome {
    /// Returns the outcome of the call `index`, as if the calls had come in sequence.
    pub(super) fn of_call(&self, index: usize, charge: &Charge) -> Outcome {
        if index >= self.admitted {
            return self.rejected;
        }
        let later = (self.admitted - 1 - index) as u64;
        script::outcome_before(self.last, &charge.terms, later * u64::from(charge.cost), self.slack)
    }
}
