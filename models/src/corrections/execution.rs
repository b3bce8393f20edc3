//! What the server does: it runs the scripts of the runtime.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::state::{Admission, Change, Queued, State};
use super::{Fault, Settling};
use crate::algorithm::{Charged, Correction, MOST, Outcome, Receipt, Reservation};
use crate::judge;
use crate::key::KeyId;
use crate::limit::Limit;
use crate::program;
use crate::program::Form;
use crate::scripts::{self, ScriptCall};
use crate::store::Charge;

const PERIOD: Duration = Duration::from_secs(10);
pub(super) const PERIOD_US: u64 = PERIOD.as_micros() as u64;
const BUCKET: Limit = Limit::token_bucket("settled", 4, PERIOD);
const WINDOW: Limit = Limit::sliding("settled", 4, PERIOD);

/// What a call is charged before it is settled.
pub(super) const CHARGED: u64 = 2;

/// What a call may reserve.
pub(super) const RESERVED: [u64; 2] = [2, 4];

/// Returns the charge of a call of a bucket or of a window.
pub(super) fn charge(is_bucket: bool) -> &'static Arc<Charge> {
    static CHARGES: LazyLock<[Arc<Charge>; 2]> = LazyLock::new(|| {
        [WINDOW, BUCKET].map(|limit| {
            let terms = *limit.terms();
            let key_id = KeyId::new(terms.identity(), 0);
            Arc::new(Charge { terms, key_id, count_name: Vec::new(), cost: 1, statement: None })
        })
    });
    &CHARGES[usize::from(is_bucket)]
}

/// The time of a reset in `lua/correct.lua`.
const RESET: u64 = MOST - 1;

/// The longest wait until a reserved moment, in microseconds.
const LONGEST_WAIT: u64 = 20_000_000;

/// The scripts of a model.
struct Scripts {
    decide: [String; 2],
    all: String,
    correct: String,
}

const IN_SCRIPTS: [Option<Fault>; 6] = [
    Some(Fault::BirthIsIgnored),
    Some(Fault::DrainedUnitsComeBack),
    Some(Fault::ReservedUnitsComeBack),
    Some(Fault::EarlierIsLast),
    Some(Fault::EmptyCountOpens),
    None,
];

impl Scripts {
    fn new(fault: Option<Fault>) -> Self {
        let correct = program::several("correct");
        let (part, mistake) = match fault {
            Some(Fault::BirthIsIgnored) => (" birth == own_birth", " true"),
            Some(Fault::DrainedUnitsComeBack) => ("math.min(units, level[step])", "units"),
            Some(Fault::ReservedUnitsComeBack) => ("lower(level_then)", "lower(level)"),
            Some(Fault::EarlierIsLast) => {
                ("if number ~= last then return end", "if number > last then return end")
            }
            Some(Fault::EmptyCountOpens) => ("if need > 0 then", "if false then"),
            _ => ("", ""),
        };
        assert!(correct.contains(part), "the script has no {part}");
        let with_fault = |text: String| {
            if part.is_empty() { text } else { text.replace(part, mistake) }
        };
        Self {
            decide: [Form::Sliding.script(), Form::Bucket.script()].map(with_fault),
            all: with_fault(program::several("all")),
            correct: with_fault(correct),
        }
    }

    fn of(fault: Option<Fault>) -> &'static Self {
        static SCRIPTS: LazyLock<[Scripts; IN_SCRIPTS.len()]> =
            LazyLock::new(|| IN_SCRIPTS.map(Scripts::new));
        // The other faults are of the process.
        let index = IN_SCRIPTS.iter().position(|known| *known == fault);
        &SCRIPTS[index.unwrap_or(IN_SCRIPTS.len() - 1)]
    }
}

impl Settling {
    fn run(&self, state: &mut State, call: ScriptCall) -> (Outcome, Receipt) {
        let script = &Scripts::of(self.fault).decide[usize::from(self.is_bucket)];
        let clock = state.server_clock();
        call.run(&mut state.server, script, clock, charge(self.is_bucket))
    }

    /// Charges a call. Returns `None` if it is rejected.
    pub(super) fn acquire(&self, state: &mut State) -> Option<()> {
        let birth = u64::from(state.used.calls);
        let call = ScriptCall::acquire(CHARGED, birth);
        let (outcome, Receipt { birth, place }) = self.run(state, call);
        outcome.is_allowed().then(|| {
            state.running.push(state.admissions.len());
            state.admit(CHARGED, state.time, (birth, place), false);
        })
    }

    /// Another process takes all units that are left. Returns `None` if there are none.
    pub(super) fn take_rest(&self, state: &mut State) -> Option<()> {
        let rest = self.run(state, ScriptCall::new("peek", 1)).0.remaining;
        if rest == 0 {
            return None;
        }
        let (outcome, _) = self.run(state, ScriptCall::new("take", rest));
        outcome.is_allowed().then(|| state.admit(rest, state.time, (0, 0), true))
    }

    /// Another process reserves a moment. Returns `None` if it is too far ahead.
    pub(super) fn reserve(&self, state: &mut State, units: u64) -> Option<()> {
        let (clock, charge) = (state.server_clock(), charge(self.is_bucket));
        let script = &Scripts::of(self.fault).all;
        // The births of other calls are smaller.
        let birth = 100 + u64::from(state.used.reserved);
        let call = (units, birth, LONGEST_WAIT);
        let (outcome, receipt) = scripts::reserve(&mut state.server, script, clock, charge, call);
        outcome.is_allowed().then(|| {
            let receipt = (receipt.birth, receipt.place);
            state.admit(units, state.time + outcome.retry_us, receipt, true);
            let last = state.admissions.last_mut().expect("admitted");
            last.is_reserved = outcome.retry_us > 0;
        })
    }

    /// A process gives a reservation back, whose call has not started. If charges after it need it, its moment passes
    /// unused.
    pub(super) fn cancel(&self, state: &mut State, index: usize) {
        let (clock, charge) = (state.server_clock(), charge(self.is_bucket));
        let Admission { at, charged, receipt: (birth, place), .. } = state.admissions[index];
        (state.admissions[index].is_reserved, state.admissions[index].used) = (false, 0);
        let reservation =
            Reservation { receipt: Receipt { birth, place }, moment: clock - state.time + at };
        let back = Correction::give_back(Charged::Reserved(reservation), charged);
        let script = &Scripts::of(self.fault).correct;
        scripts::correct(&mut state.server, script, clock, charge, &[(back, 0)]);
    }

    /// Executes a request of corrections.
    pub(super) fn settle(&self, state: &mut State, due: &[Queued]) {
        let clock = state.server_clock();
        let entry = |queued: &Queued| match queued.change {
            Change::Settle { correction, block_us, .. } => (correction, block_us),
            Change::Reset { .. } => (Correction::default(), RESET),
        };
        let corrections: Vec<_> = due.iter().map(entry).collect();
        let (script, charge) = (&Scripts::of(self.fault).correct, charge(self.is_bucket));
        if !corrections.is_empty() {
            scripts::correct(&mut state.server, script, clock, charge, &corrections);
        }
        for queued in due {
            match queued.change {
                Change::Reset { .. } => {
                    state.begin_anew();
                    state.own_resets += 1;
                }
                Change::Settle { admission, block_us, .. } => {
                    state.was_passed |= queued.own_resets < state.own_resets;
                    state.admissions[admission].is_settled |= block_us == 0;
                    if block_us > 0 {
                        state.blocked_until = state.blocked_until.max(state.time + block_us);
                    }
                }
            }
        }
    }

    pub(super) fn reset(&self, state: &mut State) {
        // `UNLINK` removes the one key of the count.
        state.server.flush();
        state.begin_anew();
    }

    /// Returns whether the limit allows what was used since the last reset.
    pub(super) fn is_within(&self, state: &State) -> bool {
        let own = state.admissions.iter().filter(|it| it.generation == state.generation);
        let used: Vec<_> = own.map(|it| (it.at, it.used)).collect();
        let terms = &charge(self.is_bucket).terms;
        if self.is_bucket {
            judge::is_within(terms, &used, |_, _| 0)
        } else {
            judge::is_within_window(terms, &used)
        }
    }

    /// Returns whether the server counts what was charged or, once a charge is corrected, used. A bucket may count
    /// more, and a window does not.
    pub(super) fn counts_what_was_used(&self, state: &State) -> bool {
        let counted = self.run(&mut state.clone(), ScriptCall::MEASURE).0.remaining;
        if self.is_bucket {
            return true;
        }
        let period = charge(false).terms.period_us();
        let counts =
            |it: &&Admission| it.generation == state.generation && it.at + period > state.time;
        let own = state.admissions.iter().filter(counts);
        counted == own.map(|it| if it.is_settled { it.used } else { it.charged }).sum::<u64>()
    }
}

impl State {
    /// A reset: what was charged before does not count.
    fn begin_anew(&mut self) {
        self.generation += 1;
        self.blocked_until = 0;
    }

    fn admit(&mut self, units: u64, at: u64, receipt: (u64, u64), is_settled: bool) {
        self.was_admitted_while_blocked |= self.time < self.blocked_until;
        let generation = self.generation;
        let used = if is_settled { units } else { 0 };
        self.admissions.push(Admission {
            at,
            generation,
            charged: units,
            used,
            ended: is_settled,
            is_settled,
            is_lost: false,
            receipt,
            is_reserved: false,
        });
    }
}
