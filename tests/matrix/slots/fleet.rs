//! The processes whose calls hold slots, and what they have written.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, OnError, RateLimiter};
use support::history::machine_time;

use super::{BEFORE, BOUND, HOLDS, KEYS, LONG, LONGEST_HOLD, MOST, SHORT_MILLIS, SLOTS, TOTAL};
use crate::process::Process;

/// A call that has run: when it certainly held its units.
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

    /// Does so with the URL of each process.
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
        let started = Instant::now();
        let is_long = |run: &Run| {
            let age = Duration::from_micros(run.until - run.from).as_millis() as u64;
            // It has written a moment ago that it runs.
            age > 3 * SHORT_MILLIS && machine_time() - run.until < 50_000
        };
        loop {
            let mut history = History::default();
            history.read(number, &self.members[number].lines());
            if history.runs.iter().any(is_long) {
                return;
            }
            assert!(started.elapsed() < 20 * LONG, "process {number} has no long call");
            sleep(Duration::from_millis(10));
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
            let (word, numbers) = line.split_once(' ').expect("a word");
            let numbers: Result<Vec<u64>, _> = numbers.split(' ').map(str::parse).collect();
            match (word, &numbers.expect("numbers")[..]) {
                ("run", &[id, key, units, asked, from]) => {
                    let (units, until) = (units, from);
                    runs.insert(id, Run { process, key, units, asked, from, until });
                }
                // A call that was dropped at once has written no start.
                ("alive", &[id, at]) => {
                    runs.entry(id).and_modify(|run| run.until = at);
                }
                ("lost", &[_]) => self.lost += 1,
                ("counts", &[asked, rejected]) => self.maybe_charged += asked - rejected,
                _ => panic!("{line}"),
            }
        }
        // A call without a second line may have held its units for no time.
        self.runs.extend(runs.into_values().filter(|run| run.until > run.from));
    }

    /// Asserts that nothing is held once all processes have ended, and that calls which were rejected were not charged.
    pub(super) fn assert_nothing_is_left(&self, url: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
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

/// Returns the times before and after what is done.
pub(super) fn between(done: impl FnOnce()) -> (u64, u64) {
    let begin = machine_time();
    done();
    (begin, machine_time())
}
