//! Key prefixes: applications with different prefixes never share a key in Redis.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::{Algorithm, BuildError, Limit, RateLimiter};
use redis::Commands;
use support::ALGORITHMS;
use support::server::Server;

fn builds(prefix: &str) -> Result<RateLimiter, BuildError> {
    RateLimiter::builder().redis("redis://localhost").key_prefix(prefix).build()
}

#[test]
fn a_prefix_with_an_algorithm_and_a_period_is_an_error() {
    for algorithm in ALGORITHMS {
        for period in ["1us", "250ms", "30s", "1m", "12h", "7d", "1d+0800", "1h-0330"] {
            let part = format!("{algorithm}:{period}");
            for prefix in [
                part.clone(),
                format!("shop:{part}"),
                format!("{part}:shop"),
                format!(":{part}:"),
                format!("sliding:{part}"),
            ] {
                let error = builds(&prefix).expect_err(&prefix);
                assert!(matches!(error, BuildError::LimitInPrefix { .. }), "{prefix}: {error:?}");
                assert!(error.to_string().contains(&part), "{error}");
                // The message suggests this prefix instead.
                assert!(
                    builds(&prefix.replace(&part, &part.replace(':', "-"))).is_ok(),
                    "{prefix}"
                );
            }
        }
    }
    for prefix in [
        "",
        "shop",
        "shop:eu",
        "sliding",
        "shop:sliding",
        "1m:sliding",
        "sliding:eu:1m",
        "sliding::1m",
        "sliding:m",
        "sliding:1",
        "sliding:1w",
        "sliding:1m+08",
        "sliding:+0800",
        "slidings:1m",
        "sliding-1m",
    ] {
        assert!(builds(prefix).is_ok(), "{prefix}");
    }
}

/// The words of a key in Redis. Many pairs of them are an algorithm and a period.
fn words() -> impl Strategy<Value = Vec<&'static str>> {
    let algorithm = || prop::sample::select(ALGORITHMS.map(Algorithm::as_str).to_vec());
    let period = || prop::sample::select(vec!["1m", "1d", "10s", "1d+0800"]);
    let words = prop_oneof![
        2 => (algorithm(), period()).prop_map(|(algorithm, period)| vec![algorithm, period]),
        1 => algorithm().prop_map(|algorithm| vec![algorithm]),
        1 => period().prop_map(|period| vec![period]),
        1 => prop::sample::select(vec!["p", "", "60s"]).prop_map(|word| vec![word]),
    ];
    prop::collection::vec(words, 2..7).prop_map(|words| words.concat())
}

/// Returns each pair of a prefix and a limit whose key in Redis would begin with these words.
fn interpretations(words: &[&'static str]) -> Vec<(String, Limit)> {
    let mut interpretations = Vec::new();
    for (index, pair) in words.windows(2).enumerate() {
        let algorithm: Option<Algorithm> =
            ALGORITHMS.into_iter().find(|algorithm| algorithm.as_str() == pair[0]);
        let seconds = match pair[1] {
            "1m" => 60,
            "1d" => 86_400,
            "10s" => 10,
            _ => continue,
        };
        let name: &'static str = words[index + 2..].join(":").leak();
        let prefix = words[..index].join(":");
        if let Some(algorithm) = algorithm
            && index > 0
            && let Ok(limit) = Limit::new(name, algorithm, 5, Duration::from_secs(seconds))
        {
            interpretations.push((prefix, limit));
        }
    }
    interpretations
}

#[test]
fn limits_of_two_prefixes_never_have_the_same_key() {
    let server = Server::start();
    let connection = RefCell::new(server.connection());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ambiguous = Cell::new(0);
    let config =
        ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let run = runner.run(&words(), |words| {
        let interpretations = interpretations(&words);
        ambiguous.set(ambiguous.get() + u64::from(interpretations.len() > 1));
        let mut built = Vec::new();
        for (prefix, limit) in interpretations {
            let Ok(limiter) = server.builder().key_prefix(&*prefix).build() else { continue };
            let text = format!("{}{{key}}", words.join(":"));
            runtime.block_on(limiter.check(&limit, "key", 1)).expect("admitted");
            let mut connection = connection.borrow_mut();
            let keys: Vec<String> = connection.keys("*").expect("KEYS");
            prop_assert_eq!(keys, [text.clone()]);
            let _: () = connection.del(text).expect("DEL");
            built.push(prefix);
        }
        prop_assert!(built.len() <= 1, "the prefixes {:?} have the same key", built);
        Ok(())
    });
    run.expect("one prefix for each key");
    assert!(ambiguous.get() > 100, "only {} keys have two interpretations", ambiguous.get());
}
