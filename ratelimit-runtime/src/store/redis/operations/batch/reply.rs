//! The reply of `lua/batch.lua`, entry by entry and call by call.

use std::slice;

use redis::Value;

use crate::algorithm::bucket::{self, DecidedBucket};
use crate::algorithm::{Applied, Op, Outcome, Receipt};
use crate::reply::StoreError;
use crate::store::Charge;
use crate::store::redis::scripts::script::{self, RECEIPT, REPLY};

/// The kinds of replies to an entry.
const FAILED: u8 = 0;
const FULL: u8 = 1;
const LEVEL: u8 = 2;

/// Reads the reply entry by entry.
pub(super) struct BatchReply<'a> {
    clock: u64,
    outcomes: &'a [u8],
    errors: slice::Iter<'a, Value>,
}

impl<'a> BatchReply<'a> {
    pub(super) fn new(reply: &'a Value) -> Option<Self> {
        let Value::Array(parts) = reply else { return None };
        let mut parts = parts.iter();
        let Some(Value::BulkString(outcomes)) = parts.next() else { return None };
        let (clock, outcomes) = outcomes.split_first_chunk()?;
        Some(Self { clock: script::get_7(*clock), outcomes, errors: parts })
    }

    /// Reads the outcome of `calls` equal takes; `None` if the reply is malformed.
    pub(super) fn next(
        &mut self,
        op: Op,
        charge: &Charge,
        calls: usize,
    ) -> Option<Result<EntryOutcome, StoreError>> {
        let [kind] = self.take()?;
        match kind {
            FAILED => {
                let Some(Value::BulkString(message)) = self.errors.next() else { return None };
                let message = String::from_utf8_lossy(message);
                Some(Err(script::error_of(&message, &charge.count_name)))
            }
            LEVEL => {
                let admitted = u32::from_be_bytes(self.take()?) as usize;
                let level = script::get_7(self.take()?);
                Some(Ok(EntryOutcome::of_level(charge, self.clock, admitted, level)))
            }
            FULL if calls == 1 => {
                let (last, slack) = self.outcome()?;
                let admitted = usize::from(last.is_allowed());
                let receipt = self.receipt(op, admitted)?;
                Some(Ok(EntryOutcome { admitted, last, slack, receipt, rejected: last }))
            }
            FULL => {
                let admitted = (u32::from_be_bytes(self.take()?) as usize).min(calls);
                let last = if admitted > 0 { Some(self.outcome()?) } else { None };
                let receipt = self.receipt(op, admitted)?;
                let rejected = if admitted < calls { Some(self.outcome()?.0) } else { None };
                let (last, slack) = last.or(rejected.map(|rejected| (rejected, 0)))?;
                let rejected = rejected.unwrap_or(last);
                Some(Ok(EntryOutcome { admitted, last, slack, receipt, rejected }))
            }
            _ => None,
        }
    }

    fn outcome(&mut self) -> Option<(Outcome, u64)> {
        let reply: [u8; REPLY] = self.take()?;
        Some((script::decode_reply(&reply)?, script::decode_slack(&reply)?))
    }

    /// Reads the receipt that admitted calls share, if they need one.
    fn receipt(&mut self, op: Op, admitted: usize) -> Option<Receipt> {
        if op != Op::ACQUIRE || admitted == 0 {
            return Some(Receipt::default());
        }
        script::decode_receipt(&self.take::<RECEIPT>()?)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.outcomes.split_first_chunk()?;
        self.outcomes = rest;
        Some(*taken)
    }
}

/// The outcome of equal calls.
pub(super) struct EntryOutcome {
    admitted: usize,
    /// The outcome of the last admitted call.
    last: Outcome,
    slack: u64,
    /// The receipt of all admitted calls.
    receipt: Receipt,
    /// The outcome of each rejected call.
    rejected: Outcome,
}

impl EntryOutcome {
    /// Returns the outcome of calls of a bucket that has this level after them.
    fn of_level(charge: &Charge, clock: u64, admitted: usize, level: u64) -> Self {
        let Charge { terms, cost, .. } = charge;
        let outcome =
            |allowed| DecidedBucket::at_level(level, allowed).outcome(terms, clock, *cost);
        let slack = bucket::slack(level, terms.rate());
        let (last, rejected) = (outcome(true), outcome(false));
        Self { admitted, last, slack, receipt: Receipt::default(), rejected }
    }

    /// Returns the outcome of the call `index`, as if the calls had come in sequence, and its receipt.
    pub(super) fn of_call(&self, index: usize, charge: &Charge) -> Applied {
        if index >= self.admitted {
            return (self.rejected, Receipt::default());
        }
        let later = (self.admitted - 1 - index) as u64;
        let units = later * charge.cost;
        (script::outcome_before(self.last, &charge.terms, units, self.slack), self.receipt)
    }
}
