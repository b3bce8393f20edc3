//! What `limits()` counts: the calls of each annotated limit, as their callers saw them.

use std::time::SystemTime;

use futures::FutureExt;
use ratelimit_runtime::{RateLimiter, Rule, RuleSet, VirtualClock, limits};
use support::clocks::embedded_on;
use support::limits::MINUTE;

/// Returns the rule of the limit with this name, and its admitted, rejected and undecided calls.
fn counted(name: &str) -> (Option<Rule>, [u64; 3]) {
    let named: Vec<_> = limits().into_iter().filter(|it| it.limit.name() == name).collect();
    let [limit] = &named[..] else { panic!("one function was called: {named:?}") };
    (limit.rule, [limit.calls.admitted, limit.calls.rejected, limit.calls.undecided])
}

#[track_caller]
fn assert_counted(counts: &[(&str, [u64; 3])]) {
    for (name, ends) in counts {
        assert_eq!(counted(name).1, *ends, "{name}");
    }
}

limited! {
    (name = "counted.plain", period = "1h", threshold = 3, key = user) async fn plain(user: &str);
    (name = "counted.shadow", period = "1h", threshold = 3, shadow = true) async fn shadow();
    (name = "counted.sync", scope = "process", period = "1h", threshold = 3) fn sync();
    (name = "counted.settled", period = "1h", threshold = 3, settle = |_| 1) async fn settled();
    (name = "counted.computed", period = "1h", threshold = threshold)
        async fn computed(threshold: Option<u64>);
    (name = "counted.ruled", period = "1m", threshold = 5, key = user) async fn ruled(user: &str);
    (name = "counted.waits", period = "1m", threshold = 1, wait = "2m") async fn waits();
    (
        name = "counted.group",
        limit(period = "1m", threshold = 2),
        limit(name = "counted.hour", period = "1h", threshold = threshold)
    ) async fn group(threshold: u64);
    (
        scope = "process",
        limit(name = "counted.first", period = "1m", threshold = 9, settle = |_| 1),
        limit(name = "counted.second", period = "1h", threshold = 2)
    ) fn settled_group();
}

/// In a group, the limit that rejects counts the rejection.
#[tokio::test]
async fn each_call_counts_once_it_is_decided() {
    let run = async {
        let not_polled = plain("alice");
        for _ in 0..5 {
            let _ = (plain("alice").await, shadow().await, sync(), settled().await);
        }
        for threshold in [Some(1), Some(1), None, Some(0)] {
            let _ = computed(threshold).await;
        }
        // The second and the last call are rejected by the hour, the fourth by the minute.
        for threshold in [1, 1, 2, 3, 0] {
            let _ = (group(threshold).await, settled_group());
        }
        drop(not_polled);
    };
    RateLimiter::embedded().scope(run).await;
    assert_counted(&[
        ("counted.plain", [3, 2, 0]),
        ("counted.shadow", [5, 0, 0]),
        ("counted.sync", [3, 2, 0]),
        ("counted.settled", [3, 2, 0]),
        ("counted.computed", [2, 2, 0]),
        ("counted.group#1", [2, 1, 0]),
        ("counted.hour", [2, 2, 0]),
        ("counted.first", [2, 0, 0]),
        ("counted.second", [2, 3, 0]),
    ]);
}

#[tokio::test]
async fn calls_that_wait_or_were_dropped_are_not_decided() {
    let clock = VirtualClock::new();
    let run = async {
        waits().await.expect("admitted");
        let mut waiting = Box::pin(waits());
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(waits().now_or_never().is_none());
        assert_counted(&[("counted.waits", [1, 0, 0])]);
        clock.advance(MINUTE);
        waiting.await.expect("admitted");
        assert_counted(&[("counted.waits", [2, 0, 0])]);
    };
    embedded_on(&clock).scope(run).await;
}

#[tokio::test]
async fn the_rule_in_force_is_that_of_the_limit() {
    let clock = VirtualClock::new();
    let limiter = embedded_on(&clock);
    let rule = Rule::new().threshold(7).until(SystemTime::UNIX_EPOCH + clock.now() + MINUTE);
    let mut rules = RuleSet::new();
    rules.set("counted.ruled/1m", rule).expect("valid");
    rules.set_key("counted.ruled/1m", "acme", Rule::new().blocked(true)).expect("valid");
    limiter.set_rules(rules).expect("valid");
    let run = async {
        ruled("alice").await.expect("admitted");
        ruled("acme").await.expect_err("blocked");
        assert_eq!(counted("counted.ruled"), (Some(rule), [1, 1, 0]));
        clock.advance(MINUTE);
        assert_eq!(counted("counted.ruled").0, None);
    };
    limiter.scope(run).await;
}
