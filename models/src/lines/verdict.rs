//! Whether a state is right: by its admissions, and by what follows without faults.

use super::play::{Call, End, Play, TICK, VALIDITY};
use super::{Action, FORGOTTEN, LOSS, OVER};
use crate::algorithm::Op;
use crate::reply::Source;
use crate::store::Calls;

impl Play {
    /// Plays on without faults until all calls have ended and all units were given back.
    pub(super) fn finish(&mut self) {
        for _ in 0..12 {
            for _ in 0..40 {
                if self.pending.is_some() && self.reply.is_none() {
                    self.step(Action::Execute);
                } else if self.reply.is_some() {
                    self.step(Action::Deliver);
                } else if !self.returns.is_empty() {
                    self.step(Action::GiveBack);
                } else if let Some(due) = (0..self.calls.len()).find(|index| self.is_due(*index)) {
                    self.step(Action::Poll(due));
                } else {
                    break;
                }
            }
            let waits = |call: &Call| call.end.is_none();
            if !self.calls.iter().any(waits) && !self.line.holds_units() {
                return;
            }
            self.step(Action::Tick);
            let now = self.now().local;
            let is_late = |call: &Call| {
                call.end.is_none() && now > call.deadline + (VALIDITY + TICK).as_micros() as u64
            };
            if self.calls.iter().any(is_late) {
                self.mistakes.push(FORGOTTEN);
            }
        }
        self.mistakes.push(LOSS);
    }

    /// Checks the admissions: those in any time, and units that no one has.
    pub(super) fn judge(&mut self) {
        let mut times: Vec<u64> = self.taken_elsewhere.clone();
        times.extend(self.calls.iter().filter_map(|call| match call.end {
            Some(End::Admitted(at)) => Some(at),
            _ => None,
        }));
        times.sort_unstable();
        // A call takes its grant up to a deadline after its moment.
        let rest = if self.resets == 0 { VALIDITY.as_micros() as u64 } else { u64::MAX / 2 };
        for (first, from) in times.iter().enumerate() {
            for (last, to) in times.iter().enumerate().skip(first) {
                let units = (last - first + 1) as u64;
                let admitted = 1 + (to - from + rest) / 1_000_000;
                if units > admitted {
                    self.mistakes.push(OVER);
                }
            }
        }
        let is_admitted = |call: &&Call| matches!(call.end, Some(End::Admitted(_)));
        let used = self.calls.iter().filter(is_admitted).count();
        if used + self.given_back > self.charged {
            self.mistakes.push(LOSS);
        }
        // Without lost replies and resets, the count has what was taken in the last second, and no more.
        if self.lost == 0 && self.resets == 0 && !self.model.is_bucket {
            let now = self.now().local;
            let in_window = times.iter().filter(|at| **at + 1_000_000 > now).count();
            let charges = vec![self.charge.with_cost(0)].into();
            let measured = self.store.apply(&Calls::one(Op::Measure, charges), Source::Redis);
            let used = measured.outcomes.first().map_or(0, |outcome| outcome.remaining);
            // The charge can be older than the turn of its call.
            if used as usize > in_window {
                self.mistakes.push(LOSS);
            }
        }
    }
}
