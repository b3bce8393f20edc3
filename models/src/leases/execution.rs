//! What the server does: it runs the scripts of the runtime.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::super::state::{LeaseTarget, UnspentUnits};
use super::state::{Body, Message, PlainUnits, State};
use super::{Fault, Leases};
use crate::algorithm::{Charged, Correction, Outcome, Receipt};
use crate::judge;
use crate::key::KeyId;
use crate::limit::{Limit, Terms};
use crate::program;
use crate::program::Form;
use crate::scripts::{self, ScriptCall};
use crate::store::Charge;

/// The most units that the process holds.
pub(super) const LEASED: u64 = 4;

/// Five tokens refill in a term, which is a second.
const LIMIT: Limit =
    Limit::token_bucket("lease", 500, Duration::from_secs(100)).burst(17).lease(LEASED);

/// The time in which the bucket refills after a first lease, which it counts as so many units more as refill in a term.
pub(super) const REFILL: u64 = 1_800_000;

/// The longest wait until a reserved moment, in microseconds.
const LONGEST_WAIT: u64 = 5_000_000;

/// What a call that settles is charged.
const ACQUIRED: u64 = 2;

static PLAIN: LazyLock<Charge> = LazyLock::new(|| charge(*LIMIT.terms()));
static TARGET: LazyLock<Arc<LeaseTarget>> =
    LazyLock::new(|| LeaseTarget::new(&LIMIT, Arc::new(charge(LIMIT.terms().leased()))));

fn charge(terms: Terms) -> Charge {
    let key_id = KeyId::new(terms.identity(), 0);
    Charge { terms, key_id, count_name: Vec::new(), cost: 1, statement: None }
}

pub(super) fn target() -> &'static Arc<LeaseTarget> {
    &TARGET
}

impl PlainUnits {
    pub(super) fn unspent(self) -> UnspentUnits {
        let Self { units, at, place } = self;
        UnspentUnits { target: target().clone(), units, at, place }
    }
}

/// The scripts of a model.
struct Scripts {
    leased: String,
    plain: String,
    all: String,
    correct: String,
}

impl Scripts {
    fn new(fault: Option<Fault>) -> Self {
        let with_fault = |text: String| {
            let replaced: &[(&str, &str)] = match fault {
                Some(Fault::LeasedUnitsDrain) => &[
                    ("floor = math.min(kept * token, level)\n    level = math", "level = math"),
                    ("level = math.max(level, reserve * token)", ""),
                ],
                Some(Fault::DrainedUnitsComeBack) => {
                    &[("math.min(-charge, capacity) - drained", "math.min(-charge, capacity)")]
                }
                Some(Fault::ReservedBeforeEndOfLease) => &[("        level = level_now\n", "")],
                Some(Fault::SettlementGivesReserveBack) => {
                    &[("lower(leased > now and 0 or level)", "lower(level)")]
                }
                _ => &[],
            };
            replaced.iter().fold(text, |text, (part, fault)| {
                assert!(text.contains(part), "the script has no {part}");
                text.replace(part, fault)
            })
        };
        Self {
            leased: with_fault(Form::LeasedBucket.script()),
            plain: with_fault(Form::Bucket.script()),
            all: with_fault(program::several("all")),
            correct: with_fault(program::several("correct")),
        }
    }

    fn of(fault: Option<Fault>) -> &'static Self {
        static SCRIPTS: LazyLock<Vec<(Option<Fault>, Scripts)>> = LazyLock::new(|| {
            let in_scripts = [
                Fault::LeasedUnitsDrain,
                Fault::DrainedUnitsComeBack,
                Fault::ReservedBeforeEndOfLease,
                Fault::SettlementGivesReserveBack,
            ];
            let faults = in_scripts.into_iter().map(Some).chain([None]);
            faults.map(|fault| (fault, Scripts::new(fault))).collect()
        });
        // The others are faults of the process.
        let known = SCRIPTS.iter().find(|(known, _)| *known == fault);
        &known.or(SCRIPTS.last()).expect("the scripts without a fault").1
    }
}

impl Leases {
    /// Returns whether the limit allows what was admitted.
    pub(super) fn is_within(&self, state: &State) -> bool {
        let is_exception = !self.is(Fault::StepAheadIsNoException);
        let term = if is_exception { TARGET.lifetime() } else { 0 };
        judge::is_within(LIMIT.terms(), &state.admitted, |from, to| {
            // A step ahead lets the bucket refill, and leased units drain before the end of their lease.
            let refills = from.saturating_sub(term)..=to;
            let ahead = state.stepped.filter(|(at, _)| refills.contains(at));
            ahead.map_or(0, |(_, by)| by.max(0).unsigned_abs())
        })
    }

    /// Executes a message on the server.
    pub(super) fn execute(&self, state: &mut State, message: Message) {
        let clock = state.server_clock();
        let script = &Scripts::of(self.fault).leased;
        match message.body {
            Body::Lease { units } => {
                let call = ScriptCall::new("take", units);
                let (outcome, _) = call.run(&mut state.server, script, clock, &TARGET.charge);
                let number = message.number;
                let fetch = state.process.fetch;
                // A reply for which the process does not wait any longer is dropped, and so is a second one.
                state.drop_reply(number);
                if fetch.is_some_and(|fetch| fetch.waits_for(number)) {
                    state.owned += if outcome.is_allowed() { units } else { 0 };
                    let (outcome, at) = (outcome.into(), state.time);
                    state.put(Message { number, body: Body::Reply { units, outcome, at } });
                }
            }
            Body::Return(PlainUnits { units, place, .. }) => {
                let call = ScriptCall::correct(Correction::give_back(Charged::At(place), units));
                call.run(&mut state.server, script, clock, &TARGET.charge);
                state.owned = state.owned.wrapping_sub(units);
            }
            Body::Reply { .. } => unreachable!("a reply is not executed"),
        }
    }

    /// Decides a call of the process that leases, which is not leased.
    pub(super) fn ask(&self, state: &mut State) {
        let (clock, script) = (state.server_clock(), &Scripts::of(self.fault).leased);
        let call = ScriptCall::new("take", 1);
        let (outcome, _) = call.run(&mut state.server, script, clock, &TARGET.charge);
        if outcome.is_allowed() {
            state.admit(1, state.time);
        }
    }

    /// A process that does not lease takes all units that are left. Returns `None` if there are none.
    pub(super) fn take_rest(&self, state: &mut State) -> Option<()> {
        let rest = self.plain(state, ScriptCall::new("peek", 1)).0.remaining;
        if rest == 0 {
            return None;
        }
        let (outcome, _) = self.plain(state, ScriptCall::new("take", rest));
        assert!(outcome.is_allowed(), "what is left is admitted");
        state.admit(rest, state.time);
        Some(())
    }

    /// A process that does not lease reserves a moment. Returns `None` if it is too far ahead.
    pub(super) fn reserve(&self, state: &mut State) -> Option<()> {
        let (clock, script) = (state.server_clock(), &Scripts::of(self.fault).all);
        let call = (burst(), 1, LONGEST_WAIT);
        let (outcome, _) = scripts::reserve(&mut state.server, script, clock, &PLAIN, call);
        outcome.is_allowed().then(|| state.admit(burst(), state.time + outcome.retry_us))
    }

    /// Charges a call that uses nothing of it. Returns `None` if it is rejected.
    pub(super) fn acquire(&self, state: &mut State) -> Option<()> {
        let birth = u64::from(state.used.settled);
        let call = ScriptCall::acquire(ACQUIRED, birth);
        let (outcome, Receipt { birth, place }) = self.plain(state, call);
        outcome.is_allowed().then(|| state.receipts.push((birth, place)))
    }

    pub(super) fn settle(&self, state: &mut State) {
        let (clock, script) = (state.server_clock(), &Scripts::of(self.fault).correct);
        let (birth, place) = state.receipts.remove(0);
        let receipt = Receipt { birth, place };
        let correction = Correction::settled(receipt, ACQUIRED, 0);
        scripts::correct(&mut state.server, script, clock, &PLAIN, &[(correction, 0)]);
    }

    /// Returns the units that are left for a process that does not lease.
    pub(super) fn remaining(&self, state: &mut State) -> u64 {
        self.plain(state, ScriptCall::new("peek", 0)).0.remaining
    }

    fn plain(&self, state: &mut State, call: ScriptCall) -> (Outcome, Receipt) {
        let (clock, script) = (state.server_clock(), &Scripts::of(self.fault).plain);
        call.run(&mut state.server, script, clock, &PLAIN)
    }
}

/// Returns the burst of the bucket.
pub(super) fn burst() -> u64 {
    LIMIT.terms().capacity()
}
