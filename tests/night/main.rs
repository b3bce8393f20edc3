//! The night of the guide `night.md`: a service of three processes on a real Redis, and an operator who has only
//! `operate`. The test plays each section of the guide, and compares each transcript with what the tool prints.
//!
//! Without arguments, this program is the test. With arguments, it is one process of the service.

mod page;
mod service;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::example::example;
use support::http::get;
use support::server::Server;

use crate::page::{Typed, comparable, sections};
use crate::service::{ServiceProcess, serve};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/night.md");

const PROCESSES: usize = 3;

/// How long the operator looks again until the output is that of the guide. Processes announce what they know every
/// ten seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A section of the guide: its heading, what happens before the operator types, and what the commands must have caused.
type Act = (&'static str, fn(&mut Night), fn(&Night));

const ACTS: [Act; 8] = [
    // Processes announce a limit after its first call.
    ("What do I prepare?", |night| night.call_each_process_once(), |_| {}),
    ("Redis is down. What now?", |night| night.server = None, Night::check_rules_are_in_force),
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
    ("How do I try a stricter limit?", |_| {}, Night::call_search),
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
    let headings: Vec<_> = sections.iter().map(|section| section.heading).collect();
    assert_eq!(headings, ACTS.map(|(heading, ..)| heading));

    let mut night = Night::begin();
    for (section, (_, before, after)) in sections.iter().zip(ACTS) {
        before(&mut night);
        for typed in &section.typed {
            night.check_output(typed);
        }
        after(&night);
    }
}

/// The service, its Redis, and the folder of the operator.
struct Night {
    /// None while Redis is down.
    server: Option<Server>,
    port: u16,
    url: String,
    service: Vec<ServiceProcess>,
    folder: tempfile::TempDir,
}

impl Night {
    fn begin() -> Self {
        let server = Server::start();
        let (port, url) = (server.port(), server.url.clone());
        let service = (0..PROCESSES).map(|_| ServiceProcess::start(&url)).collect();
        let folder = tempfile::tempdir().expect("a folder");
        Self { server: Some(server), port, url, service, folder }
    }

    /// Runs a command of the guide, and compares what it prints. A command that only looks runs again until the
    /// processes have announced what the guide shows.
    fn check_output(&self, typed: &Typed<'_>) {
        let started = Instant::now();
        loop {
            let output = self.output(typed.command);
            let (seen, expected) = (comparable(&output), comparable(&typed.output));
            if seen == expected {
                return;
            }
            assert!(
                typed.only_looks() && started.elapsed() < PATIENCE,
                "`{}` prints\n{output}\nand the guide shows\n{}",
                typed.command,
                typed.output
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Returns what a terminal shows after a command.
    fn output(&self, command: &str) -> String {
        let operate = example("operate");
        let folder = Path::new(operate.get_program()).parent().expect("a folder");
        let path = std::env::var("PATH").expect("a path");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec 2>&1\n{command}")]).current_dir(self.folder.path());
        shell.env("PATH", format!("{}:{path}", folder.display()));
        shell.env("RATELIMIT_REDIS_URL", &self.url).env("USER", "alice");
        shell.env_remove("KEY_PREFIX").env_remove("RUST_BACKTRACE").stdin(Stdio::null());
        String::from_utf8(shell.output().expect("a shell").stdout).expect("UTF-8")
    }

    /// Sends calls to the processes in turn, and returns how many were admitted.
    fn admitted(&self, path: &str, calls: usize) -> usize {
        let turns = self.service.iter().cycle().take(calls);
        turns.filter(|process| get(process.address, path, &[]).status == 200).count()
    }

    fn call_each_process_once(&self) {
        for path in ["/api/monitoring", "/search/monitoring"] {
            assert_eq!(self.admitted(path, PROCESSES), PROCESSES);
        }
    }

    /// The counts of `api` are in each process now, and bigshop has its 500 calls.
    fn check_rules_are_in_force(&self) {
        assert_eq!(self.admitted("/api/bigshop", 150), 150, "more than 100 in the code");
    }

    /// Starts an empty Redis, and waits until each process counts there.
    fn start_redis(&mut self) {
        let server = Server::start_on(self.port);
        for (index, process) in self.service.iter().enumerate() {
            let customer = format!("back-{index}");
            let is_counted = || server.ttls().iter().any(|(key, _)| key.contains(&customer));
            while !is_counted() {
                let status = get(process.address, &format!("/api/{customer}"), &[]).status;
                assert!(status == 200 || status == 429, "{status}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        self.server = Some(server);
    }

    fn call_search(&self) {
        for (customer, calls) in [("acme", 12), ("bigshop", 7), ("zoe", 5)] {
            let admitted = self.admitted(&format!("/search/{customer}"), calls);
            assert_eq!(admitted, calls, "a trial rejects nothing");
        }
    }
}
