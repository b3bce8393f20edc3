//! Processes whose background thread cannot start, or is gone: without file descriptors, and after a fork.
//!
//! Without arguments, this program is the test. With arguments, it is the process of one test. A test needs a process
//! of its own, because descriptors and forks concern the whole process.

use std::fs::File;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode, exit};
use std::time::Duration;

use fork::{Fork, fork, waitpid};
use ratelimit_runtime::{
    Limit, OnError, RateLimiter, Rejection, Rule, Rules, Source, StoreError, rate_limit,
};
use support::filter::Filter;
use support::limits::{HOUR, SECOND};
use support::log::Log;
use support::runtime;
use support::server::{Server, command};
use support::wait::block_until;
use tokio::runtime::Runtime;
use tokio::time::timeout;

const LIMIT: Limit = Limit::sliding("processes", 1_000, HOUR);

/// The time after which a process that does not come to its end has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A test: its name, and what its process does with the URL of the server.
type ProcessTest = (&'static str, fn(&str));

const TESTS: [ProcessTest; 11] = [
    ("a_dropped_limiter_leaves_no_thread_and_no_connection", leaves_nothing),
    ("slots_are_stated_although_the_thread_could_not_start", states_slots),
    ("a_breaker_closes_although_its_first_probe_could_not_start", closes_its_breaker),
    ("a_call_whose_line_cannot_be_driven_is_decided_by_on_error", decides_waiting_calls),
    ("rules_are_read_although_the_thread_could_not_start", reads_rules),
    ("a_child_admits_calls_that_wait", admits_waiting_calls_in_a_child),
    ("a_child_settles_its_charges", settles_in_a_child),
    ("a_child_follows_rules_and_has_a_name", follows_rules_in_a_child),
    ("a_child_closes_its_breaker", closes_its_breaker_in_a_child),
    ("a_child_does_not_spend_the_units_that_its_parent_has_leased", leases_before_a_fork),
    ("a_settlement_of_the_parent_does_not_change_a_count_of_the_child", draws_births),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [process, name, url] = &arguments[..]
        && process == "process"
    {
        let (_, run) = TESTS.iter().find(|(other, _)| other == name).expect("a test");
        run(url);
        return ExitCode::SUCCESS;
    }
    let filter = Filter::new(&arguments);
    let chosen: Vec<_> = TESTS.iter().filter(|(name, _)| filter.selects(name)).collect();
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

// No file descriptor is left when the background thread starts, so that the thread ends at once.

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
    let slots = Limit::in_flight("slots", 1).hold(SECOND);
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
    let limit = LIMIT.wait(HOUR);
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

// A process forks after its limiter has started the background thread. The child has no such thread: it starts its own.
// It makes a runtime of its own, too, because threads of a runtime do not survive a fork.

#[rate_limit(period = "1h", threshold = 1_000, scope = "process")]
fn annotated() -> Result<(), Rejection> {
    Ok(())
}

/// Forks. Calls `child` in the child, which then exits, and `parent` in the parent. Fails if the child fails.
fn in_child(child: impl FnOnce(), parent: impl FnOnce()) {
    let Fork::Parent(process) = fork().expect("a child") else {
        let result = catch_unwind(AssertUnwindSafe(child));
        // Without destructors: they would stop what belongs to the parent.
        exit(i32::from(result.is_err()));
    };
    parent();
    assert_eq!(waitpid(process).expect("its status"), 0, "the child has failed");
}

/// Runs a future on a new runtime, and fails if it does not end.
fn run<T>(future: impl Future<Output = T>) -> T {
    let ended = runtime().block_on(async { timeout(PATIENCE, future).await });
    ended.expect("the call ends")
}

fn admits_waiting_calls_in_a_child(url: &str) {
    const WAITING: Limit = Limit::sliding("waiting", 1, Duration::from_millis(200));
    let limiter = limiter(url);
    let limit = WAITING.wait(PATIENCE);
    let call = || {
        for _ in 0..2 {
            run(limiter.check(&limit, (), 1)).expect("admitted");
        }
    };
    call();
    in_child(call, || {});
}

fn settles_in_a_child(url: &str) {
    let limiter = limiter(url);
    let call = || {
        run(async {
            limiter.acquire(&LIMIT, (), 10).await.expect("admitted").settle(1);
            limiter.flush().await.expect("settled");
        });
    };
    call();
    in_child(call, || {});
    assert_eq!(run(limiter.peek(&LIMIT, (), 1)).expect("a decision").remaining, 998);
}

fn follows_rules_in_a_child(url: &str) {
    annotated().expect("admitted");
    let builder = RateLimiter::builder().redis(url).on_error(OnError::Deny);
    let limiter = builder.rules(Rules::redis()).build().expect("valid");
    let processes = |count: usize| {
        block_until("the processes are announced", || {
            run(limiter.operator().fleet()).is_ok_and(|fleet| fleet.len() == count)
        });
    };
    processes(1);
    let child = || {
        run(share_rule(&limiter, LIMIT.name(), 7));
        block_until("the rules are in force", || !limiter.rules().is_empty());
        processes(2);
    };
    in_child(child, || {});
}

fn closes_its_breaker_in_a_child(url: &str) {
    let limiter = limiter(url);
    let opens = |runtime: &Runtime| {
        let client = redis::Client::open(url).expect("a URL");
        let mut connection = client.get_connection().expect("a connection");
        command::<()>(&mut connection, "CLIENT PAUSE 2000");
        block_until("the breaker opens", || {
            let error = runtime.block_on(limiter.check(&LIMIT, (), 1)).err();
            let Some(Rejection::Unavailable { error, .. }) = error else { return false };
            matches!(error, StoreError::CircuitOpen { .. })
        });
    };
    opens(&runtime());
    // The parent probes.
    let child = || {
        let runtime = runtime();
        opens(&runtime);
        let check = || runtime.block_on(limiter.check(&LIMIT, (), 1));
        block_until("Redis decides again", || check().is_ok());
    };
    in_child(child, || {});
}

fn leases_before_a_fork(url: &str) {
    const LEASED: Limit = Limit::sliding("leased", 100, HOUR).lease(50);
    let limiter = limiter(url);
    let calls = |count| {
        run(async {
            let mut admitted = 0;
            for _ in 0..count {
                admitted += usize::from(limiter.check(&LEASED, (), 1).await.is_ok());
            }
            admitted
        })
    };
    // Twice: the first call is never leased alone.
    assert_eq!(calls(20), 20);
    let (mut from_child, mut to_parent) = std::io::pipe().expect("a pipe");
    let child = || {
        // A call that goes to Redis.
        run(limiter.check(&LIMIT, (), 1)).expect("admitted");
        to_parent.write_all(&[calls(100) as u8]).expect("the parent reads");
    };
    in_child(child, || {});
    let mut admitted = [0];
    from_child.read_exact(&mut admitted).expect("the child has written");
    let [of_child] = admitted.map(usize::from);
    let of_parent = 20 + calls(100);
    assert!(of_child + of_parent <= 100, "{of_child} by the child, {of_parent} by the parent");
}

fn draws_births(url: &str) {
    // Both processes charge the same window.
    const WINDOW: Limit = Limit::sliding_counter("window", 1_000, Duration::from_secs(360_000));
    let limiter = limiter(url);
    run(limiter.acquire(&WINDOW, "other", 1)).expect("admitted").keep();
    let (mut from_parent, mut to_child) = std::io::pipe().expect("a pipe");
    let child = || {
        from_parent.read_exact(&mut [0]).expect("the parent writes");
        run(limiter.acquire(&WINDOW, "shared", 10)).expect("admitted").keep();
    };
    let mut permit = None;
    let parent = || {
        permit = Some(run(limiter.acquire(&WINDOW, "shared", 10)).expect("admitted"));
        run(limiter.reset(&WINDOW, "shared")).expect("Redis replies");
        to_child.write_all(&[0]).expect("the child reads");
    };
    in_child(child, parent);
    permit.expect("the parent has it").settle(0);
    run(limiter.flush()).expect("settled");
    assert_eq!(run(limiter.peek(&WINDOW, "shared", 1)).expect("a decision").remaining, 990);
}
