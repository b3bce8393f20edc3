//! The processes that call while a fault begins and ends, and what became of their calls.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use ratelimit_runtime::{OnError, RateLimiter, Rejection, Rules, StoreError};
use support::history::{AdmittedCall, machine_time};

use crate::{DEADLINE, LIMIT};

const PROCESSES: usize = 3;
const TASKS: usize = 16;

/// How long a starved process stands still at a time: longer than the deadline.
const STOPPED: Duration = Duration::from_millis(200);

/// The longest time in which a process may go without a decision.
const LONGEST_OUTAGE: Duration = Duration::from_secs(90);

/// The result of a fault.
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

/// The processes that call.
pub(crate) struct Fleet {
    processes: Vec<Child>,
}

impl Fleet {
    pub(crate) fn start(url: &str) -> Self {
        Self::start_with(&["process", url])
    }

    /// Starts processes that read rules from Redis.
    pub(crate) fn start_with_rules(url: &str) -> Self {
        Self::start_with(&["process", url, "rules"])
    }

    fn start_with(arguments: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let process = |_| {
            let mut command = Command::new(&program);
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut process = command.spawn().expect("a process");
            // The process prints this line after its first decision.
            let mut line = String::new();
            let stdout = process.stdout.as_mut().expect("piped");
            BufReader::new(stdout).read_line(&mut line).expect("a line");
            assert_eq!(line, "ready\n");
            process
        };
        Self { processes: (0..PROCESSES).map(process).collect() }
    }

    /// Gives the processes a tenth of the time, as a machine with too many of them does.
    pub(crate) fn starve(&self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.signal("-STOP");
            sleep(STOPPED);
            self.signal("-CONT");
            sleep(STOPPED / 10);
        }
    }

    fn signal(&self, signal: &str) {
        let pids = self.processes.iter().map(|process| process.id().to_string());
        let status = Command::new("kill").arg(signal).args(pids).status();
        assert!(status.is_ok_and(|status| status.success()), "{signal}");
    }

    /// Lets the fleet run for a while after the end of the fault, stops it, and returns its report.
    pub(crate) fn finish(self, after: Duration) -> Report {
        let end = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        sleep(after);
        let mut report = Report::default();
        let (mut waits, mut back) = (Vec::new(), Duration::ZERO);
        for mut process in self.processes {
            let _ = process.stdin.take().expect("piped").write_all(b"stop\n");
            let output = process.wait_with_output().expect("its output");
            assert!(output.status.success(), "a process panicked");
            let text = String::from_utf8(output.stdout).expect("text");
            let mut lines = text.lines();
            let mut numbers = lines.next().expect("counts").split(' ');
            let mut next = || numbers.next().expect("a count").parse::<u64>().expect("a number");
            report.calls += next();
            report.undecided += next();
            report.unanswered += next();
            // The times of the last undecided call, and of the first decided call after it.
            let (last_error, first_after) = (next(), next());
            assert!(last_error == 0 || first_after > 0, "a process makes no decisions any more");
            back = back.max(Duration::from_micros(first_after).saturating_sub(end));
            for line in lines {
                match line.parse::<AdmittedCall>() {
                    Ok(call) => report.admitted.push(call),
                    Err(_) => waits.push(line.parse::<u64>().expect("microseconds")),
                }
            }
        }
        waits.sort_unstable();
        let quantile = |thousandths: usize| {
            Duration::from_micros(waits[(waits.len() - 1) * thousandths / 1_000])
        };
        (report.p50, report.p99, report.longest) = (quantile(500), quantile(990), quantile(1_000));
        report.back = (report.undecided > 0).then_some(back);
        report
    }
}

/// The results of the calls of one process. Times are microseconds.
#[derive(Default)]
struct Tally {
    admitted: Vec<AdmittedCall>,
    undecided: u64,
    unanswered: u64,
    last_error: u64,
    first_after: u64,
    waits: Vec<u64>,
    has_rejected: bool,
}

/// Calls from many tasks until standard input contains a line and the limit is reached, and prints the results.
pub(crate) fn member(url: &str, has_rules: bool) {
    let started = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let limiter = RateLimiter::builder().redis(url).deadline(DEADLINE).on_error(OnError::Deny);
    let limiter = if has_rules { limiter.rules(Rules::redis()) } else { limiter };
    let limiter = limiter.build().expect("valid");
    let tally = std::rc::Rc::new(std::cell::RefCell::new(Tally::default()));
    let tasks = tokio::task::LocalSet::new();
    let stopping = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stop = std::sync::Arc::clone(&stopping);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    runtime.expect("a runtime").block_on(tasks.run_until(async {
        while limiter.check(&LIMIT, "key", 0).await.is_err() {}
        println!("ready");
        let calls = (0..TASKS).map(|_| {
            let (limiter, tally, stopping) = (limiter.clone(), tally.clone(), stopping.clone());
            tokio::task::spawn_local(async move {
                // On a busy machine, decisions can resume late, and a process makes few calls: it continues until
                // the limit is reached.
                while !stopping.load(std::sync::atomic::Ordering::Relaxed)
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
    let calls = waits.len();
    let mut out = format!("{calls} {undecided} {unanswered} {last_error} {first_after}\n");
    for wait in waits {
        writeln!(out, "{wait}").expect("a text");
    }
    for call in admitted {
        writeln!(out, "{call}").expect("a text");
    }
    std::io::stdout().write_all(out.as_bytes()).expect("stdout");
}

impl Tally {
    /// Returns whether the limit has rejected a call, and a call was decided since the last undecided call.
    fn is_complete(&self) -> bool {
        self.has_rejected && (self.last_error == 0 || self.first_after > 0)
    }

    /// Records the result of a call that began at the time `start` of the machine.
    fn record(&mut self, start: u64, result: &Result<(), Rejection>) {
        self.waits.push(machine_time() - start);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let now = now.as_micros() as u64;
        match result {
            Err(Rejection::Unavailable { error, .. }) => {
                self.undecided += 1;
                let is_unanswered =
                    matches!(error, StoreError::Timeout { .. } | StoreError::Connection { .. });
                self.unanswered += u64::from(is_unanswered);
                (self.last_error, self.first_after) = (now, 0);
                return;
            }
            Ok(()) => self.admitted.push(AdmittedCall::since(start, &LIMIT, 1)),
            Err(_) => self.has_rejected = true,
        }
        if self.last_error > 0 && self.first_after == 0 {
            self.first_after = now;
        }
    }
}
