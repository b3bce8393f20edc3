//! What was played under a fault, and the promises that it is judged by.

use std::time::Duration;

use support::history::AdmittedCall;
use support::judge::{HolderJudge, Judge};

use super::fleet::{History, Run};
use super::{BOUND, HOLDS, KEYS, LONGEST_HOLD, MOST, PACE};

pub(super) struct Played {
    pub(super) history: History,
    pub(super) fault: (u64, u64),
    pub(super) forgot: Option<Forgot>,
    /// How long after the fault the slots of the dead are free.
    pub(super) free_after: Duration,
}

/// A loss of what a server knew.
#[derive(Clone, Copy)]
pub(super) struct Forgot {
    pub(super) at: (u64, u64),
    /// The key that another server knows.
    pub(super) remembers: Option<u64>,
}

/// What the judge of holders learns of, in the order in which it learns things of one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Ends(usize),
    Forgets,
    Stated(usize),
    Begins(usize),
}

impl Played {
    /// Returns how many calls have begun to run before, during and after the fault.
    pub(super) fn calls(&self) -> [usize; 3] {
        let (begin, end) = self.fault;
        let mut calls = [0; 3];
        for run in &self.history.runs {
            calls[usize::from(run.from > begin) + usize::from(run.from > end)] += 1;
        }
        calls
    }

    /// Returns the most units that calls of a key have certainly held at the same time, at `since` or later.
    pub(super) fn most(&self, key: u64, since: u64) -> i64 {
        let runs = self.history.runs.iter().filter(|run| run.key == key && run.until > since);
        let mut changes: Vec<_> = runs
            .flat_map(|run| {
                let units = run.units.cast_signed();
                [(run.from.max(since), units), (run.until, -units)]
            })
            .collect();
        // An end at the time of a start comes first.
        changes.sort_unstable();
        let mut held = 0;
        let held = changes.into_iter().map(|(_, change)| {
            held += change;
            held
        });
        held.max().unwrap_or(0)
    }

    pub(super) fn assert_promises(&self, name: &str) {
        // Long calls can have all slots during a fault.
        let [before, _, after] = self.calls();
        assert!(before > 0 && after > 0, "{name}: {before} calls before, {after} after");
        let free_from = self.fault.1 + (self.free_after + BOUND).as_micros() as u64;
        for key in 0..KEYS {
            let runs: Vec<_> =
                self.history.runs.iter().filter(|run| run.key == key).copied().collect();
            let breaches = self.judge(key, &runs).breaches();
            assert!(breaches.is_empty(), "{name}: key {key}: {breaches:?}");
            let breaches = judge_rate(&runs).breaches();
            assert!(!self.history.is_rated || breaches.is_empty(), "{name}: {breaches:?}");
            let most = self.most(key, free_from);
            assert!(most >= MOST.cast_signed(), "{name}: key {key}: {most} slots are in use again");
        }
    }

    fn judge(&self, key: u64, runs: &[Run]) -> HolderJudge {
        let forgot = self.forgot.filter(|forgot| forgot.remembers != Some(key));
        let mut steps = Vec::new();
        for (index, run) in runs.iter().enumerate() {
            steps.extend([(run.from, Step::Begins(index)), (run.until, Step::Ends(index))]);
        }
        // A process whose calls run has stated them within its hold.
        let known = |process: usize, forgot: u64| forgot + HOLDS[process].as_micros() as u64;
        if let Some(Forgot { at: (_, end), .. }) = forgot {
            steps.push((end, Step::Forgets));
            steps.extend(
                (0..HOLDS.len()).map(|process| (known(process, end), Step::Stated(process))),
            );
        }
        let forgot = forgot.map_or(u64::MAX, |forgot| forgot.at.1);
        steps.sort_unstable();
        let (mut judge, mut ids) = (HolderJudge::default(), vec![None; runs.len()]);
        for (at, step) in steps {
            match step {
                Step::Begins(index) => {
                    let Run { process, units, asked, from, .. } = runs[index];
                    let all_known = forgot.saturating_add(LONGEST_HOLD.as_micros() as u64);
                    ids[index] = Some(if from <= forgot || asked > all_known {
                        judge.admitted(process, (from, from), units, MOST)
                    } else if asked > forgot {
                        // It may have been admitted before the server knew all calls.
                        judge.admitted(process, (asked, from), units, MOST)
                    } else {
                        judge.forgotten(process, at, units)
                    });
                }
                Step::Ends(index) => judge.ended(ids[index].expect("it has begun"), at),
                Step::Forgets => judge.lost_memory(at),
                Step::Stated(process) => judge.stated(process, at),
            }
        }
        judge
    }
}

/// Returns the judge of the rate beside the slots, for the calls of a key.
fn judge_rate(runs: &[Run]) -> Judge {
    let mut calls: Vec<_> = runs
        .iter()
        .map(|run| AdmittedCall {
            starts: (run.asked, run.from),
            charged: 1,
            used: 1,
            threshold: PACE.threshold(),
            capacity: PACE.capacity(),
        })
        .collect();
    calls.sort_unstable_by_key(|call| call.starts.1);
    let mut judge = Judge::new(&PACE, None);
    judge.admitted_all(&calls);
    judge
}
