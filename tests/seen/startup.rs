//! The events of a process from its start to its first decision.

use std::process::Command;
use std::time::Duration;

use ratelimit_runtime::{Limit, OnError, current};
use support::server::Server;

const LIMIT: Limit = Limit::sliding("start", 5, Duration::from_secs(60)).on_error(OnError::Deny);

/// The process-wide limiter is built once, from the environment. So the other tests run this test in a process of
/// its own, with an environment in which it can fail.
#[tokio::test]
async fn a_process_decides_according_to_its_environment() {
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_ansi(false);
    let _guard = tracing::subscriber::set_default(log.without_time().finish());
    let decided = current().expect("valid settings").check(&LIMIT, "key", 1).await;
    assert!(decided.is_ok(), "{decided:?}");
}

/// Runs a process with this Redis URL, and returns its events without their modules.
fn events_of_a_process(url: &str) -> Vec<String> {
    let mut process = Command::new(std::env::current_exe().expect("this program has a path"));
    let test = "startup::a_process_decides_according_to_its_environment";
    process.args([test, "--exact", "--nocapture"]);
    let output = process.env("RATELIMIT_REDIS_URL", url).output().expect("a process");
    let log = String::from_utf8(output.stdout).expect("UTF-8");
    let ours = log.lines().filter_map(|line| line.split_once("ratelimit_runtime::"));
    let events = ours.filter_map(|(level, event)| {
        Some(format!("{} {}", level.trim(), event.split_once(": ")?.1))
    });
    events.collect()
}

const WILL_COUNT: &str = "INFO rate limits will be counted in the Redis at RATELIMIT_REDIS_URL; the first \
                          decision connects to it store=Redis";

#[test]
fn a_process_reports_that_it_has_connected() {
    let server = Server::start();
    let node = format!("127.0.0.1:{}", server.port());
    assert_eq!(
        events_of_a_process(&server.url),
        [WILL_COUNT.to_owned(), format!("INFO connected to Redis node={node}")]
    );
}

#[test]
fn a_process_that_cannot_use_its_redis_does_not_report_a_connection() {
    let server = Server::start();
    let wrong_password = server.url.replace("redis://", "redis://ann:wrong@");
    for url in ["redis://127.0.0.1:1", &wrong_password] {
        let events = events_of_a_process(url);
        let [first, warnings @ ..] = &events[..] else { panic!("no events") };
        assert_eq!(first, WILL_COUNT);
        let expected = [
            "WARN Redis receives no requests until it replies to a probe",
            "WARN Redis does not decide",
        ];
        assert_eq!(warnings.len(), expected.len(), "{warnings:#?}");
        for (warning, expected) in warnings.iter().zip(expected) {
            assert!(warning.starts_with(expected), "{warnings:#?}");
        }
    }
}

#[test]
fn a_process_without_redis_reports_that_it_counts_locally() {
    let here = "INFO rate limits are counted in this process: RATELIMIT_REDIS_URL is not set store=Embedded";
    assert_eq!(events_of_a_process(""), [here]);
}
