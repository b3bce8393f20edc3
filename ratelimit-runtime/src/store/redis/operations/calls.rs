//! Decides calls of several counts, or several calls, in one script. Caller of `lua/all.lua`.
//!
//! Calls whose keys are in different hash slots of a cluster are charged hash slot by hash slot, and rolled back if one
//! rejects. Units in flight are taken first, by one call at a time, because a request states once what a process holds.
//! They are not rolled back: the process states that it does not hold them.

use std::mem;
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::script_call::{ScriptCall, unexpected};
use crate::algorithm::{Charged, Op, Outcome, Receipt};
use crate::one_or_many::OneOrMany;
use crate::reply::{Source, StoreError};
use crate::store::redis::Servers;
use crate::store::redis::scripts::script::{self, RECEIPT, REPLY, ScriptOp};
use crate::store::{Calls, Charge, EqualCalls, GivenBack, Reply, Stated};

/// The outcomes and the receipts of a [`Reply`].
#[derive(Default)]
struct DecidedCalls {
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
    async fn decide_in_slot(&self, calls: &Calls, by: Instant) -> Result<DecidedCalls, StoreError> {
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

/// The charges of one hash slot, each with its index in the request.
type SlotGroup = Vec<(usize, Arc<Charge>)>;

impl Servers {
    /// Decides calls in their order, until one is rejected.
    async fn decide_by_slots(
        self: &Arc<Self>,
        calls: &Calls,
        by: Instant,
    ) -> Result<DecidedCalls, StoreError> {
        let (mut decided, holds) = (DecidedCalls::default(), holds(calls));
        for run in &*calls.runs {
            // What was charged before a failure is granted. The other calls are decided later.
            match self.decide_run(calls, run, &mut decided, by).await {
                Ok(true) if !holds && Instant::now() + self.deadline / 2 < by => {}
                Err(error) if decided.outcomes.is_empty() => return Err(error),
                Ok(_) | Err(_) => break,
            }
        }
        Ok(decided)
    }

    /// Decides equal calls: peeks at one call, and charges in one step as many calls as all counts admit. Adds their
    /// outcomes, and returns whether all calls were admitted.
    async fn decide_run(
        self: &Arc<Self>,
        calls @ Calls { op, charges, .. }: &Calls,
        EqualCalls { costs, count, .. }: &EqualCalls,
        decided: &mut DecidedCalls,
        by: Instant,
    ) -> Result<bool, StoreError> {
        let holds = holds(calls);
        let groups = |calls: u32| {
            let costs = costs.iter().map(|cost| cost.saturating_mul(calls.into()));
            self.groups(charges.iter().zip(costs).map(|(charge, cost)| charge.with_cost(cost)))
        };
        let peeked = || groups(1).into_iter().filter(|group| !holds || !takes_slots(group));
        let peeked = || peeked().collect::<Vec<_>>();
        let mut last = self.peek_groups(&peeked(), charges.len(), by).await?;
        if is_allowed(&last) && *op != Op::Peek {
            let fitting = last.iter().zip(&**costs);
            let fitting = fitting.filter_map(|(peeked, cost)| peeked.remaining.checked_div(*cost));
            let fitting =
                fitting.min().map_or(*count, |fitting| fitting.min((*count).into()) as u32);
            let fitting = if holds { 1 } else { fitting };
            let DecidedCalls { outcomes, receipts, statements } =
                self.charge_groups(*op, groups(fitting), by).await?;
            decided.statements = statements;
            let is_admitted = is_allowed(&outcomes);
            if is_admitted {
                let slacks = vec![0; charges.len()];
                decided.add(fitting, charges, costs, (&outcomes, &slacks), &receipts);
            }
            if is_admitted && fitting == *count {
                return Ok(true);
            }
            let is_of_one = fitting == 1 && !is_admitted;
            last = if is_of_one {
                outcomes
            } else {
                self.peek_groups(&peeked(), charges.len(), by).await?
            };
            // Concurrent calls change the counts. The other calls are decided later.
            if is_allowed(&last) {
                return Ok(false);
            }
        }
        decided.outcomes.append(&mut last);
        Ok(false)
    }

    /// Groups charges by their hash slots. The groups that take units in flight come first, in the same order in all
    /// processes: otherwise, two processes could wait for each other.
    fn groups(&self, charges: impl Iterator<Item = Arc<Charge>>) -> Vec<SlotGroup> {
        let mut groups: Vec<(u16, SlotGroup)> = Vec::new();
        for (index, charge) in charges.enumerate() {
            let slot = self.slot(&charge.count_name);
            match groups.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, group)) => group.push((index, charge)),
                None => groups.push((slot, vec![(index, charge)])),
            }
        }
        groups.sort_by_key(|(_, group)| {
            let slots = group.iter().filter(|(_, charge)| charge.statement.is_some());
            let first = slots.map(|(_, charge)| charge.count_name.clone()).min();
            (first.is_none(), first)
        });
        groups.into_iter().map(|(_, group)| group).collect()
    }

    async fn peek_groups(
        &self,
        groups: &[SlotGroup],
        counts: usize,
        by: Instant,
    ) -> Result<Vec<Outcome>, StoreError> {
        let mut outcomes = vec![Outcome::UNDECIDED; counts];
        for group in groups {
            let peeked = self.decide_group(Op::Peek, group, by).await?;
            keep(&mut outcomes, group, &peeked.outcomes);
        }
        Ok(outcomes)
    }

    /// Charges hash slot by hash slot, after a peek. If a concurrent call takes units in between, gives the charges
    /// back. Until then, other calls can be rejected because of these charges.
    async fn charge_groups(
        self: &Arc<Self>,
        op: Op,
        groups: Vec<SlotGroup>,
        by: Instant,
    ) -> Result<DecidedCalls, StoreError> {
        let counts = groups.iter().map(Vec::len).sum();
        let (mut outcomes, mut receipts, mut stated) = (
            vec![Outcome::UNDECIDED; counts],
            vec![Receipt::default(); counts],
            vec![None; counts],
        );
        let slots = groups.iter().flatten().filter(|(_, charge)| charge.statement.is_some());
        let mut slots: Vec<_> = slots.map(|(index, _)| *index).collect();
        slots.sort_unstable();
        let mut rollback = Rollback { servers: Arc::clone(self), charged: Vec::new() };
        for group in groups {
            let result = self.decide_group(op, &group, by).await;
            let fits = result.as_ref().is_ok_and(|decided| is_allowed(&decided.outcomes));
            if !fits && !rollback.charged.is_empty() {
                // The caller receives the rejection after the rollback, if the deadline allows.
                // An error there is not reported: the caller receives the reason of the rollback.
                let _ = timeout_at(by, async {
                    for given_back in rollback.start() {
                        let _ = given_back.await;
                    }
                })
                .await;
            }
            let decided = result?;
            keep(&mut outcomes, &group, &decided.outcomes);
            keep(&mut receipts, &group, &decided.receipts);
            let slots = group.iter().filter(|(_, charge)| charge.statement.is_some());
            for ((index, _), of_slot) in slots.zip(&decided.statements) {
                stated[*index] = Some(*of_slot);
            }
            if !fits {
                break;
            }
            let charged = group.into_iter().zip(&decided.outcomes).enumerate();
            let charged = charged.filter(|(_, ((_, charge), _))| charge.statement.is_none());
            rollback.charged.extend(charged.map(|(index, ((_, charge), outcome))| {
                let receipt = decided.receipts.get(index).filter(|receipt| receipt.birth > 0);
                let at = || Charged::At(outcome.charged_at(&charge.terms));
                let charged = receipt.map_or_else(at, |receipt| Charged::By(*receipt));
                (charge, charged)
            }));
        }
        rollback.charged.clear();
        receipts.truncate(if op == Op::ACQUIRE { counts } else { 0 });
        let statements = slots.into_iter().map(|index| stated[index].flatten()).collect();
        Ok(DecidedCalls { outcomes, receipts, statements })
    }

    async fn decide_group(
        &self,
        op: Op,
        group: &SlotGroup,
        by: Instant,
    ) -> Result<DecidedCalls, StoreError> {
        let charges: Vec<_> = group.iter().map(|(_, charge)| Arc::clone(charge)).collect();
        self.decide_in_slot(&Calls::one(op, charges.into()), by).await
    }
}

/// Copies the parts of a group to their places in the request.
fn keep<T: Copy>(parts: &mut [T], group: &SlotGroup, of_group: &[T]) {
    for ((index, _), part) in group.iter().zip(of_group) {
        parts[*index] = *part;
    }
}

/// Returns whether calls take units in flight.
fn holds(calls: &Calls) -> bool {
    let mut charges = calls.charges.iter();
    calls.op == Op::ACQUIRE && charges.any(|charge| charge.statement.is_some())
}

fn takes_slots(group: &SlotGroup) -> bool {
    group.iter().any(|(_, charge)| charge.statement.is_some())
}

fn is_allowed(outcomes: &[Outcome]) -> bool {
    outcomes.iter().all(Outcome::is_allowed)
}

/// The charges of a call that is not admitted yet. Gives them back on drop.
struct Rollback {
    servers: Arc<Servers>,
    charged: Vec<(Arc<Charge>, Charged)>,
}

impl Rollback {
    /// Gives the charges back, also if the deadline of the call has passed or the caller drops it. The receivers
    /// complete once they are given back.
    fn start(&mut self) -> Vec<GivenBack> {
        let Some(give_back) = self.servers.on_rollback.get() else { return Vec::new() };
        let charged = mem::take(&mut self.charged).into_iter();
        charged.map(|(charge, charged)| give_back(charge, charged)).collect()
    }
}

impl Drop for Rollback {
    fn drop(&mut self) {
        if !self.charged.is_empty() {
            self.start();
        }
    }
}
