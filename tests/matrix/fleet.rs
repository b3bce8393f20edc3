//! The processes that call while a fault begins and ends, and what became of their calls.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write as _, stdin};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use ratelimit_runtime::{OnError, RateLimiter, Rejection, Rules, StoreError};
use support::history::{AdmittedCall, machine_time};
use support::runtime;

use super::{BEFORE, DEADLINE, LIMIT};

const PROCESSES: usize = 3;
const TASKS: usize = 16;

/// How long a starved process stands still at a time: longer than the deadline.
const STOPPED: Duration = Duration::from_millis(200);

/// The longest time in which a process may go without a decision.
const LONGEST_OUTAGE: Duration = Duration::from_secs(90);

#[derive(Default)]
pub(crate) struct Report {
    pub(crate) admitted: Vec<AdmittedCall>,
    /// When the server lost all counts: the times before and after.
    pub(crate) emptied: Option<(u64, u64)>,
    pub(crate) calls: u64,
    pub(crate) undecided: u64,
    /// Undecided calls that may have been charged.
    pub(crate) unanswered: u64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) longest: Duration,
    /// The time from the end of the fault until all processes decide again; `None` if all calls were decided.
    pub(crate) back: Option<Duration>,
}

pub(crate) struct Fleet(Vec<Process>);

impl Fleet {
    pub(crate) fn start(url: &str) -> Self {
        Self::start_with(&[url])
    }

    /// Starts processes with arguments: a URL, and `rules` if they read rules from Redis.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let arguments = [&["process"], arguments].concat();
        let fleet = Self((0..PROCESSES).map(|_| Process::start(&arguments)).collect());
        sleep(BEFORE);
        fleet
    }

    /// Gives the processes a tenth of the time, as a machine with too many of them does.
    pub(crate) fn starve(&self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.0.iter().for_each(|process| process.signal("-STOP"));
            sleep(STOPPED);
            self.0.iter().for_each(|process| process.signal("-CONT"));
            sleep(STOPPED / 10);
        }
    }

    /// Lets the fleet run for a while after the end of the fault, stops it, and returns its report.
    pub(crate) fn finish(self, after: Duration) -> Report {
        let end = machine_time();
        sleep(after);
        let mut report = Report::default();
        let (mut waits, mut back) = (Vec::new(), 0);
        for (has_succeeded, lines) in Process::finish(self.0) {
            assert!(has_succeeded, "a process panicked");
            let [undecided, unanswered, last_error, first_after] = numbers(&lines[0]);
            report.undecided += undecided;
            report.unanswered += unanswered;
            assert!(last_error == 0 || first_after > 0, "a process makes no decisions any more");
            back = back.max(first_after.saturating_sub(end));
            report.admitted.extend(AdmittedCall::parse_all(&lines.join("\n")));
            waits.extend(lines[1..].iter().filter_map(|line| line.parse::<u64>().ok()));
        }
        waits.sort_unstable();
        report.calls = waits.len() as u64;
        let quantile = |thousandths: usize| {
            Duration::from_micros(waits[(waits.len() - 1) * thousandths / 1_000])
        };
        (report.p50, report.p99, report.longest) = (quantile(500), quantile(990), quantile(1_000));
        report.back = (report.undecided > 0).then_some(Duration::from_micros(back));
        report
    }
}

/// The results of the calls of one process. Times are microseconds.
#[derive(Default)]
struct Tally {
    admitted: Vec<AdmittedCall>,
    undecided: u64,
    unanswered: u64,
    /// The times of the last undecided call, and of the first decided call after it.
    last_error: u64,
    first_after: u64,
    waits: Vec<u64>,
    has_rejected: bool,
}

/// Calls from many tasks until standard input contains a line and the limit is reached, and prints the results.
pub(crate) fn member(url: &str, has_rules: bool) {
    let started = Instant::now();
    let limiter = RateLimiter::builder().redis(url).deadline(DEADLINE).on_error(OnError::Deny);
    let limiter = if has_rules { limiter.rules(Rules::redis()) } else { limiter };
    let limiter = limiter.build().expect("valid");
    let tally = Rc::new(RefCell::new(Tally::default()));
    let tasks = tokio::task::LocalSet::new();
    runtime().block_on(tasks.run_until(async {
        while limiter.check(&LIMIT, "key", 0).await.is_err() {}
        let stopping = ready();
        let calls = (0..TASKS).map(|_| {
            let (limiter, tally) = (limiter.clone(), Rc::clone(&tally));
            let stopping = Arc::clone(&stopping);
            tokio::task::spawn_local(async move {
                // On a busy machine, decisions can resume late, and a process makes few calls: it continues until
                // the limit is reached.
                while !stopping.load(Relaxed)
                    || (!tally.borrow().is_complete() && started.elapsed() < LONGEST_OUTAGE)
                {
                    let start = machine_time();
                    let result = limiter.check(&LIMIT, "key", 1).await;
                    tally.borrow_mut().record(start, &result.map(drop));
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.expect("no panic");
        }
    }));
    let Tally { admitted, undecided, unanswered, last_error, first_after, waits, .. } =
        &*tally.borrow();
    println!("{undecided} {unanswered} {last_error} {first_after}");
    for wait in waits {
        println!("{wait}");
    }
    for call in admitted {
        println!("{call}");
    }
}

impl Tally {
    /// Returns whether the limit has rejected a call, and a call was decided since the last undecided call.
    fn is_complete(&self) -> bool {
        self.has_rejected && (self.last_error == 0 || self.first_after > 0)
    }

    /// Records the result of a call that began at the time `start` of the machine.
    fn record(&mut self, start: u64, result: &Result<(), Rejection>) {
        self.waits.push(machine_time() - start);
        match result {
            Err(Rejection::Unavailable { error, .. }) => {
                self.undecided += 1;
                let is_unanswered =
                    matches!(error, StoreError::Timeout { .. } | StoreError::Connection { .. });
                self.unanswered += u64::from(is_unanswered);
                (self.last_error, self.first_after) = (machine_time(), 0);
                return;
            }
            Ok(()) => self.admitted.push(AdmittedCall::since(start, &LIMIT, 1)),
            Err(_) => self.has_rejected = true,
        }
        if self.last_error > 0 && self.first_after == 0 {
            self.first_after = machine_time();
        }
    }
}

// The processes of both fleets: each runs this program, writes lines, and stops at a line.

/// A process, and the lines that it has written since it was ready.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
}

impl Process {
    /// Starts this program with arguments, and waits until it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let written = Arc::clone(&lines);
        let reader = thread::spawn(move || {
            let mut line = String::new();
            // The last line of a process that was killed can be cut off.
            while output.read_line(&mut line).is_ok() && line.pop() == Some('\n') {
                written.lock().expect("no panic").push(std::mem::take(&mut line));
            }
        });
        Self { child, lines, reader }
    }

    pub(crate) fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().expect("no panic")
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Stops processes. Returns whether each has succeeded, and its lines.
    pub(crate) fn finish(mut processes: Vec<Self>) -> Vec<(bool, Vec<String>)> {
        for process in &mut processes {
            // A process that was killed reads nothing.
            let _ = process.child.stdin.take().expect("piped").write_all(b"stop\n");
        }
        let finish = |mut process: Self| {
            let status = process.child.wait().expect("its end");
            process.reader.join().expect("no panic");
            (status.success(), std::mem::take(&mut *process.lines.lock().expect("no panic")))
        };
        processes.into_iter().map(finish).collect()
    }
}

pub(crate) fn signal(process: u32, name: &str) {
    let status = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "{name}");
}

/// In a process of a fleet: tells it that it is ready, and returns whether it has to stop.
pub(crate) fn ready() -> Arc<AtomicBool> {
    let stopping = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopping);
    thread::spawn(move || {
        let _ = stdin().read_line(&mut String::new());
        stop.store(true, Relaxed);
    });
    println!("ready");
    stopping
}

pub(crate) fn numbers<const N: usize>(line: &str) -> [u64; N] {
    let numbers = line.split(' ').map(|number| number.parse().expect("a number"));
    numbers.collect::<Vec<_>>().try_into().expect("all numbers")
}
