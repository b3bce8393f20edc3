//! A process that forks after its limiter has started the background thread. The child has no such thread: it starts
//! its own. It makes a runtime of its own, too, because threads of a runtime do not survive a fork.

use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::exit;
use std::time::Duration;

use fork::{Fork, fork, waitpid};
use ratelimit_runtime::{Limit, OnError, RateLimiter, Rejection, Rules, StoreError, rate_limit};
use support::limits::HOUR;
use support::runtime;
use support::wait::block_until;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::{PATIENCE, ProcessTest, limiter, share_rule};

pub(crate) const TESTS: [ProcessTest; 6] = [
    ("a_child_admits_calls_that_wait", admits_waiting_calls),
    ("a_child_settles_its_charges", settles),
    ("a_child_follows_rules_and_has_a_name", follows_rules),
    ("a_child_closes_its_breaker", closes_its_breaker),
    ("a_child_does_not_spend_the_units_that_its_parent_has_leased", leases),
    ("a_settlement_of_the_parent_does_not_change_a_count_of_the_child", draws_births),
];

const LIMIT: Limit = Limit::sliding("forks", 1_000, HOUR);

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

fn admits_waiting_calls(url: &str) {
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

fn settles(url: &str) {
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

fn follows_rules(url: &str) {
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

fn closes_its_breaker(url: &str) {
    let limiter = limiter(url);
    let pause = || {
        let client = redis::Client::open(url).expect("a URL");
        let mut connection = client.get_connection().expect("a connection");
        redis::cmd("CLIENT").arg("PAUSE").arg(2_000).exec(&mut connection).expect("CLIENT PAUSE");
    };
    let opens = |runtime: &Runtime| {
        block_until("the breaker opens", || {
            let result = runtime.block_on(limiter.check(&LIMIT, (), 1));
            matches!(
                result,
                Err(Rejection::Unavailable { error: StoreError::CircuitOpen { .. }, .. })
            )
        });
    };
    pause();
    opens(&runtime());
    // The parent probes.
    let child = || {
        let runtime = runtime();
        pause();
        opens(&runtime);
        block_until("Redis decides again", || {
            runtime.block_on(limiter.check(&LIMIT, (), 1)).is_ok()
        });
    };
    in_child(child, || {});
}

fn leases(url: &str) {
    const LEASED: Limit = Limit::sliding("leased", 100, HOUR).lease(50);
    let limiter = limiter(url);
    let calls = |count| {
        run(async {
            let mut admitted = 0;
            for _ in 0..count {
                admitted += usize::from(limiter.admit(&LEASED, (), 1).await);
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
