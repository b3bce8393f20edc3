//! A process that has no file descriptor left when the background thread starts, so that the thread ends at once.

use std::fs::File;
use std::time::Duration;

use ratelimit_runtime::{Limit, OnError, RateLimiter, Rules, Source};
use support::log::Log;
use support::runtime;
use support::wait::block_until;

use crate::{ProcessTest, limiter, share_rule};

pub(crate) const TESTS: [ProcessTest; 5] = [
    ("a_dropped_limiter_leaves_no_thread_and_no_connection", leaves_nothing),
    ("slots_are_stated_although_the_thread_could_not_start", states_slots),
    ("a_breaker_closes_although_its_first_probe_could_not_start", closes_its_breaker),
    ("a_call_whose_line_cannot_be_driven_is_decided_by_on_error", decides_waiting_calls),
    ("rules_are_read_although_the_thread_could_not_start", reads_rules),
];

const LIMIT: Limit = Limit::sliding("processes", 1_000, Duration::from_secs(3600));

/// Takes all descriptors, and gives them back when it is dropped.
struct NoDescriptors {
    _files: Vec<File>,
    log: Log,
}

impl NoDescriptors {
    fn take() -> Self {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt().with_writer(log.writer()).with_ansi(false);
        tracing::subscriber::set_global_default(subscriber.finish()).expect("the first one");
        let files = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        Self { _files: files, log }
    }

    /// Returns the descriptors once the background thread could not start.
    fn give_back(self) {
        let has_failed = || self.log.text().contains("cannot create the tokio runtime");
        block_until("the thread cannot start", has_failed);
    }
}

/// Each limiter corrects a charge and holds a slot: its thread has something to do.
fn leaves_nothing(url: &str) {
    let runtime = runtime();
    let entries = |folder: &str| std::fs::read_dir(folder).expect("Linux").flatten();
    let threads = || {
        let tasks = entries("/proc/self/task").map(|task| task.path().join("comm"));
        let names = tasks.filter_map(|path| std::fs::read_to_string(path).ok());
        names.filter(|name| name.trim() == "ratelimit").count()
    };
    let sockets = || {
        let files =
            entries("/proc/self/fd").filter_map(|file| std::fs::read_link(file.path()).ok());
        files.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    };
    // Those of the runtime.
    let before = sockets();
    for round in 0..20 {
        let limiter = RateLimiter::builder().redis(url).build().expect("valid");
        runtime.block_on(async {
            limiter.acquire(&LIMIT, round, 1).await.expect("admitted").settle(0);
            limiter.credit(&LIMIT, round, 1).await.expect("credited");
            let slot = limiter.acquire(&Limit::in_flight("slots", 1), round, 1).await;
            assert_eq!(threads(), 1, "one thread while a limiter lives");
            drop(limiter);
            drop(slot.expect("admitted"));
        });
        block_until("a thread is left", || threads() == 0);
    }
    drop(runtime);
    block_until("a connection is left", || sockets() <= before);
}

/// No descriptor is left when the first slot is taken.
fn states_slots(url: &str) {
    let runtime = runtime();
    let limiter = limiter(url);
    let slots = Limit::in_flight("slots", 1).hold(Duration::from_secs(1));
    let acquire = || runtime.block_on(limiter.acquire(&slots, (), 1));
    let none = NoDescriptors::take();
    acquire().expect_err("no thread");
    none.give_back();
    let mut permit = None;
    block_until("Redis decides again", || {
        permit = acquire().ok();
        permit.is_some()
    });
    let permit = permit.expect("admitted");
    std::thread::sleep(Duration::from_secs(3));
    assert!(!permit.is_lost());
    acquire().expect_err("busy");
    drop(permit);
    block_until("the slot is free", || acquire().is_ok());
}

fn closes_its_breaker(url: &str) {
    let runtime = runtime();
    let limiter = limiter(url);
    let check = || runtime.block_on(limiter.check(&LIMIT, (), 1));
    let none = NoDescriptors::take();
    check().expect_err("no descriptor for a connection");
    check().expect_err("the breaker is open");
    none.give_back();
    block_until("Redis decides again", || check().is_ok());
}

fn decides_waiting_calls(url: &str) {
    let runtime = runtime();
    let limiter = RateLimiter::builder().redis(url).build().expect("valid");
    let limit = LIMIT.wait(Duration::from_secs(3600));
    let _none = NoDescriptors::take();
    for _ in 0..3 {
        let decision = runtime.block_on(limiter.check(&limit, (), 1)).expect("admitted");
        assert_eq!(decision.source, Source::Fallback);
    }
    let denied = limit.on_error(OnError::Deny);
    runtime.block_on(limiter.check(&denied, (), 1)).expect_err("no thread, and no fallback");
}

fn reads_rules(url: &str) {
    let runtime = runtime();
    // It lives on, so that it gives no descriptor back.
    let writer = limiter(url);
    runtime.block_on(share_rule(&writer, LIMIT.name(), 3));
    let none = NoDescriptors::take();
    let reader = RateLimiter::builder().redis(url).rules(Rules::redis()).build().expect("valid");
    none.give_back();
    block_until("the rules are in force", || {
        let _ = runtime.block_on(reader.peek(&LIMIT, (), 1));
        !reader.rules().is_empty()
    });
}
