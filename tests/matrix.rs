//! Faults of Redis and of the network, under load from several processes.
//!
//! A fleet calls one limit while a fault begins and ends. With `on_error = deny`, the fleet must not admit more than
//! the threshold, each call has to end in time, and decisions have to resume without help. The program prints the
//! table of "Running it in production".
//!
//! Without arguments or with the names of faults, this program is the test. With the argument `process`, it is one
//! process of the fleet.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use ratelimit_runtime::{Limit, OnError, RateLimiter, Rejection, StoreError};
use redis::Connection;
use redis_test::server::RedisServer;
use support::cluster::Cluster;
use support::proxy::{Network, Proxy};
use support::sentinel::Sentinels;
use support::server::{Server, is_replicated};

const PROCESSES: usize = 3;
const TASKS: usize = 16;
const THRESHOLD: u32 = 12_000;
const DEADLINE: Duration = Duration::from_millis(100);
const LIMIT: Limit = Limit::sliding("matrix", THRESHOLD, Duration::from_secs(3600));
const KEY: &str = "ratelimit:sliding:1h:matrix{key}";

/// The longest time in which a process may go without a decision.
const LONGEST_OUTAGE: Duration = Duration::from_secs(90);

/// The time before the fault.
const BEFORE: Duration = Duration::from_millis(500);

/// The length of the fault.
const FAULT: Duration = Duration::from_secs(1);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [process, url] if process == "process" => member(url),
        filters => test(filters),
    }
}

/// A fault.
struct Fault {
    name: &'static str,
    /// The largest cost that may be admitted.
    most: u32,
    /// Whether the fault loses no reply, so that the admitted cost reaches the threshold.
    exact: bool,
    /// Runs a fleet under the fault.
    run: fn() -> Report,
}

const FAULTS: [Fault; 11] = [
    Fault { name: "killed and started again", most: THRESHOLD, exact: false, run: killed },
    Fault { name: "stopped (SIGSTOP)", most: THRESHOLD, exact: false, run: stopped },
    Fault { name: "paused (CLIENT PAUSE)", most: THRESHOLD, exact: false, run: paused },
    Fault { name: "network cut", most: THRESHOLD, exact: false, run: cut },
    Fault { name: "replies lost", most: THRESHOLD, exact: false, run: replies_lost },
    Fault { name: "SCRIPT FLUSH, again and again", most: THRESHOLD, exact: true, run: flushed },
    // The deleted count starts from zero.
    Fault { name: "FLUSHALL, once", most: 2 * THRESHOLD, exact: true, run: emptied },
    Fault { name: "out of memory", most: THRESHOLD, exact: true, run: full },
    // Replication is asynchronous, so a replica can lack some counts.
    Fault {
        name: "primary lost (Sentinel)",
        most: MOST_AFTER_FAILOVER,
        exact: false,
        run: failed_over,
    },
    Fault { name: "node lost (cluster)", most: MOST_AFTER_FAILOVER, exact: false, run: node_lost },
    Fault { name: "slot moved (cluster)", most: THRESHOLD, exact: true, run: resharded },
];

/// A fiftieth above the threshold: calls that a lost primary had admitted before its replica received them.
const MOST_AFTER_FAILOVER: u32 = THRESHOLD + THRESHOLD / 50;

/// Runs the faults whose names contain one of the words, as `cargo test -- <word>` does. Without a word it runs
/// all of them.
fn test(arguments: &[String]) {
    // A number belongs to `--test-threads`.
    let is_word = |word: &&String| !word.starts_with('-') && word.parse::<u32>().is_err();
    let words: Vec<_> = arguments.iter().filter(is_word).collect();
    let is_selected = |fault: &&Fault| {
        words.is_empty() || words.iter().any(|word| fault.name.contains(word.as_str()))
    };
    let faults: Vec<_> = FAULTS.iter().filter(is_selected).collect();
    println!("\nrunning {} tests", faults.len());
    let mut table = String::from(
        "| fault | admitted of 12,000 | calls | not decided | p50 | p99 | longest | back after |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for &&Fault { name, most, exact, run } in &faults {
        let report = run();
        let Report { admitted, calls, undecided, unanswered, p50, p99, longest, back } = report;
        assert!(admitted <= most, "{name}: {admitted} admitted");
        // A call without a reply may have been charged. A busy machine can cause such calls under any
        // fault: for example, a cluster node that syncs its configuration to disk, as it does whenever a hash slot
        // moves, sends no replies meanwhile.
        assert!(
            !exact || admitted + unanswered >= THRESHOLD,
            "{name}: only {admitted} admitted, {unanswered} unanswered"
        );
        // No call hangs. The table shows how long the calls take.
        assert!(longest < DEADLINE * 10, "{name}: a call took {longest:?}");
        let back = back.map_or("never away".to_owned(), |back| format!("{} ms", back.as_millis()));
        let (p50, p99) = (p50.as_micros(), p99.as_secs_f64() * 1_000.0);
        let longest = longest.as_millis();
        let row = writeln!(
            table,
            "| {name} | {admitted} | {calls} | {undecided} | {p50} µs | {p99:.1} ms | {longest} ms | {back} |"
        );
        row.expect("a text");
        if exact && unanswered > 0 {
            // These calls count for "back after" as well.
            println!("{name}: the machine was busy, {unanswered} calls got no reply in time");
        }
        println!("test matrix::{name} ... ok");
    }
    println!("\n{table}\ntest result: ok. {} passed; 0 failed; 0 ignored\n", faults.len());
}

/// The result of a fault.
#[derive(Default)]
struct Report {
    admitted: u32,
    calls: u64,
    undecided: u64,
    /// Undecided calls that may have been charged.
    unanswered: u32,
    p50: Duration,
    p99: Duration,
    longest: Duration,
    /// The time from the end of the fault until all processes decide again; `None` if all calls were decided.
    back: Option<Duration>,
}

/// A server that loses no writes when it is killed.
struct DurableServer {
    server: RedisServer,
    folder: tempfile::TempDir,
    port: u16,
}

impl DurableServer {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = support::port::free();
        let server = Self::spawn(port, folder.path());
        let durable = Self { server, folder, port };
        durable.connection();
        durable
    }

    fn spawn(port: u16, folder: &std::path::Path) -> RedisServer {
        let address = redis::ConnectionAddr::Tcp("127.0.0.1".to_owned(), port);
        let keep = ["--appendonly", "yes", "--appendfsync", "always", "--dir"];
        RedisServer::new_with_addr_tls_modules_and_spawner(
            address,
            None,
            None,
            false,
            None,
            &[],
            |command| command.args(keep).arg(folder).spawn().expect("redis-server"),
        )
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn connection(&self) -> Connection {
        let client = redis::Client::open(self.url()).expect("an address");
        loop {
            if let Ok(connection) = client.get_connection() {
                return connection;
            }
            sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: &str) {
        let mut kill = Command::new("kill");
        kill.arg(signal).arg(self.server.process.id().to_string());
        assert!(kill.status().expect("kill").success());
    }
}

fn killed() -> Report {
    let mut durable = DurableServer::start();
    let fleet = Fleet::start(&durable.url());
    sleep(BEFORE);
    durable.server.stop();
    sleep(FAULT);
    durable.server = DurableServer::spawn(durable.port, durable.folder.path());
    durable.connection();
    fleet.finish(Duration::from_millis(2_500))
}

fn stopped() -> Report {
    let durable = DurableServer::start();
    let fleet = Fleet::start(&durable.url());
    sleep(BEFORE);
    durable.signal("-STOP");
    sleep(FAULT);
    durable.signal("-CONT");
    fleet.finish(Duration::from_millis(2_500))
}

fn paused() -> Report {
    let server = Server::start();
    let fleet = Fleet::start(&server.url);
    sleep(BEFORE);
    let mut pause = redis::cmd("CLIENT");
    pause.arg("PAUSE").arg(FAULT.as_millis() as u64);
    pause.exec(&mut server.connection()).expect("CLIENT PAUSE");
    sleep(FAULT);
    fleet.finish(Duration::from_millis(2_500))
}

fn cut() -> Report {
    through_proxy(Network::Cut)
}

fn replies_lost() -> Report {
    through_proxy(Network::RepliesLost)
}

fn through_proxy(network: Network) -> Report {
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let fleet = Fleet::start(&format!("redis://127.0.0.1:{}", proxy.port));
    sleep(BEFORE);
    proxy.set(network);
    sleep(FAULT);
    proxy.set(Network::Up);
    fleet.finish(Duration::from_millis(2_500))
}

fn flushed() -> Report {
    let server = Server::start();
    let fleet = Fleet::start(&server.url);
    let mut connection = server.connection();
    let start = Instant::now();
    while start.elapsed() < BEFORE + FAULT {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).expect("SCRIPT FLUSH");
        sleep(Duration::from_millis(3));
    }
    fleet.finish(Duration::from_millis(2_500))
}

fn emptied() -> Report {
    let server = Server::start();
    let fleet = Fleet::start(&server.url);
    sleep(BEFORE);
    redis::cmd("FLUSHALL").exec(&mut server.connection()).expect("FLUSHALL");
    fleet.finish(Duration::from_millis(3_500))
}

fn full() -> Report {
    let server = Server::start();
    let fleet = Fleet::start(&server.url);
    let mut connection = server.connection();
    let mut limit = |bytes: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(bytes).exec(&mut connection).expect("CONFIG SET");
    };
    sleep(BEFORE);
    // Less than an empty server uses.
    limit("1");
    sleep(FAULT);
    limit("0");
    fleet.finish(Duration::from_millis(3_500))
}

fn failed_over() -> Report {
    let mut sentinels = Sentinels::start();
    let fleet = Fleet::start(&sentinels.url("master0"));
    sleep(BEFORE);
    // The replica has all writes up to this moment. Later ones can be lost.
    sentinels.wait_for_replication();
    sentinels.kill_primary();
    fleet.finish(Duration::from_secs(5))
}

fn node_lost() -> Report {
    let mut cluster = Cluster::start(1);
    let owner = cluster.owner(cluster.slot(KEY));
    // The limiter finds the cluster through a node that stays up.
    let seed = cluster.port((owner + 1) % cluster.len());
    let fleet = Fleet::start(&format!("redis+cluster://127.0.0.1:{seed}"));
    sleep(BEFORE);
    while !is_replicated(&mut cluster.connection(owner)) {}
    cluster.kill(owner);
    fleet.finish(Duration::from_secs(11))
}

fn resharded() -> Report {
    let cluster = Cluster::start(0);
    let slot = cluster.slot(KEY);
    let fleet = Fleet::start(&cluster.url());
    sleep(BEFORE);
    cluster.move_slot(slot, Duration::from_millis(150));
    cluster.move_slot(slot, Duration::from_millis(150));
    fleet.finish(Duration::from_millis(3_500))
}

/// The processes that call.
struct Fleet {
    processes: Vec<Child>,
}

impl Fleet {
    fn start(url: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let process = |_| {
            let mut command = Command::new(&program);
            command.args(["process", url]).stdin(Stdio::piped()).stdout(Stdio::piped());
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

    /// Lets the fleet run for a while after the end of the fault, stops it, and returns its report.
    fn finish(self, after: Duration) -> Report {
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
            report.admitted += next() as u32;
            report.calls += next();
            report.undecided += next();
            report.unanswered += next() as u32;
            // The times of the last undecided call, and of the first decided call after it.
            let (last_error, first_after) = (next(), next());
            assert!(last_error == 0 || first_after > 0, "a process makes no decisions any more");
            back = back.max(Duration::from_micros(first_after).saturating_sub(end));
            waits.extend(lines.map(|line| line.parse::<u64>().expect("microseconds")));
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
    admitted: u64,
    undecided: u64,
    unanswered: u64,
    last_error: u64,
    first_after: u64,
    waits: Vec<u64>,
}

/// Calls from many tasks until standard input contains a line, and prints the results.
fn member(url: &str) {
    let started = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let limiter = RateLimiter::builder().redis(url).deadline(DEADLINE).on_error(OnError::Deny);
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
                // On a busy machine, decisions can resume late: a process without one continues.
                while !stopping.load(std::sync::atomic::Ordering::Relaxed)
                    || (tally.borrow().is_undecided() && started.elapsed() < LONGEST_OUTAGE)
                {
                    let start = Instant::now();
                    let result = limiter.check(&LIMIT, "key", 1).await;
                    let wait = start.elapsed().as_micros() as u64;
                    tally.borrow_mut().record(&result.map(drop), wait);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.expect("no panic");
        }
    }));
    let Tally { admitted, undecided, unanswered, last_error, first_after, waits } =
        &*tally.borrow();
    let calls = waits.len();
    let mut out =
        format!("{admitted} {calls} {undecided} {unanswered} {last_error} {first_after}\n");
    for wait in waits {
        writeln!(out, "{wait}").expect("a text");
    }
    std::io::stdout().write_all(out.as_bytes()).expect("stdout");
}

impl Tally {
    /// Returns whether no call has been decided since the last undecided call.
    fn is_undecided(&self) -> bool {
        self.last_error > 0 && self.first_after == 0
    }

    fn record(&mut self, result: &Result<(), Rejection>, wait: u64) {
        self.waits.push(wait);
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
            Ok(()) => self.admitted += 1,
            Err(_) => {}
        }
        if self.last_error > 0 && self.first_after == 0 {
            self.first_after = now;
        }
    }
}
