//! Applications with different key prefixes never share a key.

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
fn a_prefix_with_an_algorithm_and_a_period_is_refused() {
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
                // What the message says to write.
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

/// Words of a key; many of them can be read as an algorithm and a period.
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

/// A prefix and a limit that make this text.
fn readings(words: &[&'static str]) -> Vec<(String, Limit)> {
    let mut readings = Vec::new();
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
            readings.push((prefix, limit));
        }
    }
    readings
}

#[test]
fn no_two_prefixes_and_limits_make_one_key() {
    let server = Server::start();
    let connection = RefCell::new(server.connection());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ambiguous = Cell::new(0);
    let config =
        ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let run = runner.run(&words(), |words| {
        let readings = readings(&words);
        ambiguous.set(ambiguous.get() + u32::from(readings.len() > 1));
        let mut built = Vec::new();
        for (prefix, limit) in readings {
            let Ok(limiter) = server.builder().key_prefix(&*prefix).build() else { continue };
            let text = format!("{}{{key}}", words.join(":"));
            runtime.block_on(limiter.check(&limit, "key", 1)).expect("admitted");
            let mut connection = connection.borrow_mut();
            let keys: Vec<String> = connection.keys("*").expect("KEYS");
            prop_assert_eq!(keys, [text.clone()]);
            let _: () = connection.del(text).expect("DEL");
            built.push(prefix);
        }
        prop_assert!(built.len() <= 1, "{:?} are prefixes of one key", built);
        Ok(())
    });
    run.expect("no two");
    assert!(ambiguous.get() > 100, "only {} texts can be read in two ways", ambiguous.get());
}
