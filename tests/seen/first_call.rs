//! The first limited call of a process, if the subscriber of events and the recorder of metrics call limited functions.

use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use ratelimit_runtime::{Rejection, rate_limit};
use support::log::Log;

#[rate_limit(period = "1h", threshold = 100, scope = "process")]
fn limited() -> Result<(), Rejection> {
    Ok(())
}

/// Calls a limited function for each metric that is described.
struct LimitedRecorder;

impl Recorder for LimitedRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        let _ = limited();
    }

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        let _ = limited();
    }

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        let _ = limited();
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// The process-wide limiter is built once. So the other tests run this test in a process of its own, with an
/// environment in which it can fail.
#[test]
fn the_first_call_of_a_process_ends() {
    let (ended, end) = channel();
    thread::spawn(move || {
        let log = Log::default().writer();
        let limited_log = move || {
            let _ = limited();
            log()
        };
        let subscriber = tracing_subscriber::fmt().with_writer(limited_log).finish();
        let result = tracing::subscriber::with_default(subscriber, || {
            metrics::with_local_recorder(&LimitedRecorder, limited)
        });
        ended.send(result.is_ok()).expect("the test waits");
    });
    let is_admitted = end.recv_timeout(Duration::from_secs(20)).expect("the call ends");
    println!("admitted: {is_admitted}");
}

/// Runs a process with this Redis URL, and returns whether its first call is admitted.
fn is_first_call_admitted(url: &str) -> bool {
    let mut process = Command::new(std::env::current_exe().expect("this program has a path"));
    process.args(["first_call::the_first_call_of_a_process_ends", "--exact", "--nocapture"]);
    let output = process.env("RATELIMIT_REDIS_URL", url).output().expect("a process");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{log}");
    text.contains("admitted: true")
}

#[test]
fn a_subscriber_and_a_recorder_may_call_limited_functions_at_the_first_call() {
    assert!(is_first_call_admitted(""));
    assert!(is_first_call_admitted("redis://127.0.0.1:1"));
}

#[test]
fn a_subscriber_may_call_limited_functions_when_no_limiter_can_be_built() {
    assert!(is_first_call_admitted("not a URL"));
}
