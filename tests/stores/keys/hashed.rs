//! Keys that nobody may read: Redis has their hashes, and processes with one secret share their counts.

use ratelimit_runtime::{
    BuildError, Limit, Mistake, OwnedKey, RateLimiter, Rejection, Rule, RuleSet, Scope, rate_limit,
};
use support::limits::HOUR;
use support::server::Server;

const LIMIT: Limit = Limit::sliding("hashed", 2, HOUR);
const TOKEN: &str = "Bearer sk_live_1234";
const SECRET: &str = "0123456789abcdef";

#[rate_limit(limit = LIMIT, limiter = limiter, key = hashed(token))]
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
    let [one, other] = [(), ()].map(|()| with_secret(&server, SECRET));
    assert_eq!(call(&one, TOKEN.to_owned()).await.as_deref(), Ok(TOKEN));
    let by_hand = other.key_secret().expect("a secret").hash(TOKEN);
    other.check(&LIMIT, by_hand, 1).await.expect("admitted");
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
}

/// Operators name such a key by its hash.
#[tokio::test]
async fn a_hash_is_a_key_of_rules_and_of_calls_by_hand() {
    let server = Server::start();
    let limiter = with_secret(&server, SECRET);
    let text = limiter.key_secret().expect("a secret").hash(TOKEN).to_string();
    let mut rules = RuleSet::new();
    rules.set_key("hashed", &text, Rule::new().threshold(1)).expect("a rule");
    limiter.set_rules(rules).expect("in force");
    call(&limiter, TOKEN.to_owned()).await.expect("admitted");
    call(&limiter, TOKEN.to_owned()).await.expect_err("the rule says 1");
    let key = OwnedKey::parse(&text).expect("a key");
    assert!(limiter.reset(&LIMIT, key).await.expect("reset"));
    call(&limiter, TOKEN.to_owned()).await.expect("a new count");
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
    embedded.check(&LIMIT, hash, 1).await.expect_err("the same count");

    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    assert_eq!(limiter.key_secret().expect_err("no secret"), Mistake::NoKeySecret);
    assert!(is_mistake(&call(&limiter, TOKEN.to_owned()).await));
    assert!(is_mistake(&grouped(&limiter, 3, TOKEN).await));
    let foreign = RateLimiter::embedded().key_secret().expect("a random one").hash(TOKEN);
    for limit in [LIMIT.wait(HOUR), LIMIT.shadow(true), LIMIT.lease(1)] {
        let result = limiter.check(&limit, Some((1, &foreign)), 1).await;
        assert!(is_mistake(&result), "{limit:?}: {result:?}");
    }
    assert!(is_mistake(&limiter.acquire(&Limit::in_flight("slots", 1), foreign, 1).await));
    here(&limiter, TOKEN).await.expect("this process counts it");
    limiter.check(&LIMIT.scope(Scope::Process), foreign, 1).await.expect("this process counts it");
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
