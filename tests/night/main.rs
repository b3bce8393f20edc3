//! The night of the guide `night.md`: a service of three processes on a real Redis, and an operator who has only the
//! command `ratelimit`. The test plays each section of the guide, and compares each transcript with what that prints.
//!
//! Without arguments, this program is the test. With arguments, it is one process of the service.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::{Router, extract, routing};
use ratelimit_runtime::{RateLimiter, Rejection, Rules, rate_limit, set_global};
use support::example::ratelimit;
use support::http::get;
use support::server::Server;
use support::wait::block_until;
use tokio::net::TcpListener;

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/night.md");

const PROCESSES: usize = 3;

/// How long the operator looks again until the output is that of the guide. Processes announce what they know every
/// ten seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A section of the guide: its heading, what happens before the operator types, and what the commands must have caused.
type Act = (&'static str, fn(&mut Night), fn(&Night));

const ACTS: [Act; 8] = [
    // Processes announce a limit after its first call.
    (
        "What do I prepare?",
        |night| {
            for path in ["/api/monitoring", "/search/monitoring"] {
                assert_eq!(night.admitted(path, PROCESSES), PROCESSES);
            }
        },
        |_| {},
    ),
    ("Redis is down. What now?", |night| night.server.stop(), Night::check_rules_are_in_force),
    ("Redis is back, and empty. What now?", Night::start_redis, Night::check_rules_are_in_force),
    (
        "A customer floods the service. Who?",
        |night| assert_eq!(night.admitted("/api/mallory", 600), 100),
        |night| {
            assert_eq!(night.admitted("/api/mallory", PROCESSES), 0);
            assert_eq!(night.admitted("/api/zoe", PROCESSES), PROCESSES, "no other customer");
        },
    ),
    (
        "A customer must be let through. How?",
        |night| assert_eq!(night.admitted("/api/acme", 101), 100),
        |night| assert_eq!(night.admitted("/api/acme", 300), 300),
    ),
    (
        "How do I try a stricter limit?",
        |_| {},
        |night| {
            for (path, calls) in [("/search/acme", 12), ("/search/bigshop", 7), ("/search/zoe", 5)]
            {
                assert_eq!(night.admitted(path, calls), calls, "a trial rejects nothing");
            }
        },
    ),
    (
        "Whom would it reject?",
        |_| {},
        |night| {
            assert_eq!(night.admitted("/search/acme", PROCESSES), 0);
            assert_eq!(night.admitted("/search/carol", 6), 5);
        },
    ),
    ("What has changed?", |_| {}, |_| {}),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, url] = &arguments[..]
        && role == "service"
    {
        return serve(url);
    }
    // `cargo test -- <filter>` passes a filter for other tests.
    println!("\nrunning 1 test");
    play();
    println!("test night ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n");
}

fn play() {
    let text = fs::read_to_string(GUIDE).expect("the guide");
    let sections = sections(&text);
    let headings: Vec<_> = sections.iter().map(|(heading, _)| *heading).collect();
    assert_eq!(headings, ACTS.map(|(heading, ..)| heading));

    let mut night = Night::begin();
    for ((_, typed), (_, before, after)) in sections.iter().zip(ACTS) {
        before(&mut night);
        for (command, output) in typed {
            night.check_output(command, output);
        }
        after(&night);
    }
}

/// The service, its Redis, and the folder of the operator.
struct Night {
    server: Server,
    service: Vec<ServiceProcess>,
    folder: tempfile::TempDir,
}

impl Night {
    fn begin() -> Self {
        let server = Server::start();
        let service = (0..PROCESSES).map(|_| ServiceProcess::start(&server.url)).collect();
        Self { server, service, folder: tempfile::tempdir().expect("a folder") }
    }

    /// Runs a command of the guide, and compares what it prints. A command that only looks runs again until the
    /// processes have announced what the guide shows.
    fn check_output(&self, command: &str, expected: &str) {
        let looks = ["list", "top", "find", "peek", "get", "log"];
        let only_looks = command.split(' ').nth(1).is_some_and(|word| looks.contains(&word));
        let (started, mut seen) = (Instant::now(), self.output(command));
        while comparable(&seen) != comparable(expected) {
            assert!(
                only_looks && started.elapsed() < PATIENCE,
                "`{command}` prints\n{seen}\nand the guide shows\n{expected}"
            );
            std::thread::sleep(Duration::from_millis(200));
            seen = self.output(command);
        }
    }

    /// Returns what a terminal shows after a command.
    fn output(&self, command: &str) -> String {
        let program = ratelimit();
        let folder = Path::new(program.get_program()).parent().expect("a folder");
        let path = std::env::var("PATH").expect("a path");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec 2>&1\n{command}")]).current_dir(self.folder.path());
        shell.env("PATH", format!("{}:{path}", folder.display()));
        shell.env("RATELIMIT_REDIS_URL", &self.server.url);
        shell.env("USER", "alice").env_remove("KEY_PREFIX").env_remove("RUST_BACKTRACE");
        shell.stdin(Stdio::null());
        String::from_utf8(shell.output().expect("a shell").stdout).expect("UTF-8")
    }

    /// Sends calls to the processes in turn, and returns how many were admitted.
    fn admitted(&self, path: &str, calls: usize) -> usize {
        let turns = self.service.iter().cycle().take(calls);
        turns.filter(|process| get(process.address, path, &[]).status == 200).count()
    }

    /// The counts of `api` are in each process now, and bigshop has its 500 calls.
    fn check_rules_are_in_force(&self) {
        assert_eq!(self.admitted("/api/bigshop", 150), 150, "more than 100 in the code");
    }

    /// Starts an empty Redis, and waits until each process counts there.
    fn start_redis(&mut self) {
        self.server = Server::start_on(self.server.port());
        for (index, process) in self.service.iter().enumerate() {
            let customer = format!("back-{index}");
            block_until("the process counts in Redis", || {
                let status = get(process.address, &format!("/api/{customer}"), &[]).status;
                assert!(status == 200 || status == 429, "{status}");
                self.server.ttls().iter().any(|(key, _)| key.contains(&customer))
            });
        }
    }
}

// The transcripts of the guide: what the operator types, and what comes back.

/// A section: its heading, and each command with the lines below it.
type Section<'a> = (&'a str, Vec<(&'a str, String)>);

/// Returns the sections that have transcripts: blocks of the language `console`, in which `$ ` is before a command.
fn sections(page: &str) -> Vec<Section<'_>> {
    let (mut sections, mut is_transcript) = (Vec::<Section<'_>>::new(), false);
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            sections.push((heading, Vec::new()));
        } else if line.starts_with("```") {
            is_transcript = line == "```console";
        } else if is_transcript {
            let (_, typed) = sections.last_mut().expect("a heading above the transcript");
            if let Some(command) = line.strip_prefix("$ ") {
                typed.push((command, String::new()));
            } else {
                let (_, output) = typed.last_mut().expect("a command above the output");
                output.extend([line, "\n"]);
            }
        }
    }
    sections.retain(|(_, typed)| !typed.is_empty());
    sections
}

/// Returns an output without what differs from night to night: times, moments, names of processes, places in the
/// code.
fn comparable(output: &str) -> String {
    let lines = output.lines().map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        let before = |at: usize| at.checked_sub(1).map_or("", |before| words[before]);
        let compared = words.iter().enumerate().map(|(at, word)| {
            let bare = word.trim_end_matches([',', ':', '`', ';']);
            let rest = &word[bare.len()..];
            let after = words.get(at + 1).map_or("", |after| after.trim_end_matches(','));
            let shown = match bare {
                _ if before(at) == "process" => "ID",
                _ if is_duration(bare) && (before(at) == "in" || after == "ago") => "TIME",
                // Each operating system has its own number for a refused connection.
                _ if before(at) == "error" => "NUMBER",
                _ if bare.len() == 20 && bare.ends_with('Z') => "MOMENT",
                _ if bare.contains(".rs:") => "PLACE",
                _ => bare,
            };
            format!("{shown}{rest}")
        });
        compared.collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns whether a word is a duration as the tool prints it: `350ms`, `59m48s`.
fn is_duration(word: &str) -> bool {
    let units = |letter: char| "dhms".contains(letter);
    word.starts_with(|first: char| first.is_ascii_digit())
        && word.ends_with(units)
        && word.chars().all(|letter| letter.is_ascii_digit() || units(letter))
}

// The service of the night: what it needs so that an operator can change its limits.

#[rate_limit(name = "api", period = "1h", threshold = 100, key = customer)]
async fn api(extract::Path(customer): extract::Path<String>) -> Result<String, Rejection> {
    Ok(format!("hello {customer}\n"))
}

#[rate_limit(name = "search", period = "1h", threshold = 50, key = customer)]
async fn search(extract::Path(customer): extract::Path<String>) -> Result<String, Rejection> {
    Ok(format!("nothing found for {customer}\n"))
}

#[tokio::main]
async fn serve(url: &str) {
    // Counts and rules are in Redis, and operators may see the names of customers.
    let builder = RateLimiter::builder().redis(url).rules(Rules::redis()).log_keys(true);
    let limiter = builder.build().expect("valid");
    limiter.ping().await.expect("ready");
    set_global(limiter).expect("the first limiter");
    let router = Router::new()
        .route("/api/{customer}", routing::get(api))
        .route("/search/{customer}", routing::get(search));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    println!("{}", listener.local_addr().expect("an address"));
    axum::serve(listener, router).await.expect("it serves");
}

/// A process of the service, which runs until it is dropped.
struct ServiceProcess {
    process: Child,
    address: SocketAddr,
}

impl ServiceProcess {
    fn start(url: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.args(["service", url]).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a process");
        let mut line = String::new();
        let output = process.stdout.as_mut().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("its address");
        Self { process, address: line.trim().parse().expect("an address") }
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
