//! Decides the calls of a line. Caller of `lua/line.lua`.

use std::sync::Arc;

use tokio::time::Instant;

use super::script_call::{ScriptCall, unexpected};
use crate::algorithm::{Op, Outcome, Receipt};
use crate::limit::Terms;
use crate::reply::StoreError;
use crate::store::redis::scripts::script::{self, RECEIPT, REPLY, Script, ScriptOp};
use crate::store::redis::{Servers, outcomes_of};
use crate::store::{
    CancelledUnits, Charge, EqualCalls, LineCounts, LineRequest, OneOrMany, Reservations,
};

/// The reply to a line, as [`Request::Line`](crate::store::Request::Line) says.
#[derive(Default)]
pub(crate) struct LineReplies {
    pub(crate) outcomes: Vec<Outcome>,
    /// The receipts of the admitted calls, if their charges can be settled.
    pub(crate) receipts: Vec<Receipt>,
}

impl Servers {
    /// Decides the calls of a line in their order, until one is rejected.
    pub(crate) async fn decide_line(
        self: &Arc<Self>,
        line: LineRequest,
        by: Instant,
    ) -> Result<LineReplies, StoreError> {
        let charges = line.counts.charges();
        let birth = if line.settles { self.births.draw() } else { 0 };
        let slot = |charge: &Arc<Charge>| self.slot(&charge.count_name);
        if let [first, rest @ ..] = charges
            && rest.iter().any(|charge| slot(charge) != slot(first))
        {
            return self.decide_line_by_slots(charges, &line.calls, birth, by).await;
        }
        let call = ScriptCall {
            script: Script::line(),
            keys: charges.iter().map(|charge| &charge.count_name[..]).collect(),
            arguments: arguments_of(&line, birth, self.clock.sent()),
            is_atomic: true,
        };
        let reply = self.run_for_group(&call, by).await?;
        decode(&reply, &line).ok_or_else(unexpected)
    }

    /// Decides the calls of a line whose counts are in several hash slots.
    async fn decide_line_by_slots(
        self: &Arc<Self>,
        charges: &[Arc<Charge>],
        runs: &[EqualCalls],
        birth: u64,
        by: Instant,
    ) -> Result<LineReplies, StoreError> {
        let mut replies = LineReplies::default();
        for run in runs {
            // What was charged before a failure is granted. The other calls are decided later.
            match self.decide_run_by_slots(charges, run, birth, by, &mut replies).await {
                Ok(true) if Instant::now() + self.deadline / 2 < by => {}
                Err(error) if replies.outcomes.is_empty() => return Err(error),
                Ok(_) | Err(_) => break,
            }
        }
        Ok(replies)
    }

    /// Decides equal calls. Adds their replies, and returns whether all of them were admitted.
    async fn decide_run_by_slots(
        self: &Arc<Self>,
        charges: &[Arc<Charge>],
        EqualCalls { costs, count, .. }: &EqualCalls,
        birth: u64,
        by: Instant,
        replies: &mut LineReplies,
    ) -> Result<bool, StoreError> {
        let of = |calls: u32| {
            let charge = |(charge, cost): (&Arc<Charge>, &u32)| {
                Arc::new(Charge { cost: cost.saturating_mul(calls), ..(**charge).clone() })
            };
            charges.iter().zip(&**costs).map(charge).collect::<Vec<_>>()
        };
        let peeked = outcomes_of(self.peek_by_slots(&self.groups(of(0)), by).await?);
        let fitting = peeked.iter().zip(&**costs);
        let fitting = fitting.filter_map(|(outcome, cost)| outcome.remaining.checked_div(*cost));
        let fitting = fitting.min().unwrap_or(*count).min(*count);
        if fitting > 0 {
            let groups = self.groups(of(fitting));
            let op = if birth > 0 { ScriptOp::acquire(birth) } else { Op::Decide.into() };
            let (decided, receipts): (Vec<_>, Vec<_>) =
                self.decide_by_slots(op, groups, by).await?.into_iter().unzip();
            // If another call took units in the meantime, the line is decided later.
            let is_admitted = decided.iter().all(Outcome::is_allowed);
            if is_admitted {
                for index in 0..fitting {
                    let later = u64::from(fitting - 1 - index);
                    replies.outcomes.extend(before(&decided, charges, costs, later, &[]));
                    if birth > 0 {
                        replies.receipts.extend(&receipts);
                    }
                }
            }
            if is_admitted && fitting == *count {
                return Ok(true);
            }
        }
        let rejected = self.apply_many(Op::Peek, of(1), by).await?;
        if !rejected.iter().all(Outcome::is_allowed) {
            replies.outcomes.extend(rejected);
        }
        Ok(false)
    }
}

/// Returns the arguments of `lua/line.lua`.
fn arguments_of(line: &LineRequest, birth: u64, clock: Option<u64>) -> Vec<Vec<u8>> {
    let reservations = match line.counts {
        LineCounts::Each(_) => Reservations::default(),
        LineCounts::Bucket(_, reservations) => reservations,
    };
    let CancelledUnits { units, end } =
        reservations.cancelled.unwrap_or(CancelledUnits { units: 0, end: 0 });
    let mut runs = Vec::with_capacity(26 + 16 * line.calls.len());
    script::put_7(&mut runs, end);
    for number in [units, reservations.held, reservations.most] {
        runs.extend(number.to_be_bytes());
    }
    script::put_7(&mut runs, birth);
    for EqualCalls { costs, count, wait } in &line.calls {
        runs.extend(count.to_be_bytes());
        script::put_7(&mut runs, *wait);
        costs.iter().for_each(|cost| runs.extend(cost.to_be_bytes()));
    }
    let clock = clock.map_or_else(Vec::new, script::packed_clock);
    let limits = line.counts.charges().iter().map(|charge| script::packed_limit(&charge.terms));
    [runs, clock].into_iter().chain(limits).collect()
}

/// Returns the outcomes of a call after which `later` equal calls were charged. `last` has the outcomes of the last of
/// them, with the slacks of their replies.
fn before(
    last: &[Outcome],
    charges: &[Arc<Charge>],
    costs: &OneOrMany<u32>,
    later: u64,
    slacks: &[u32],
) -> Vec<Outcome> {
    let outcomes = last.iter().zip(charges).zip(&**costs).enumerate();
    let before = |(index, ((last, charge), cost)): (usize, ((&Outcome, &Arc<Charge>), &u32))| {
        let slack = slacks.get(index).copied().unwrap_or(0);
        let terms: &Terms = &charge.terms;
        script::outcome_before(*last, terms, later * u64::from(*cost), slack)
    };
    outcomes.map(before).collect()
}

/// Decodes a reply of `lua/line.lua`; `None` if it is malformed.
fn decode(mut reply: &[u8], line: &LineRequest) -> Option<LineReplies> {
    let charges = line.counts.charges();
    let (mut outcomes, mut receipts) = (Vec::new(), Vec::new());
    if let LineCounts::Bucket(_, reservations) = &line.counts
        && reservations.cancelled.is_some()
    {
        outcomes.push(script::decode_reply(take(&mut reply, REPLY)?)?);
    }
    let mut runs = line.calls.iter();
    // The costs of the current run, and its calls that have no outcome yet.
    let (mut costs, mut left) = (None, 0);
    while !reply.is_empty() {
        let calls = u32::from_be_bytes(*take(&mut reply, 4)?.first_chunk()?);
        let length = if calls > 0 && line.settles { REPLY + RECEIPT } else { REPLY };
        let replies = take(&mut reply, length * charges.len())?.chunks(length);
        let acquired = replies.clone().map(script::decode_acquired).collect::<Option<Vec<_>>>()?;
        let (last, last_receipts): (Vec<_>, Vec<_>) = acquired.into_iter().unzip();
        if calls == 0 {
            outcomes.extend(last);
            continue;
        }
        let slacks = replies.map(script::decode_slack).collect::<Option<Vec<_>>>()?;
        if left == 0 {
            let run = runs.next()?;
            (costs, left) = (Some(&run.costs), run.count);
        }
        left = left.checked_sub(calls)?;
        for index in 0..calls {
            let later = u64::from(calls - 1 - index);
            outcomes.extend(before(&last, charges, costs?, later, &slacks));
            if line.settles {
                receipts.extend(&last_receipts);
            }
        }
    }
    Some(LineReplies { outcomes, receipts })
}

fn take<'a>(reply: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, rest) = reply.split_at_checked(bytes)?;
    *reply = rest;
    Some(taken)
}
