//! The examples do what their head comments say, as the programs that they are.

mod grpc;
mod programs;
mod servers;
mod wrong_settings;

use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};

/// An example, to be started. It has all features, as the tests have that `tests/run` runs, so that
/// nothing is compiled twice.
fn example(name: &str) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--all-features", "--example", name]).env("NO_COLOR", "1");
    for variable in ["RATELIMIT_REDIS_URL", "HOST", "PORT", "TRUSTED_PROXIES", "API_URL"] {
        command.env_remove(variable);
    }
    command
}

/// What an example says until it ends well.
fn output(mut command: Command) -> String {
    let output = command.output().expect("cargo runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Why an example ends otherwise.
fn complaint(mut command: Command) -> String {
    let output = command.output().expect("cargo runs");
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{text}");
    text
}

/// An example that serves until it is dropped.
struct Running {
    /// `cargo run` becomes the program that it runs, so this is the server.
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("cargo runs");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let address = loop {
            let line = lines.next().expect("it says where it listens").expect("UTF-8");
            if let Some(address) = line.strip_prefix("listening on http://") {
                break address.parse().expect("an address");
            }
        };
        Self { process, lines, address }
    }

    /// Ends it, and gives the rejections that it has logged: the limit, the hash of the key, the wait.
    fn rejections(mut self) -> Vec<(String, String, String)> {
        self.process.kill().expect("it still runs");
        let lines = self.lines.by_ref().map(|line| line.expect("UTF-8"));
        let field = |line: &str, name| {
            let (_, field) = line.split_once(name)?;
            Some(field.split(' ').next()?.trim_matches('"').to_owned())
        };
        let rejection = |line: String| {
            // A cost that is never admitted is rejected in other words.
            let (_, fields) = line.split_once("DEBUG ratelimit_runtime::report: rejected")?;
            let field = |name| field(fields, name).unwrap_or_else(|| panic!("{name} in {line}"));
            Some((field(" limit="), field(" key="), field(" retry_after=")))
        };
        lines.filter_map(rejection).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
