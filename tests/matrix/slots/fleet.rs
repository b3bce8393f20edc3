//! The processes whose calls hold slots, what they have written, and the promises that it is judged by.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, OnError, RateLimiter};
use support::history::machine_time;
use support::judge::{HolderJudge, Judge};
use support::runtime;

use super::{
    BEFORE, BOUND, HOLDS, KEYS, LONG, LONGEST_HOLD, MOST, PACE, SHORT_MILLIS, SLOTS, TOTAL,
};
use crate::fleet::{Process, numbers};

#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) process: usize,
    pub(super) key: u64,
    pub(super) units: u64,
    /// When its request began.
    pub(super) asked: u64,
    pub(super) from: u64,
    pub(super) until: u64,
}

#[derive(Default)]
pub(super) struct History {
    pub(super) runs: Vec<Run>,
    /// How many calls have lost their units while they ran.
    pub(super) lost: usize,
    /// The calls, except those that were certainly rejected and those of a process that was killed.
    maybe_charged: u64,
    pub(super) is_rated: bool,
}

pub(super) struct SlotFleet {
    members: Vec<Process>,
    is_rated: bool,
    killed: Option<usize>,
}

impl SlotFleet {
    /// Starts processes, and waits until one has a call that runs for longer than the fault.
    pub(super) fn start(url: &str, long: usize) -> Self {
        Self::start_each(|_| url.to_owned(), false, long)
    }

    pub(super) fn start_each(url: impl Fn(usize) -> String, is_rated: bool, long: usize) -> Self {
        let start = |number: usize| {
            Process::start(&["slots", &url(number), &number.to_string(), &is_rated.to_string()])
        };
        let members = (0..HOLDS.len()).map(start).collect();
        let fleet = Self { members, is_rated, killed: None };
        sleep(BEFORE);
        fleet.wait_for_long_call(long);
        fleet
    }

    pub(super) fn signal(&mut self, number: usize, signal: &str) {
        self.members[number].signal(signal);
        if signal == "-KILL" {
            self.killed = Some(number);
        }
    }

    fn wait_for_long_call(&self, number: usize) {
        let is_long = |run: &Run| {
            let age = Duration::from_micros(run.until - run.from).as_millis() as u64;
            // It has written a moment ago that it runs.
            age > 3 * SHORT_MILLIS && machine_time() - run.until < 50_000
        };
        let (started, mut runs) = (Instant::now(), Vec::new());
        while !runs.iter().any(is_long) {
            assert!(started.elapsed() < 20 * LONG, "process {number} has no long call");
            sleep(Duration::from_millis(10));
            let mut history = History::default();
            history.read(number, &self.members[number].lines());
            runs = history.runs;
        }
    }

    /// Lets the fleet call for some time, stops it, and returns what it has written.
    pub(super) fn finish(self, after: Duration) -> History {
        sleep(after);
        let mut history = History { is_rated: self.is_rated, ..History::default() };
        for (number, (succeeded, lines)) in Process::finish(self.members).into_iter().enumerate() {
            assert_eq!(succeeded, self.killed != Some(number), "process {number}");
            history.read(number, &lines);
        }
        history
    }
}

impl History {
    fn read(&mut self, process: usize, lines: &[String]) {
        let mut runs: HashMap<u64, Run> = HashMap::new();
        for line in lines {
            let (word, text) = line.split_once(' ').expect("a word");
            match word {
                "run" => {
                    let [id, key, units, asked, from] = numbers(text);
                    runs.insert(id, Run { process, key, units, asked, from, until: from });
                }
                "alive" => {
                    let [id, at] = numbers(text);
                    // A call that was dropped at once has written no start.
                    runs.entry(id).and_modify(|run| run.until = at);
                }
                "lost" => self.lost += 1,
                "counts" => {
                    let [asked, rejected] = numbers(text);
                    self.maybe_charged += asked - rejected;
                }
                _ => panic!("{line}"),
            }
        }
        // A call without a second line may have held its units for no time.
        self.runs.extend(runs.into_values().filter(|run| run.until > run.from));
    }

    /// Asserts that nothing is held once all processes have ended, and that calls which were rejected were not charged.
    pub(super) fn assert_nothing_is_left(&self, url: &str) {
        runtime().block_on(async {
            let limiter = RateLimiter::builder().redis(url).on_error(OnError::Deny);
            let limiter = limiter.deadline(LONGEST_HOLD).build().expect("valid");
            let left = async |limit: &Limit, key: u64| {
                limiter.peek(limit, key, 0).await.expect("a reply").remaining
            };
            let (slots, started) = (SLOTS.hold(LONGEST_HOLD), Instant::now());
            for key in 0..KEYS {
                while left(&slots, key).await < MOST {
                    assert!(started.elapsed() < LONGEST_HOLD + BOUND, "key {key} is not free");
                    sleep(Duration::from_millis(50));
                }
            }
            if self.is_rated {
                let charged = async |key| TOTAL.threshold() - left(&TOTAL, key).await;
                let charged = charged(0).await + charged(1).await;
                let (ran, maybe) = (self.runs.len() as u64, self.maybe_charged);
                let is_right = ran <= charged && charged <= maybe;
                assert!(is_right, "{ran} calls ran, {charged} are charged, {maybe} may be");
            }
        });
    }
}

pub(crate) struct Played {
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
        let changes = runs.flat_map(|run| {
            let units = run.units.cast_signed();
            [(run.from.max(since), units), (run.until, -units)]
        });
        let (mut changes, mut held, mut most): (Vec<_>, _, _) = (changes.collect(), 0, 0);
        // An end at the time of a start comes first.
        changes.sort_unstable();
        for (_, change) in changes {
            held += change;
            most = held.max(most);
        }
        most
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
                Step::Ends(index) => judge.ended(ids[index], at),
                Step::Forgets => judge.lost_memory(at),
                Step::Stated(process) => judge.stated(process, at),
            }
        }
        judge
    }
}

/// Returns the judge of the rate beside the slots, for the calls of a key.
fn judge_rate(runs: &[Run]) -> Judge {
    let mut runs = runs.to_vec();
    runs.sort_unstable_by_key(|run| run.from);
    let mut judge = Judge::new(&PACE, None);
    for run in runs {
        judge.admitted_between(&PACE, (run.asked, run.from), 1);
    }
    judge
}
