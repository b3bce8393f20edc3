//! Decides calls of several counts, or several calls, in one script. Caller of `lua/all.lua`.
//!
//! Calls whose keys are in different hash slots of a cluster are charged one after the other, each hash slot by hash
//! slot, and rolled back if one rejects. Units in flight are taken first, by one call at a time, because a request
//! states once what a process holds. They are not rolled back: the process states that it does not hold them.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::script_call::{ScriptCall, script_op, unexpected};
use crate::algorithm::{Charged, Op, Outcome, Receipt};
use crate::one_or_many::OneOrMany;
use crate::reply::{Answer, Source, StoreError};
use crate::store::redis::Redis;
use crate::store::redis::scripts::script::{self, numbers_of, take, take_outcome, take_receipt};
use crate::store::{Calls, Charge, EqualCalls, GiveBack, Reply, Stated};

impl Redis {
    /// Decides calls in their order, until one is rejected. If their counts are in several hash slots, decides only the
    /// first call.
    pub(crate) async fn decide(
        &self,
        calls: &Calls,
        give_back: GiveBack<'_>,
        by: Instant,
    ) -> Result<Reply, StoreError> {
        let mut pairs = calls.charges.windows(2);
        if pairs.all(|pair| self.slot(&pair[0]) == self.slot(&pair[1])) {
            return self.decide_in_slot(calls, by).await;
        }
        let costs = calls.costs_of(0).into_iter().flatten();
        let charges = calls.charges.iter().zip(costs).map(|(charge, cost)| charge.with_cost(*cost));
        let charges: Vec<_> = charges.collect();
        // Boxed, because it is rare, and large (`benches/all -- redis`).
        Box::pin(self.decide_by_slots(calls.op, &charges, give_back, by)).await
    }

    /// Decides calls whose counts are in one hash slot.
    async fn decide_in_slot(&self, calls: &Calls, by: Instant) -> Result<Reply, StoreError> {
        let charges = &calls.charges;
        let call = ScriptCall {
            script: &script::ALL,
            keys: charges.iter().map(|charge| &charge.count_name[..]).collect(),
            arguments: arguments_of(calls, self.clock.sent()),
            is_atomic: true,
            node: None,
            by,
        };
        let reply = self.run(&call).await?;
        decode(&reply, calls).ok_or_else(unexpected)
    }
}

/// Returns the arguments of `lua/all.lua`.
fn arguments_of(calls: &Calls, clock: Option<u64>) -> Vec<Vec<u8>> {
    let (word, [_, birth, _]) = script_op(calls.op, 0);
    let charges = &calls.charges;
    let may_reserve = charges.len() == 1;
    let mut packed = Vec::with_capacity(64);
    let word = if calls.is_mixed { "mixed" } else { word };
    packed.extend(word.as_bytes());
    packed.push(0);
    script::put(&mut packed, [birth]);
    if may_reserve {
        script::put(&mut packed, numbers_of(calls.replacement().unwrap_or_default()));
    }
    for EqualCalls { costs, count, wait } in &*calls.runs {
        packed.extend(count.to_be_bytes());
        if may_reserve {
            script::put(&mut packed, [*wait]);
        }
        costs.iter().for_each(|cost| script::put(&mut packed, [*cost]));
    }
    script::arguments_of_several(packed, clock, charges.iter().map(|charge| &**charge))
}

/// Decodes a reply of `lua/all.lua`; `None` if it is malformed.
fn decode(mut bytes: &[u8], calls: &Calls) -> Option<Reply> {
    let (charges, takes) = (&calls.charges, calls.op == Op::ACQUIRE);
    let mut reply = Reply::new(OneOrMany::new(), Source::Redis);
    let mut stated = Vec::new();
    for (place, charge) in charges.iter().enumerate() {
        if takes && charge.terms.is_in_flight() {
            take_outcome(&mut bytes)?;
            stated.push((place, take_receipt(&mut bytes)?));
        }
    }
    if calls.is_mixed {
        decode_mixed(&mut bytes, calls, &mut reply)?;
    }
    while !bytes.is_empty() {
        let count = u32::from_be_bytes(take(&mut bytes)?) as usize;
        let has_receipts = count > 0 && takes;
        let mut last = Vec::with_capacity(charges.len());
        for _ in &**charges {
            let (outcome, slack) = take_outcome(&mut bytes)?;
            let receipt = if has_receipts { Some(take_receipt(&mut bytes)?) } else { None };
            last.push((outcome, slack, receipt));
        }
        // A part of 0 calls is the reply to a rejected call, or to a peek.
        let count = count.max(1);
        let costs = calls.costs_of(reply.outcomes.len() / charges.len() + count - 1)?;
        for later in (0..count as u64).rev() {
            for (((outcome, slack, receipt), charge), cost) in last.iter().zip(charges).zip(costs) {
                let units = later * cost;
                let outcome = script::outcome_before(*outcome, &charge.terms, units, *slack);
                reply.outcomes.push(outcome);
                reply.receipts.extend(*receipt);
            }
        }
    }
    for (place, receipt) in stated {
        let each_call = reply.outcomes.chunks(charges.len()).enumerate();
        let admitted = each_call.filter(|(_, call)| call.iter().all(Outcome::is_allowed));
        let costs = admitted.filter_map(|(call, _)| calls.costs_of(call)?.get(place).copied());
        reply.statements.push(Some(Stated::new(receipt, costs.sum())));
    }
    Some(reply)
}

/// Adds the parts of a reply to mixed calls; `None` if they are malformed.
fn decode_mixed(bytes: &mut &[u8], calls: &Calls, reply: &mut Reply) -> Option<()> {
    for EqualCalls { costs, .. } in &*calls.runs {
        let count = u32::from_be_bytes(take(bytes)?);
        for cost in &**costs {
            let (mut outcome, mut receipt) = (Outcome::UNDECIDED, Receipt::default());
            if count == u32::MAX {
                outcome = Outcome::FAILED;
            } else if *cost > 0 {
                (outcome, _) = take_outcome(bytes)?;
                if count > 0 {
                    receipt = take_receipt(bytes)?;
                }
            }
            reply.outcomes.push(outcome);
            reply.receipts.push(receipt);
        }
    }
    bytes.is_empty().then_some(())
}

/// The outcome of one count of a call, its receipt, and the reply to its statement.
type CountReply = (Outcome, Receipt, Option<Stated>);

impl Redis {
    /// Decides one call: peeks at its counts, and charges them hash slot by hash slot if all admit it. If a concurrent
    /// call takes units in between, gives the charges back. Until then, other calls can be rejected because of these
    /// charges.
    async fn decide_by_slots(
        &self,
        op: Op,
        charges: &[Arc<Charge>],
        give_back: GiveBack<'_>,
        by: Instant,
    ) -> Result<Reply, StoreError> {
        let slots = self.slots_of(charges);
        let mut replies = vec![(Outcome::UNDECIDED, Receipt::default(), None); charges.len()];
        for slot in &slots {
            let takes_units = slot.iter().any(|index| charges[*index].statement.is_some());
            if op != Op::ACQUIRE || !takes_units {
                self.decide_slot(Op::Peek, charges, slot, &mut replies, by).await?;
            }
        }
        let mut is_admitted = replies.iter().all(|(outcome, ..)| outcome.is_allowed());
        if is_admitted && op != Op::Peek {
            let mut rollback = Rollback { give_back, charged: Vec::new() };
            for slot in &slots {
                let decided = self.decide_slot(op, charges, slot, &mut replies, by).await;
                is_admitted = matches!(decided, Ok(true));
                if !is_admitted {
                    // The caller receives the rejection after the rollback, if the deadline allows.
                    // An error there is not reported: the caller receives the reason of the rollback.
                    let _ = timeout_at(by, async {
                        for given_back in rollback.start() {
                            let _ = given_back.await;
                        }
                    })
                    .await;
                    decided?;
                    break;
                }
                for index in slot {
                    let (charge, (outcome, receipt, _)) = (&charges[*index], &replies[*index]);
                    let found_by = match receipt.birth {
                        0 => Charged::At(outcome.charged_at(&charge.terms)),
                        _ => Charged::By(*receipt),
                    };
                    if charge.statement.is_none() {
                        rollback.charged.push((Arc::clone(charge), found_by));
                    }
                }
            }
            rollback.charged.clear();
        }
        let mut reply = Reply::new(OneOrMany::new(), Source::Redis);
        for ((outcome, receipt, stated), charge) in replies.into_iter().zip(charges) {
            reply.outcomes.push(outcome);
            reply.receipts.extend((is_admitted && op == Op::ACQUIRE).then_some(receipt));
            reply.statements.extend(charge.statement.is_some().then_some(stated));
        }
        Ok(reply)
    }

    /// Returns the hash slots of charges, each as the indexes of its charges. Those of units in flight come first, in
    /// the same order in all processes: otherwise, two processes could wait for each other.
    fn slots_of(&self, charges: &[Arc<Charge>]) -> Vec<Vec<usize>> {
        let mut slots: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (index, charge) in charges.iter().enumerate() {
            slots.entry(self.slot(charge)).or_default().push(index);
        }
        let mut slots: Vec<_> = slots.into_values().collect();
        slots.sort_by_key(|slot| {
            let in_flight = slot.iter().filter(|index| charges[**index].statement.is_some());
            let first = in_flight.map(|index| charges[*index].count_name.clone()).min();
            (first.is_none(), first)
        });
        slots
    }

    /// Decides the part of a call in one hash slot. Returns whether it is admitted.
    async fn decide_slot(
        &self,
        op: Op,
        charges: &[Arc<Charge>],
        slot: &[usize],
        replies: &mut [CountReply],
        by: Instant,
    ) -> Result<bool, StoreError> {
        let of_slot = slot.iter().map(|index| Arc::clone(&charges[*index])).collect();
        let reply = self.decide_in_slot(&Calls::one(op, of_slot), by).await?;
        let receipts = reply.receipts.iter().copied().chain(iter::repeat(Receipt::default()));
        let mut statements = reply.statements.iter().copied();
        for ((index, outcome), receipt) in slot.iter().zip(&reply.outcomes).zip(receipts) {
            let stated = charges[*index].statement.and_then(|_| statements.next().flatten());
            replies[*index] = (*outcome, receipt, stated);
        }
        Ok(reply.is_allowed())
    }
}

/// The charges of a call that is not admitted yet. Gives them back on drop.
struct Rollback<'a> {
    give_back: GiveBack<'a>,
    charged: Vec<(Arc<Charge>, Charged)>,
}

impl Rollback<'_> {
    /// Gives the charges back, also if the deadline of the call has passed or the caller drops it.
    fn start(&mut self) -> Vec<Answer<Outcome>> {
        let charged = self.charged.drain(..);
        charged.map(|(charge, charged)| (self.give_back)(charge, charged)).collect()
    }
}

impl Drop for Rollback<'_> {
    fn drop(&mut self) {
        self.start();
    }
}
