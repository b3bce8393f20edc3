//! What an application observes of rejected calls: the list of the keys with the most of them, a function that is
//! called with each, and keys in events.

use ratelimit_runtime::{RejectedCall, RuleSet};

use crate::prelude::*;

const LOGIN: Limit = Limit::fixed("login", 1, HOUR);
const WIDE: Limit = Limit::fixed("wide", 5, HOUR);

/// A secret, and the hashes of [`KEY`] and of `bob` under it, in every process and every build.
const SECRET: &str = "0123456789abcdef";
const HASHES: [&str; 2] = ["656290f3f8eb0450", "c981f0623f4d65b4"];

/// Rejected calls: how many, by the limit and the key.
type Counts = BTreeMap<String, u64>;

fn name_of(limit: &str, key: &str, is_shadow: bool) -> String {
    format!("{limit} {key}{}", if is_shadow { ", a shadow" } else { "" })
}

fn listed(limiter: &RateLimiter) -> Counts {
    let keys = limiter.operator().rejected_keys(20);
    assert!(keys.is_sorted_by(|one, next| one.rejected >= next.rejected), "{keys:?}");
    keys.iter().map(|it| (name_of(it.limit, &it.key, it.is_shadow), it.rejected)).collect()
}

fn observed(builder: Builder) -> (RateLimiter, Arc<Mutex<Counts>>) {
    let counts = Arc::<Mutex<Counts>>::default();
    let counted = Arc::clone(&counts);
    let builder = builder.log_keys(true).on_rejected(move |call: &RejectedCall<'_>| {
        let reason = match call.rejection {
            Rejection::Limited { .. } => "",
            Rejection::Blocked { .. } => ", blocked",
            Rejection::CostExceedsCapacity { .. } => ", too costly",
            Rejection::Unavailable { .. } => ", undecided",
            other => panic!("{other:?}"),
        };
        let name = name_of(call.rejection.name(), call.key, call.is_shadow);
        *counted.lock().expect("no panic").entry(name + reason).or_default() += 1;
    });
    (builder.build().expect("valid settings"), counts)
}

fn counts<const N: usize>(expected: [(&str, u64); N]) -> Counts {
    expected.map(|(name, calls)| (name.to_owned(), calls)).into()
}

#[rate_limit(name = "annotated", period = "1h", threshold = threshold, key = user)]
async fn annotated(user: &str, threshold: u64) -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn each_rejected_call_counts_for_the_key_that_rejects_it() {
    let server = Server::start();
    let cluster = Cluster::start(0);
    let in_cluster = RateLimiter::builder().redis(cluster.url()).deadline(MINUTE);
    for builder in [RateLimiter::builder(), server.builder(), in_cluster] {
        let (limiter, observed) = observed(builder);
        assert_eq!(listed(&limiter), Counts::new());
        limiter.check(&LOGIN, KEY, 1).await.expect("admitted");
        limiter.acquire(&WIDE, (), 5).await.expect("admitted").keep();
        for _ in 0..3 {
            // On Redis, the second rejection comes from the cache.
            limiter.check(&LOGIN, KEY, 1).await.expect_err("rejected");
            limiter.acquire(&LOGIN, KEY, 1).await.expect_err("rejected");
        }
        // A call that may wait, one of a limit with a lease, and one for which there is no key.
        limiter.check(&LOGIN.wait(Duration::from_millis(1)), KEY, 1).await.expect_err("rejected");
        limiter.check(&WIDE, (), 1).await.expect_err("rejected");
        let leased = Limit::sliding("leased", 10, HOUR).lease(2);
        while limiter.check(&leased, ("a", "{b}"), 1).await.is_ok() {}
        // Of several limits, and of two keys of one limit, the one that rejects.
        for other in [Part::new(&WIDE, &("acme", 7), 1), Part::new(&LOGIN, &"free", 1)] {
            let parts = [other, Part::new(&LOGIN, &KEY, 1)];
            limiter.check_all(&parts).await.expect_err("rejected");
            limiter.acquire_all(&parts).await.expect_err("rejected");
        }
        limiter.peek(&LOGIN, KEY, 1).await.expect("a decision");
        limiter.check(&LOGIN, KEY, 2).await.expect_err("too costly");
        limiter.check(&LOGIN.shadow(true), KEY, 1).await.expect("a shadow");
        limiter.block(&WIDE, "mallory", MINUTE).await.expect("blocked");
        for _ in 0..2 {
            limiter.check(&WIDE, "mallory", 1).await.expect_err("blocked");
        }
        let of_process = LOGIN.scope(Scope::Process);
        limiter.check(&of_process, "here", 1).await.expect("admitted");
        limiter.check(&of_process, "here", 1).await.expect_err("rejected");
        limiter.scope(annotated("ann", 1)).await.expect("admitted");
        limiter.scope(annotated("ann", 1)).await.expect_err("rejected");

        let mut expected = counts([
            ("login alice@example.org", 11),
            ("login alice@example.org, a shadow", 1),
            ("login here", 1),
            ("annotated ann", 1),
            ("leased (a:%7Bb%7D)", 1),
            ("wide %", 1),
            ("wide mallory", 2),
        ]);
        assert_eq!(listed(&limiter.clone()), expected, "{limiter:?}: clones share the list");
        let [top] = &limiter.operator().rejected_keys(1)[..] else { panic!("one key") };
        assert_eq!((top.limit, top.period, top.since <= top.last), ("login", HOUR, true));
        expected.insert("login alice@example.org, too costly".to_owned(), 1);
        let blocked = expected.remove("wide mallory").expect("it is there");
        expected.insert("wide mallory, blocked".to_owned(), blocked);
        assert_eq!(*observed.lock().expect("no panic"), expected);
    }
}

/// A rule that blocks a limit makes no request, and a store that fails makes no decision.
#[tokio::test]
async fn calls_that_no_store_decides() {
    let (limiter, observed) =
        observed(RateLimiter::builder().redis("redis://127.0.0.1:1").deadline(MINUTE));
    // This process decides, because Redis is down.
    for _ in 0..3 {
        let _ = limiter.check(&LOGIN, KEY, 1).await;
    }
    limiter.check(&LOGIN.on_error(OnError::Deny), "bob", 1).await.expect_err("not decided");
    let mut rules = RuleSet::new();
    rules.set_key("wide", "mallory", Rule::new().blocked(true)).expect("valid");
    rules.set_key("wide", "trudy", Rule::new().blocked(true).shadow(true)).expect("valid");
    limiter.set_rules(rules).expect("valid");
    limiter.check(&WIDE, "mallory", 0).await.expect_err("blocked");
    limiter.check(&WIDE, "trudy", 0).await.expect("a shadow");
    let expected =
        [("login alice@example.org", 2), ("wide mallory", 1), ("wide trudy, a shadow", 1)];
    assert_eq!(listed(&limiter), counts(expected));
    limiter.scope(annotated("ann", 0)).await.expect_err("blocked");
    let expected = counts([
        ("annotated ann, blocked", 1),
        ("login alice@example.org", 2),
        ("login bob, undecided", 1),
        ("wide mallory, blocked", 1),
        ("wide trudy, a shadow, blocked", 1),
    ]);
    assert_eq!(*observed.lock().expect("no panic"), expected);
}

/// Returns the keys in the events of rejected calls of two keys, after the list has shown the last one in the same way.
async fn logged(builder: Builder) -> Vec<String> {
    let limiter = builder.build().expect("valid settings");
    let keys = logged_keys_of(async {
        for key in [KEY, "bob"] {
            let _ = limiter.check(&LOGIN, key, 2).await;
        }
        for _ in 0..2 {
            let _ = limiter.check(&LOGIN, KEY, 1).await;
        }
        let _ = limiter.check(&LOGIN.shadow(true), KEY, 1).await;
    });
    let keys = keys.await;
    let listed = &limiter.operator().rejected_keys(1)[0].key;
    assert_eq!([&keys[0], &keys[2], &keys[3]], [listed; 3]);
    keys[..2].to_vec()
}

#[tokio::test]
async fn events_and_the_list_show_a_secret_hash_of_a_key_or_what_the_application_sets() {
    let server = Server::start();
    for (index, builder) in [RateLimiter::builder(), server.builder()].into_iter().enumerate() {
        let prefixed = |prefix: &str| builder.clone().key_prefix(format!("{prefix}{index}"));
        assert_eq!(logged(prefixed("texts").log_keys(true)).await, [KEY, "bob"]);
        // Each limiter has its own secret, so an attacker cannot find a key by hashing candidates.
        let hashed = logged(prefixed("hashes")).await;
        let is_hash = |text: &String| text.len() == 16 && u64::from_str_radix(text, 16).is_ok();
        assert!(hashed.iter().all(is_hash) && hashed[0] != hashed[1], "{hashed:?}");
        assert!(hashed != HASHES && hashed != logged(prefixed("hashes")).await, "{hashed:?}");
        // The secret stays when the texts are turned off.
        let both = prefixed("both").log_hash_secret(SECRET).log_keys(true);
        assert_eq!(logged(both.clone()).await, [KEY, "bob"]);
        assert_eq!(logged(both.key_prefix("secret").log_keys(false)).await, HASHES);
        assert_ne!(logged(prefixed("other").log_hash_secret("0123456789abcdeg")).await, HASHES);

        let limiter = builder.log_keys(true).build().expect("valid settings");
        let forged = raw_events_of(async {
            let _ = limiter.check(&LOGIN, "a\nWARN forged", 2).await;
        });
        assert!(forged.await[0].contains("key=a%0AWARN forged cost"), "one line");
    }
}
