//! Processes whose background thread cannot start, or is gone: without file descriptors, and after a fork.
//!
//! Without arguments, this program is the test. With arguments, it is the process of one test. A test needs a process
//! of its own, because descriptors and forks concern the whole process.

mod descriptors;
mod forks;

use std::process::{Command, ExitCode};
use std::time::Duration;

use ratelimit_runtime::{OnError, RateLimiter, Rule};
use support::filter::Filter;
use support::server::Server;

/// The time after which a process that does not come to its end has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A test: its name, and what its process does with the URL of the server.
type ProcessTest = (&'static str, fn(&str));

fn main() -> ExitCode {
    let tests: Vec<ProcessTest> = [&descriptors::TESTS[..], &forks::TESTS[..]].concat();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [process, name, url] = &arguments[..]
        && process == "process"
    {
        let (_, run) = tests.iter().find(|(other, _)| other == name).expect("a test");
        run(url);
        return ExitCode::SUCCESS;
    }
    let filter = Filter::new(&arguments);
    let chosen: Vec<_> = tests.iter().filter(|(name, _)| filter.selects(name)).collect();
    println!("\nrunning {} tests", chosen.len());
    let passed = chosen.iter().filter(|(name, _)| succeeds(name)).count();
    let failed = chosen.len() - passed;
    let (result, code) =
        if failed == 0 { ("ok", ExitCode::SUCCESS) } else { ("FAILED", ExitCode::FAILURE) };
    println!("\ntest result: {result}. {passed} passed; {failed} failed; 0 ignored\n");
    code
}

/// Runs a test in a process with few descriptors.
fn succeeds(name: &str) -> bool {
    let server = Server::start();
    let program = std::env::current_exe().expect("this program has a path");
    let script = "ulimit -n 64 && exec \"$0\" \"$@\"";
    let mut process = Command::new("sh");
    process.args(["-c", script]).arg(program).args(["process", name, &server.url]);
    let succeeds = process.status().expect("a process").success();
    println!("test processes::{name} ... {}", if succeeds { "ok" } else { "FAILED" });
    succeeds
}

fn limiter(url: &str) -> RateLimiter {
    RateLimiter::builder().redis(url).on_error(OnError::Deny).build().expect("valid")
}

async fn share_rule(limiter: &RateLimiter, limit: &str, threshold: u64) {
    let mut shared = limiter.operator().shared_rules().await.expect("read");
    shared.rules.set(limit, Rule::new().threshold(threshold)).expect("a valid rule");
    limiter.operator().share_rules(shared, "alice").await.expect("written");
}
