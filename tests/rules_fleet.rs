//! A fleet under rules that change: four processes call one key as fast as they can, while two operators change the
//! rules 1,000 times. No call is decided by half a rule, no change is lost or applied twice, and all processes obey the
//! last one within two seconds. On another key, calls are admitted as the rules raise the burst, and the judge decides
//! about the calls of all processes.
//!
//! Without arguments, this program is the test. With arguments, it is one process of the fleet, or an operator.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use ratelimit_runtime::{
    Builder, Decision, Limit, RateLimiter, Rejection, Rule, Rules, SharedRules, StoreError,
};
use support::history::{AdmittedCall, machine_time};
use support::judge::Judge;
use support::limits::{DAY, decision};
use support::server::Server;
use tokio::task::JoinSet;

const OPERATORS: [&str; 2] = ["alice", "bob"];

/// The changes of each operator.
const CHANGES: u64 = 500;

/// The threshold after the last change.
const LAST: u64 = 1 + OPERATORS.len() as u64 * CHANGES;

/// A day refills it, so every call is rejected once the bucket has a debt.
const API: Limit = Limit::token_bucket("api", 1, DAY);

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [role, url] if role == "process" => obey(url).await,
        [role, url, name] if role == "operator" => operate(url, name).await,
        // `cargo test -- <filter>` passes a filter for other tests.
        _ => {
            println!("\nrunning 1 test");
            test().await;
            println!("\ntest result: ok. 1 passed; 0 failed; 0 ignored\n");
        }
    }
}

async fn test() {
    let (server, limiter) = Server::with_limiter();
    // Leaves a debt, so that every call is rejected, with the amounts that decided it.
    limiter.acquire(&API, "key", 1).await.expect("a new key").settle(50_000);
    limiter.flush().await.expect("settled");
    let spawn = |arguments: &[&str]| {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.args(arguments).stdout(Stdio::piped()).spawn().expect("a process")
    };
    let mut processes = [(); 4].map(|()| spawn(&["process", &server.url]));
    for process in &mut processes {
        assert_eq!(line(process), "ready");
    }
    let end = |mut process: Child| {
        let at: u128 = line(&mut process).parse().expect("a time");
        let output = process.wait_with_output().expect("an end");
        assert!(output.status.success(), "a process failed");
        (at, String::from_utf8(output.stdout).expect("its calls"))
    };
    let operators = OPERATORS.map(|name| spawn(&["operator", &server.url, name]));
    let changed_at = operators.map(|operator| end(operator).0).into_iter().max().expect("two");
    let mut judge = Judge::new(&API, None);
    let delays = processes.map(|process| {
        let (obeyed_at, calls) = end(process);
        judge.admitted_all(&AdmittedCall::parse_all(&calls));
        obeyed_at.saturating_sub(changed_at)
    });
    // The promise is two seconds. A busy test machine may take longer.
    assert!(delays.iter().all(|delay| *delay <= 10_000), "obeyed after {delays:?} ms");
    // Each process has called until the last rule rejected it, so no unit is left. Some minutes refill less than two.
    assert_eq!(judge.breaches(), []);
    let last = api_with_burst(2 * LAST);
    assert!(judge.objects_to_more(&last, 3), "the judge does not see all calls");

    let SharedRules { rules, .. } = limiter.operator().shared_rules().await.expect("read");
    for operator in OPERATORS {
        assert_eq!(rules.key_rule("api", operator), Some(Rule::new().threshold(CHANGES)));
    }
    let changes = limiter.operator().rule_changes(2_000).await.expect("read");
    assert_eq!(changes.len(), 1_000, "one entry for each change");
    for (index, change) in changes.iter().enumerate() {
        let number = change.version.split('-').next().expect("a number");
        assert_eq!(number.parse(), Ok(1_000 - index));
        assert_eq!(change.what.len(), 2, "the limit and the key: {:?}", change.what);
    }
    println!("test rules_fleet ... ok, obeyed after {delays:?} ms");
}

/// Returns the limit with the amounts of the rule that sets this burst; without rules, both amounts are 1.
fn api_with_burst(burst: u64) -> Limit {
    Limit::token_bucket("api", burst.div_ceil(2), DAY).burst(burst)
}

fn builder(url: &str) -> Builder {
    RateLimiter::builder().redis(url).deadline(Duration::from_secs(30))
}

/// Calls until the last rule is in force and no unit is left. Prints when that was, and the calls that were admitted.
async fn obey(url: &str) {
    // Without cached rejections, each call is decided by Redis.
    let limiter =
        builder(url).rules(Rules::redis()).cache_rejections(false).build().expect("valid");
    limiter.ping().await.expect("ready");
    println!("ready");
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let (mut present, mut has_units, mut admitted) = (0, true, Vec::new());
            while present < LAST || has_units {
                let result = limiter.check(&API, "key", 1).await;
                let Err(Rejection::Limited { quota, .. }) = result else {
                    panic!("a debt rejects every call: {result:?}")
                };
                // Without rules, both are 1.
                let expected = if quota.threshold() == 1 { 1 } else { 2 * quota.threshold() };
                assert_eq!(quota.capacity(), expected, "half a rule");
                assert!(quota.threshold() >= present, "an older rule came back");
                present = quota.threshold();
                let from = machine_time();
                let Decision { allowed, limit, .. } =
                    decision(limiter.check(&API, "a key without debt", 1).await);
                has_units = allowed;
                let call = || AdmittedCall::since(from, &api_with_burst(limit), 1);
                admitted.extend(allowed.then(call));
            }
            admitted
        });
    }
    let calls = tasks.join_all().await;
    println!("{}", now());
    for call in calls.iter().flatten() {
        println!("{call}");
    }
}

/// Raises the threshold of the limit, and a counter of the operator. Prints when it has ended.
async fn operate(url: &str, name: &str) {
    let limiter = builder(url).build().expect("valid");
    for change in 1..=CHANGES {
        loop {
            let mut shared = limiter.operator().shared_rules().await.expect("read");
            let written = shared.rules.rule("api").and_then(|rule| rule.threshold);
            let next = written.unwrap_or(1) + 1;
            let rule = Rule::new().threshold(next).burst(2 * next);
            shared.rules.set("api", rule).expect("valid");
            shared.rules.set_key("api", name, Rule::new().threshold(change)).expect("valid");
            match limiter.operator().share_rules(shared, name).await {
                Ok(()) => break,
                Err(StoreError::RulesChanged) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    println!("{}", now());
}

fn line(process: &mut Child) -> String {
    // A process prints its next line only later.
    let output = BufReader::with_capacity(1, process.stdout.as_mut().expect("piped"));
    output.lines().next().expect("a line").expect("a text")
}

fn now() -> u128 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.expect("after 1970").as_millis()
}
