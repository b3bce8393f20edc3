//! Decides calls of several counts, or several calls, in one script. Caller of `lua/all.lua`.

use std::sync::Arc;

use tokio::time::Instant;

use super::script_call::{ScriptCall, unexpected};
use crate::algorithm::{Op, Outcome, Receipt};
use crate::one_or_many::OneOrMany;
use crate::reply::{Source, StoreError};
use crate::store::redis::Servers;
use crate::store::redis::scripts::script::{self, RECEIPT, REPLY, ScriptOp};
use crate::store::{Calls, Charge, EqualCalls, Reply, Stated};

/// The outcomes and the receipts of a [`Reply`].
#[derive(Default)]
pub(super) struct DecidedCalls {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) receipts: Vec<Receipt>,
    pub(super) statements: Vec<Option<Stated>>,
}

impl Servers {
    /// Decides calls in their order, until one is rejected.
    pub(crate) async fn decide(
        self: &Arc<Self>,
        calls: &Calls,
        by: Instant,
    ) -> Result<Reply, StoreError> {
        let slot = |charge: &Arc<Charge>| self.slot(&charge.count_name);
        let mut slots = calls.charges.windows(2);
        let DecidedCalls { outcomes, receipts, statements } =
            if slots.all(|pair| slot(&pair[0]) == slot(&pair[1])) {
                self.decide_in_slot(calls, by).await?
            } else {
                self.decide_by_slots(calls, by).await?
            };
        let (outcomes, receipts) = (OneOrMany::from(outcomes), OneOrMany::from(receipts));
        Ok(Reply { outcomes, receipts, statements, source: Source::Redis })
    }

    /// Decides calls whose counts are in one hash slot.
    pub(super) async fn decide_in_slot(
        &self,
        calls: &Calls,
        by: Instant,
    ) -> Result<DecidedCalls, StoreError> {
        let charges = &calls.charges;
        let call = ScriptCall {
            script: &script::ALL,
            keys: charges.iter().map(|charge| &charge.count_name[..]).collect(),
            arguments: arguments_of(self.script_op(calls.op, 0), calls, self.clock.sent()),
            is_atomic: true,
        };
        let reply = self.run(&call, by).await?;
        decode(&reply, calls).ok_or_else(unexpected)
    }
}

impl DecidedCalls {
    /// Adds the parts of a reply to mixed calls; `None` if they are malformed.
    fn add_mixed(&mut self, mut reply: &[u8], calls: &Calls) -> Option<()> {
        for EqualCalls { costs, .. } in &*calls.runs {
            let count = take(&mut reply, 4)?;
            if *count == [u8::MAX; 4] {
                self.outcomes.extend(costs.iter().map(|_| Outcome::FAILED));
                self.receipts.extend(costs.iter().map(|_| Receipt::default()));
                continue;
            }
            let is_admitted = *count != [0; 4];
            let length = if is_admitted { REPLY + RECEIPT } else { REPLY };
            for cost in &**costs {
                let (outcome, receipt) = match cost {
                    0 => (Outcome::UNDECIDED, Receipt::default()),
                    _ => script::decode_acquired(take(&mut reply, length)?)?,
                };
                self.outcomes.push(outcome);
                self.receipts.push(receipt);
            }
        }
        reply.is_empty().then_some(())
    }

    /// Adds `count` equal calls that were charged together. `last` has the outcomes of the last of them, `slacks` the
    /// slacks of their replies.
    pub(super) fn add(
        &mut self,
        count: u32,
        charges: &[Arc<Charge>],
        costs: &[u64],
        (last, slacks): (&[Outcome], &[u64]),
        receipts: &[Receipt],
    ) {
        for later in (0..u64::from(count)).rev() {
            let counts = last.iter().zip(slacks).zip(charges.iter().zip(costs));
            self.outcomes.extend(counts.map(|((last, slack), (charge, cost))| {
                script::outcome_before(*last, &charge.terms, later * *cost, *slack)
            }));
            self.receipts.extend(receipts);
        }
    }
}

/// Returns the arguments of `lua/all.lua`.
fn arguments_of(op: ScriptOp, calls: &Calls, clock: Option<u64>) -> Vec<Vec<u8>> {
    let charges = &calls.charges;
    let may_reserve = charges.len() == 1;
    let mut packed = Vec::with_capacity(64);
    if calls.is_mixed {
        packed.extend(b"mixed\0");
    } else {
        op.put_word(&mut packed);
    }
    script::put_7(&mut packed, op.birth);
    if may_reserve {
        let given_up = ScriptOp::correct(calls.replacement().unwrap_or_default());
        given_up.put_numbers(&mut packed);
        given_up.put_moment(&mut packed);
    }
    for EqualCalls { costs, count, wait } in &*calls.runs {
        packed.extend(count.to_be_bytes());
        if may_reserve {
            script::put_7(&mut packed, *wait);
        }
        costs.iter().for_each(|cost| script::put_7(&mut packed, *cost));
    }
    let clock = clock.map_or_else(Vec::new, script::packed_clock);
    let limits = charges.iter().map(|charge| script::packed_limit(charge));
    [packed, clock].into_iter().chain(limits).collect()
}

/// Decodes a reply of `lua/all.lua`; `None` if it is malformed.
fn decode(mut reply: &[u8], calls: &Calls) -> Option<DecidedCalls> {
    let (charges, mut decided) = (&calls.charges, DecidedCalls::default());
    let places = charges.iter().enumerate().filter(|_| calls.op == Op::ACQUIRE);
    let places = places.filter(|(_, charge)| charge.terms.is_in_flight()).map(|(place, _)| place);
    let mut stated = Vec::new();
    for place in places {
        let (_, receipt) = script::decode_acquired(take(&mut reply, REPLY + RECEIPT)?)?;
        stated.push((place, receipt));
    }
    if calls.is_mixed {
        decided.add_mixed(reply, calls)?;
        reply = &[];
    }
    let mut runs = calls.runs.iter();
    // The costs of the current run, and its calls that have no outcome yet.
    let (mut costs, mut left): (&[u64], _) = (&[], 0);
    while !reply.is_empty() {
        let count = u32::from_be_bytes(*take(&mut reply, 4)?.first_chunk()?);
        let has_receipts = count > 0 && calls.op == Op::ACQUIRE;
        let length = if has_receipts { REPLY + RECEIPT } else { REPLY };
        let replies = take(&mut reply, length * charges.len())?.chunks(length);
        let acquired = replies.clone().map(script::decode_acquired).collect::<Option<Vec<_>>>()?;
        let (last, receipts): (Vec<_>, Vec<_>) = acquired.into_iter().unzip();
        if count == 0 {
            decided.outcomes.extend(last);
            continue;
        }
        if left == 0 {
            let run = runs.next()?;
            (costs, left) = (&run.costs, run.count);
        }
        left = left.checked_sub(count)?;
        let slacks = replies.map(script::decode_slack).collect::<Option<Vec<_>>>()?;
        let receipts = if has_receipts { &receipts[..] } else { &[] };
        decided.add(count, charges, costs, (&last, &slacks), receipts);
    }
    let is_admitted = |(_, call): &(usize, &[Outcome])| call.iter().all(Outcome::is_allowed);
    let admitted = decided.outcomes.chunks(charges.len()).enumerate().filter(is_admitted);
    let admitted: Vec<_> = admitted.filter_map(|(call, _)| calls.costs_of(call)).collect();
    for (place, receipt) in stated {
        let costs = admitted.iter().filter_map(|costs| costs.get(place).copied());
        decided.statements.push(Some(Stated::new(receipt, costs.sum())));
    }
    Some(decided)
}

fn take<'a>(reply: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, rest) = reply.split_at_checked(bytes)?;
    *reply = rest;
    Some(taken)
}
