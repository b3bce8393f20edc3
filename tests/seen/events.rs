//! `tracing` events of rejected and undecided calls, and of calls that a shadow would reject.

use futures::executor::block_on;
use futures::future::join_all;
use redis::Commands;

use crate::prelude::*;

const LIMIT: Limit = Limit::sliding("events", 1, HOUR);

support::on_both_stores! {
    TestLimiter::both;

    /// Also of a call that waits, and of one that a shadow would reject. Other operations are not reported.
    async fn a_rejection_is_an_event(test) {
        let source = test.source;
        let event = |what: &str, limit: &str, seconds: u64| {
            format!(
                "DEBUG {what} limit=\"{limit}\" key=# retry_after={seconds}s source=\"{source}\""
            )
        };
        let costly = |what: &str| {
            format!(
                "DEBUG {what}: the cost exceeds the capacity limit=\"plain\" key=# cost=2 capacity=1"
            )
        };
        let rejected = |limit, seconds| event("rejected", limit, seconds);
        let plain = [rejected("plain", 3600), costly("rejected")];
        assert_eq!(events_of(calls::plain(&test)).await, plain);
        let costly = costly("would be rejected").replace("plain", "shadow");
        let shadow = [event("would be rejected", "shadow", 3600), costly];
        assert_eq!(events_of(calls::shadow(&test)).await, shadow);
        let blocked = ["rejected", "would be rejected", "rejected"]
            .map(|what| event(&format!("{what}: the key is blocked"), "blocked", 7200));
        assert_eq!(events_of(calls::blocked(&test)).await, blocked);
        assert_eq!(events_of(calls::several(&test)).await, [rejected("narrow", 3600)]);
        let waits = [rejected("line", 7200), rejected("slot", 7200), rejected("narrow", 3600)];
        assert_eq!(events_of(calls::waits(&test)).await, waits);
        assert_eq!(events_of(calls::other_operations(&test)).await, [""; 0]);
        // A key that is blocked without an end has no wait.
        test.limiter.set_rules(ruled("events", Rule::new().blocked(true))).expect("set");
        let check =
            async { drop(test.limiter.check(&LIMIT, "key", 1).await.expect_err("blocked")) };
        let blocked = "DEBUG rejected: the key is blocked limit=\"events\" key=# source=\"embedded\"";
        assert_eq!(events_of(check).await, [blocked]);
    }

    async fn a_block_that_is_cut_is_an_event(test) {
        let calls = async {
            for seconds in [600, 86_400, 0] {
                upstream(seconds).await.expect("open");
                test.limiter.flush().await.expect("blocked");
                test.clock.advance(600 * SECOND);
            }
        };
        let events = events_of(test.limiter.scope(calls)).await;
        let expected = "WARN the result of a call asked to block its key for longer than `block_at_most` \
                        limit=\"upstream\" asked=86400s blocked_for=600s";
        assert_eq!(events, [expected]);
    }
}

#[tokio::test]
async fn undecided_calls_are_reported_without_their_key() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let name = format!("rl:sliding:1h:events{{{KEY}}}");
    let _: () = server.connection().set(name, "foreign").expect("SET");
    let foreign = events_of(async {
        assert!(test.limiter.check(&LIMIT, KEY, 1).await.is_err());
    });
    // The events name the limit, and say what to do. The warning is not repeated for some seconds.
    let error = "error=the Redis key `rl:sliding:1h:events{…}` does not hold the state of a \
                 rate limit: delete the key, or set another `key_prefix`";
    let expected = [
        format!("WARN Redis does not decide limit=\"events\" on_error=Deny {error}"),
        format!("DEBUG not decided limit=\"events\" {error}"),
    ];
    assert_eq!(foreign.await, expected);

    drop(server);
    let events = events_of(async {
        calls::undecided(&test, LIMIT).await;
        calls::mixed_limits(&test).await;
    });
    let events = events.await;
    let down = "DEBUG not decided limit=\"events\" error=no connection to Redis: ";
    let [undecided @ .., fallback, mixed] = &events[..] else { panic!("{events:#?}") };
    assert_eq!(undecided.len(), 2, "{events:#?}");
    assert!(undecided.iter().all(|event| event.starts_with(down)), "{events:#?}");
    let rejected = "DEBUG rejected limit=\"events\" key=# retry_after=3600s source=\"fallback\"";
    assert_eq!(fallback, rejected);
    assert!(mixed.contains("the limits of one decision must have the same `scope`"), "{events:#?}");
    assert!(events.iter().all(|event| !event.contains(KEY)), "{events:#?}");
}

const NIGHTLY: Limit = Limit::in_flight("nightly", 1).hold(HOUR);
const LEASED: Limit = Limit::sliding("leased ahead", 5, HOUR).lease(2);
const MORE: Limit = Limit::sliding("events", 2, HOUR);

/// Each mistake that a call can have; `startup` has a limiter that cannot be built. It is no outage: nothing that an
/// operator does helps.
#[test]
fn a_mistake_of_the_program_is_an_error_once_for_each_limit() {
    let server = Server::start();
    let limiter = TestLimiter::redis(&server).limiter;
    let events = block_on(events_of(async {
        assert!(limiter.check(&NIGHTLY, KEY, 1).await.is_err());
        assert!(limiter.check(&NIGHTLY.shadow(true), KEY, 1).await.is_err());
        assert!(limiter.acquire(&LEASED, KEY, 1).await.is_err());
        assert!(limiter.check_all(&[]).await.is_err());
        for other in [&LIMIT.shadow(true), &MORE] {
            let parts = [Part::new(&LIMIT, &KEY, 1), Part::new(other, &KEY, 1)];
            assert!(limiter.check_all(&parts).await.is_err());
        }
    }));
    let (errors, others): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|event| event.starts_with("ERROR"));
    let words = [
        ("nightly", "use `acquire` and keep the permit"),
        ("leased ahead", "remove its `lease`"),
        ("", "pass at least one"),
        ("events", "have the same `scope`, `on_error`, `shadow` and `wait`"),
        ("events", "rename one of them"),
    ];
    assert_eq!(errors.len(), words.len(), "{errors:#?}");
    for (error, (limit, words)) in errors.iter().zip(words) {
        let start = "ERROR not decided, because the program has a mistake";
        assert!(error.starts_with(&format!("{start} limit=\"{limit}\" error=")), "{error}");
        assert!(error.contains(words), "{error}");
    }
    let [other] = &others[..] else { panic!("{others:#?}") };
    assert!(other.starts_with("DEBUG not decided limit="), "{other}");
}

#[rate_limit(
    period = 3600, threshold = 5, name = "upstream", key = KEY,
    block = |time| time.as_ref().ok().copied(), block_at_most = "10m"
)]
async fn upstream(seconds: u32) -> Result<Duration, Rejection> {
    Ok(seconds * SECOND)
}

#[tokio::test]
async fn a_server_that_may_evict_keys_causes_one_warning() {
    let server = Server::start();
    let warned = async |memory: &str, policy: &str| {
        server.command::<()>(&format!("CONFIG SET maxmemory {memory}"));
        server.command::<()>(&format!("CONFIG SET maxmemory-policy {policy}"));
        let test = TestLimiter::redis(&server);
        let events = events_of(async {
            for _ in 0..20 {
                test.limiter.check(&LIMIT, policy, 0).await.expect("admitted");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        events.await.into_iter().filter(|event| event.contains("may evict")).collect::<Vec<_>>()
    };
    assert_eq!(warned("0", "allkeys-lru").await, [""; 0]);
    assert_eq!(warned("1gb", "noeviction").await, [""; 0]);
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let events = warned("1gb", policy).await;
        let [event] = &events[..] else { panic!("{events:#?}") };
        assert!(event.starts_with("WARN") && event.contains(policy), "{event}");
    }
}

#[tokio::test]
async fn a_store_that_is_full_of_calls_in_flight_warns_once() {
    let limiter = RateLimiter::builder().max_keys(64).build().expect("valid settings");
    let limit = Limit::in_flight("full", 1);
    let events = events_of(async {
        let calls = join_all((0..1_000_u64).map(|key| limiter.acquire(&limit, key, 1))).await;
        assert_eq!(calls.iter().filter(|call| call.is_ok()).count(), 128);
    });
    let mut events = events.await;
    events.retain(|event| event.contains("`max_keys`"));
    let [warning] = &events[..] else { panic!("{events:?}") };
    assert!(warning.contains("WARN") && warning.contains("rejected as busy"), "{warning}");
}
