//! Runs the examples as programs, and tests that they do what their first comments say.

mod programs;
mod servers;

use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Returns the command that runs an example, without the environment of this process.
fn example(name: &str) -> Command {
    let mut command = support::example::example(name);
    command.env("NO_COLOR", "1");
    for variable in [REDIS, "HOST", "PORT", "TRUSTED_PROXIES", "API_URL"] {
        command.env_remove(variable);
    }
    command
}

const REDIS: &str = "RATELIMIT_REDIS_URL";

/// Returns the command that runs an example with a variable.
fn with(name: &str, variable: &str, value: &str) -> Command {
    let mut command = example(name);
    command.env(variable, value);
    command
}

/// An example that serves until it is dropped.
struct ExampleServer {
    /// `cargo run` replaces itself by the program, so this is the process of the server.
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
}

impl ExampleServer {
    fn start(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let address = lines.find_map(|line| {
            Some(line.expect("UTF-8").strip_prefix("listening on http://")?.parse())
        });
        let address = address.expect("the server prints its address").expect("an address");
        Self { process, lines, address }
    }

    /// Stops the server, and returns the limits of the rejections that it has logged, each with the hash of its key.
    fn rejections(mut self) -> Vec<String> {
        self.process.kill().expect("the server runs");
        let lines = self.lines.by_ref().map(|line| line.expect("UTF-8"));
        let rejection = |line: String| {
            let (_, fields) = line.split_once(" ratelimit_runtime::report: rejected limit=\"")?;
            let (limit, rest) = fields.split_once("\" key=").expect("the limit and the key");
            let (hash, _) = rest.split_once(" retry_after=").expect("the key and the wait");
            assert!(hash.len() == 16 && u64::from_str_radix(hash, 16).is_ok(), "{line}");
            Some(limit.to_owned())
        };
        lines.filter_map(rejection).collect()
    }
}

impl Drop for ExampleServer {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
