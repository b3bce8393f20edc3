//! The processes whose calls hold slots, and what they have written.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, OnError, RateLimiter};
use support::history::machine_time;

use super::{BOUND, HOLDS, KEYS, LONG, LONGEST_HOLD, MOST, SHORT_MILLIS, SLOTS, TOTAL};

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

/// What the processes have written.
#[derive(Default)]
pub(super) struct History {
    pub(super) runs: Vec<Run>,
    /// How many calls have lost their units while they ran.
    pub(super) lost: usize,
    /// The calls, except those that were certainly rejected and those of a process that was killed.
    maybe_charged: u64,
    pub(super) is_rated: bool,
}

/// The processes that call.
pub(super) struct SlotFleet {
    members: Vec<MemberProcess>,
    is_rated: bool,
}

struct MemberProcess {
    process: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
    is_killed: bool,
}

impl SlotFleet {
    pub(super) fn start(url: &str) -> Self {
        Self::start_each(|_| url.to_owned(), false)
    }

    /// Starts processes with the URL of each, and waits until all of them call.
    pub(super) fn start_each(url: impl Fn(usize) -> String, is_rated: bool) -> Self {
        let start = |number| MemberProcess::start(&url(number), number, is_rated);
        Self { members: (0..HOLDS.len()).map(start).collect(), is_rated }
    }

    pub(super) fn signal(&mut self, number: usize, signal: &str) {
        let member = &mut self.members[number];
        let pid = member.process.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status();
        assert!(status.is_ok_and(|status| status.success()), "{signal}");
        member.is_killed |= signal == "-KILL";
    }

    /// Waits until a process has a call that runs for longer than the fault.
    pub(super) fn wait_for_long_call(&self, number: usize) {
        let (started, lines) = (Instant::now(), &self.members[number].lines);
        let is_long = |run: &Run| {
            let age = Duration::from_micros(run.until - run.from).as_millis() as u64;
            // It has written a moment ago that it runs.
            age > 3 * SHORT_MILLIS && machine_time() - run.until < 50_000
        };
        loop {
            let mut history = History::default();
            history.read(number, &lines.lock().unwrap_or_else(PoisonError::into_inner));
            if history.runs.iter().any(is_long) {
                return;
            }
            assert!(started.elapsed() < 20 * LONG, "process {number} has no long call");
            sleep(Duration::from_millis(10));
        }
    }

    /// Lets the fleet call for some time, stops it, and returns what it has written.
    pub(super) fn finish(mut self, after: Duration) -> History {
        sleep(after);
        for MemberProcess { process, .. } in &mut self.members {
            // A process that was killed reads nothing.
            let _ = process.stdin.take().expect("piped").write_all(b"stop\n");
        }
        let mut history = History { is_rated: self.is_rated, ..History::default() };
        for (number, member) in self.members.into_iter().enumerate() {
            let MemberProcess { mut process, lines, reader, is_killed } = member;
            reader.join().expect("no panic");
            let status = process.wait().expect("its end");
            assert_eq!(status.success(), !is_killed, "process {number}: {status}");
            history.read(number, &lines.lock().unwrap_or_else(PoisonError::into_inner));
        }
        history
    }
}

impl MemberProcess {
    fn start(url: &str, number: usize, is_rated: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.args(["slots", url, &number.to_string(), &is_rated.to_string()]);
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let mut output = BufReader::new(process.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        let lines = Arc::default();
        let reader = {
            let lines = Arc::clone(&lines);
            thread::spawn(move || read_lines(output, &lines))
        };
        Self { process, lines, reader, is_killed: false }
    }
}

/// Reads lines until a process ends. The last line of a process that was killed can be cut off.
fn read_lines(mut output: BufReader<ChildStdout>, lines: &Mutex<Vec<String>>) {
    loop {
        let mut line = String::new();
        output.read_line(&mut line).expect("text");
        if !line.ends_with('\n') {
            return;
        }
        lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
}

impl History {
    fn read(&mut self, process: usize, lines: &[String]) {
        let mut runs: HashMap<u64, Run> = HashMap::new();
        for line in lines {
            let (word, numbers) = line.trim_end().split_once(' ').expect("a word");
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
