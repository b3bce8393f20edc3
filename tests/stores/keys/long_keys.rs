//! Keys of any bytes and any length: a client that chooses its key does not choose how much Redis keeps, and the short
//! text of a long key is the same key for operators. Of a hashed key, Redis and operators see only the hash.

use ratelimit_runtime::{
    BuildError, Limit, Mistake, OwnedKey, RateLimiter, Rejection, Rule, RuleSet, Scope, rate_limit,
};
use support::limits::HOUR;
use support::server::Server;

const LIMIT: Limit = Limit::sliding("names", 2, HOUR);

/// A key as long as a body that a framework accepts.
fn long(last: char) -> String {
    format!("{}{last}", "n".repeat(2 << 20))
}

#[tokio::test]
async fn keys_can_be_any_bytes() {
    let (server, limiter) = Server::with_limiter();
    let limit = Limit::sliding("bytes", 1, HOUR);
    let all: Vec<u8> = (0..=255).collect();
    let mut keys: Vec<Vec<u8>> = all.iter().map(|byte| vec![*byte]).collect();
    keys.extend([all.clone(), all.repeat(4096), [&all.repeat(4096)[..], b"x"].concat(), vec![]]);
    for limiter in [RateLimiter::embedded(), limiter] {
        for key in &keys {
            assert!(limiter.check(&limit, &**key, 1).await.is_ok(), "{} bytes", key.len());
            assert!(limiter.check(&limit, &**key, 1).await.is_err(), "{} bytes", key.len());
        }
    }
    assert_eq!(server.ttls().len(), keys.len());
}

#[tokio::test]
async fn a_long_key_takes_no_more_memory_than_a_short_one() {
    let (server, limiter) = Server::with_limiter();
    for last in ['a', 'b'] {
        for _ in 0..2 {
            limiter.check(&LIMIT, long(last), 1).await.expect("admitted");
        }
        let rejected = limiter.check(&LIMIT, long(last), 1).await;
        assert!(matches!(rejected, Err(Rejection::Limited { .. })), "{rejected:?}");
    }
    let names = server.ttls();
    assert_eq!(names.len(), 2);
    assert!(names.iter().all(|(name, _)| name.len() < 300), "{names:?}");
}

#[tokio::test]
async fn operators_find_a_long_key_and_use_its_short_text() {
    let (server, limiter) = Server::with_limiter();
    let operator = server.builder().build().expect("valid");
    limiter.check(&LIMIT, long('a'), 1).await.expect("admitted");
    let page = operator.operator().keys(&LIMIT, None).await.expect("read");
    let [key] = &page.keys[..] else { panic!("{} keys", page.keys.len()) };
    let short = key.to_string();
    assert!(short.len() < 256, "{short}");
    assert_eq!(operator.peek(&LIMIT, key, 1).await.expect("read").remaining, 1);
    // A rule names the whole text or the short one.
    for text in [&short, &long('a')] {
        assert_eq!(*key, OwnedKey::parse(text).expect("a key"));
        let mut rules = RuleSet::default();
        rules.set_key("names", text, Rule::new().threshold(9)).expect("valid");
        assert_eq!(rules.key_rule("names", &long('a')), rules.key_rule("names", text));
        operator.set_rules(rules).expect("set");
        for (last, threshold) in [('a', 9), ('b', 2)] {
            let peeked = operator.peek(&LIMIT, long(last), 1).await.expect("read");
            assert_eq!(peeked.limit, threshold);
        }
    }

    limiter.check(&LIMIT, long('a'), 1).await.expect("admitted");
    limiter.check(&LIMIT, long('a'), 1).await.expect_err("the threshold is 2");
    // The process that has cached the rejection obeys its own reset at once.
    limiter.reset(&LIMIT, key).await.expect("reset");
    limiter.check(&LIMIT, long('a'), 1).await.expect("admitted");
    limiter.block(&LIMIT, key, HOUR).await.expect("blocked");
    let blocked = limiter.check(&LIMIT, long('a'), 1).await;
    assert!(matches!(blocked, Err(Rejection::Blocked { .. })), "{blocked:?}");
    limiter.check(&LIMIT, long('b'), 1).await.expect("another key");
}

// Hashed keys: processes with the same secret share their counts.

const HASHED: Limit = Limit::sliding("hashed", 2, HOUR);
const TOKEN: &str = "Bearer sk_live_1234";
const SECRET: &str = "0123456789abcdef";

#[rate_limit(limit = HASHED, limiter = limiter, key = hashed(token))]
async fn call(limiter: &RateLimiter, token: String) -> Result<String, Rejection> {
    Ok(token)
}

#[rate_limit(limit("2/h", key = (tenant, hashed((token, 7)))), limit("9/h", key = tenant), limiter = limiter)]
async fn grouped(limiter: &RateLimiter, tenant: u64, token: &str) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit("2/h", scope = "process", limiter = limiter, key = hashed(token))]
async fn here(limiter: &RateLimiter, token: &str) -> Result<(), Rejection> {
    Ok(())
}

fn with_secret(server: &Server, secret: &str) -> RateLimiter {
    server.builder().key_secret(secret).build().expect("valid")
}

fn is_mistake<T>(result: &Result<T, Rejection>) -> bool {
    matches!(result, Err(Rejection::Mistake { mistake: Mistake::NoKeySecret, .. }))
}

#[tokio::test]
async fn processes_with_one_secret_share_counts_that_do_not_show_the_key() {
    let server = Server::start();
    let [one, other] = [SECRET; 2].map(|secret| with_secret(&server, secret));
    assert_eq!(call(&one, TOKEN.to_owned()).await.as_deref(), Ok(TOKEN));
    let by_hand = other.key_secret().expect("a secret").hash(TOKEN);
    other.check(&HASHED, by_hand, 1).await.expect("admitted");
    call(&one, TOKEN.to_owned()).await.expect_err("both counted");
    for _ in 0..2 {
        grouped(&other, 3, TOKEN).await.expect("admitted");
    }
    assert!(matches!(grouped(&one, 3, TOKEN).await, Err(Rejection::Limited { .. })));
    grouped(&one, 3, "another").await.expect("another key");
    call(&with_secret(&server, "another secret 16"), TOKEN.to_owned()).await.expect("a new count");
    let names: Vec<_> = server.ttls().into_iter().map(|(name, _)| name).collect();
    assert!(names.contains(&format!("rl:sliding:1h:hashed{{{by_hand}}}")), "{names:?}");
    assert!(names.iter().all(|name| !name.contains("sk_live")), "{names:?}");
    // Operators and rules name such a key by its hash.
    let text = by_hand.to_string();
    assert!(one.reset(&HASHED, OwnedKey::parse(&text).expect("a key")).await.expect("reset"));
    let mut rules = RuleSet::new();
    rules.set_key("hashed", &text, Rule::new().threshold(1)).expect("a rule");
    one.set_rules(rules).expect("in force");
    call(&one, TOKEN.to_owned()).await.expect("a new count");
    call(&one, TOKEN.to_owned()).await.expect_err("the rule says 1");
}

#[tokio::test]
async fn without_a_secret_only_redis_cannot_count_hashed_keys() {
    let embedded = RateLimiter::embedded();
    for _ in 0..2 {
        call(&embedded, TOKEN.to_owned()).await.expect("admitted");
        grouped(&embedded, 3, TOKEN).await.expect("admitted");
    }
    assert!(matches!(call(&embedded, TOKEN.to_owned()).await, Err(Rejection::Limited { .. })));
    let hash = embedded.key_secret().expect("a random one").hash(TOKEN);
    embedded.check(&HASHED, hash, 1).await.expect_err("the same count");

    let (server, limiter) = Server::with_limiter();
    assert_eq!(limiter.key_secret().expect_err("no secret"), Mistake::NoKeySecret);
    assert!(is_mistake(&call(&limiter, TOKEN.to_owned()).await));
    assert!(is_mistake(&grouped(&limiter, 3, TOKEN).await));
    let foreign = RateLimiter::embedded().key_secret().expect("a random one").hash(TOKEN);
    for limit in [HASHED.wait(HOUR), HASHED.shadow(true), HASHED.lease(1)] {
        let result = limiter.check(&limit, Some((1, &foreign)), 1).await;
        assert!(is_mistake(&result), "{limit:?}: {result:?}");
    }
    assert!(is_mistake(&limiter.acquire(&Limit::in_flight("slots", 1), foreign, 1).await));
    here(&limiter, TOKEN).await.expect("this process counts it");
    limiter.check(&HASHED.scope(Scope::Process), foreign, 1).await.expect("this process counts it");
    assert!(server.ttls().is_empty());
}

#[test]
fn a_short_secret_is_an_error() {
    let build = |secret: &str| RateLimiter::builder().key_secret(secret).build();
    assert_eq!(build("0123456789abcde").expect_err("short"), BuildError::ShortKeySecret);
    let text = BuildError::ShortKeySecret.to_string();
    assert!(text.contains("16 bytes") && text.contains("openssl rand"), "{text}");
    let debug = format!("{:?}", build(SECRET).expect("valid").key_secret());
    assert!(!debug.contains("0123"), "{debug}");
}
