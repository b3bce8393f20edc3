//! The headers that report limits, of the layer and of the handlers behind it.

use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::response::{AppendHeaders, IntoResponse};
use axum::routing::get as route_get;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Limit, RateLimiter, Rejection, Scope, rate_limit};
use support::http::get;
use support::server::Server;

use super::{ALL, again, router};
use crate::{CACHED, MINUTE, items, limiters, reported, serve, timed};

#[rate_limit(period = "1s", threshold = 1, algo = "fixed", key = (), name = "second")]
async fn second() -> Result<(), Rejection> {
    Ok(())
}

#[test]
fn reports_all_limits_on_every_response() {
    let (limiter, clock) = timed();
    let layer = RateLimitLayer::new().limit(ALL, |_| ()).limiter(limiter.clone());
    let server = serve(router().layer(layer), &limiter);
    let ask = |path| get(server.address, path, &[]);

    let policy = r#""all";q=4;w=60, "hi";q=2;w=30"#;
    let first = ask("/hi/1");
    assert_eq!((first.status, &*first.body), (200, "hi 1"));
    assert_eq!(reported(&first), (policy, r#""all";r=3;t=60, "hi";r=1;t=30"#));
    assert_eq!(first.header("retry-after"), None);
    clock.advance(Duration::from_millis(9_001));
    assert_eq!(reported(&ask("/hi/1")), (policy, r#""all";r=2;t=51, "hi";r=0;t=21"#));

    // Rejected by the handler: its limit comes first, and the other has no `t`, because it is later.
    let rejected = ask("/hi/1");
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("21")));
    assert_eq!(reported(&rejected), (policy, r#""hi";r=0;t=21, "all";r=1"#));
    assert_eq!(rejected.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(rejected.body, "too many requests, try again in 21 seconds");

    // A handler without a limit, and then a rejection by the layer.
    assert_eq!(reported(&ask("/plain")), (r#""all";q=4;w=60"#, r#""all";r=0;t=51"#));
    let rejected = ask("/hi/2");
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("51")));
    assert_eq!(reported(&rejected), (r#""all";q=4;w=60"#, r#""all";r=0;t=51"#));

    clock.advance(Duration::from_millis(50_998));
    assert_eq!(ask("/plain").header("retry-after"), Some("1"));
    clock.advance(Duration::from_millis(1));
    assert_eq!(ask("/plain").status, 200);
    assert_eq!(items(reported(&ask("/none")).1)[0].0, "all");
}

/// A limit of this process alone, leased units, and rejections that the process has cached.
#[test]
fn reports_what_the_process_decides_beside_redis() {
    let redis = Server::start();
    let [_, (limiter, _)] = limiters(&redis);
    let counted = Limit::fixed("counted", 2, MINUTE);
    let local = Limit::fixed("local", 2, MINUTE).scope(Scope::Process);
    let leased = Limit::token_bucket("leased", 6_000, MINUTE).lease(50);
    let layer = |limit| RateLimitLayer::new().limit(limit, |_| ()).limiter(limiter.clone());
    let route = |limit| route_get(async || ()).layer(layer(limit));
    let router = Router::new().route("/counted", route(counted)).route("/local", route(local));
    let server = serve(router.route("/leased", route(leased)), &limiter);
    let mut calls = 0;
    for name in ["counted", "local"] {
        for (status, remaining) in [(200, 1), (200, 0), (429, 0), (429, 0)] {
            calls = redis.script_calls();
            let answer = get(server.address, &format!("/{name}"), &[]);
            assert_eq!(answer.status, status);
            let state = format!(r#""{name}";r={remaining};t=60"#);
            assert_eq!(reported(&answer), (&*format!(r#""{name}";q=2;w=60"#), &*state));
        }
        assert_eq!(redis.script_calls(), calls, "this process makes the last decision");
    }
    let left = (0..9).map(|_| {
        let answer = get(server.address, "/leased", &[]);
        items(reported(&answer).1)[0].1[0].1
    });
    let left: Vec<_> = left.collect();
    assert!(left.is_sorted_by(|one, next| one > next), "{left:?}");
    assert!(redis.script_calls() < calls + 9, "no call spends leased units");
}

#[test]
fn does_not_report_shadow_limits() {
    let (limiter, _) = timed();
    let server = serve(router().layer(RateLimitLayer::new()), &limiter);
    for _ in 0..2 {
        let answer = get(server.address, "/tried", &[]);
        assert_eq!((answer.status, answer.header("ratelimit-policy")), (200, None));
    }
    assert_eq!(get(server.address, "/plain", &[]).header("ratelimit"), None);
}

#[test]
fn reports_all_limits_that_are_decided_together() {
    let (limiter, clock) = timed();
    let (hour, day) =
        (Limit::sliding("same", 2, MINUTE * 60), Limit::sliding("same", 3, MINUTE * 1440));
    let layer = RateLimitLayer::new().limit(hour, |_| ()).limit(day, |_| "all");
    let server = serve(router().layer(layer.limiter(limiter.clone())), &limiter);
    let ask = |path| get(server.address, path, &[]);
    let (same, both) =
        (r#""same";q=2;w=3600, "same#2";q=3;w=86400"#, r#""wide";q=9;w=3, "narrow";q=3;w=86400"#);
    let policy = format!("{same}, {both}");
    let first = r#""same";r=1;t=3600, "same#2";r=2;t=86400, "wide";r=8;t=1, "narrow";r=2;t=86400"#;
    assert_eq!(reported(&ask("/both")), (&*policy, first));
    assert_eq!(reported(&ask("/plain")), (same, r#""same";r=0;t=3600, "same#2";r=1;t=86400"#));
    assert_eq!(reported(&ask("/plain")), (same, r#""same";r=0;t=3600, "same#2";r=1"#));
    clock.advance(MINUTE * 60);
    assert_eq!(reported(&ask("/plain")), (same, r#""same";r=1;t=3600, "same#2";r=0;t=86400"#));
    let last = r#""same#2";r=0;t=82800, "same";r=1;t=3600"#;
    assert_eq!(reported(&ask("/plain")), (same, last));
    // The problem details use the same names as the headers.
    let rejected = get(server.address, "/plain", &["accept: application/json"]);
    assert!(rejected.body.ends_with(r#""violated-policies":["same#2"]}"#), "{}", rejected.body);
}

/// A limit of requests and one of tokens, in one decision. The legacy headers report the first item of a rejection.
#[test]
fn reports_first_the_limit_of_a_group_that_rejects() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let (requests, tokens) =
            (Limit::fixed("requests", 3, MINUTE), Limit::fixed("tokens", 10, MINUTE * 60));
        let cost = |head: &Parts| head.uri.query().and_then(|it| it.parse().ok()).unwrap_or(1);
        let layer = RateLimitLayer::new().legacy_headers().limit(requests, |_| ());
        let layer = layer.limit_with_cost(tokens, |_| (), cost).limiter(limiter.clone());
        let plain = Router::new().route("/", route_get(async || ()));
        let server = serve(plain.layer(layer), &limiter);
        for (path, status, states, legacy) in [
            ("/?4", 200, r#""requests";r=2;t=60, "tokens";r=6;t=3600"#, ["3", "2", "60"]),
            ("/?7", 429, r#""tokens";r=6;t=3600, "requests";r=2;t=60"#, ["10", "6", "3600"]),
            ("/?0", 200, r#""requests";r=1;t=60, "tokens";r=6;t=3600"#, ["3", "1", "60"]),
            ("/?2", 200, r#""requests";r=0;t=60, "tokens";r=4;t=3600"#, ["3", "0", "60"]),
            ("/?1", 429, r#""requests";r=0;t=60, "tokens";r=4"#, ["3", "0", "60"]),
            // Both reject it.
            ("/?9", 429, r#""tokens";r=4;t=3600, "requests";r=0;t=60"#, ["10", "4", "3600"]),
        ] {
            let answer = get(server.address, path, &[]);
            assert_eq!((answer.status, reported(&answer).1), (status, states), "{path}");
            let names = ["limit", "remaining", "reset"].map(|name| format!("x-ratelimit-{name}"));
            let values = names.map(|name| answer.header(&name).unwrap_or("none").to_owned());
            assert_eq!(values, legacy, "{path}");
        }
    }
}

/// A client that has no unit left learns when there is one, and not when there are all.
#[test]
fn an_empty_bucket_reports_the_wait_for_its_next_unit() {
    let redis = Server::start();
    for (limiter, clock) in limiters(&redis) {
        let bucket = Limit::token_bucket("bucket", 6, MINUTE).burst(3);
        let layer = RateLimitLayer::new().legacy_headers().limit(bucket, |_| ());
        let plain = Router::new().route("/", route_get(async || ()));
        let server = serve(plain.layer(layer.limiter(limiter.clone())), &limiter);
        for (advance, status, state, reset) in [
            (0, 200, r#""bucket";r=2;t=10"#, "10"),
            (0, 200, r#""bucket";r=1;t=20"#, "20"),
            (0, 200, r#""bucket";r=0;t=10"#, "10"),
            (3_500, 429, r#""bucket";r=0;t=7"#, "7"),
            (6_499, 429, r#""bucket";r=0;t=1"#, "1"),
            (2_001, 200, r#""bucket";r=0;t=8"#, "8"),
            (30_000, 200, r#""bucket";r=2;t=10"#, "10"),
        ] {
            clock.advance(Duration::from_millis(advance));
            let answer = get(server.address, "/", &[]);
            assert_eq!((answer.status, reported(&answer).1), (status, state));
            assert_eq!(answer.header("x-ratelimit-reset"), Some(reset));
        }
    }
}

/// A limit that decides about two keys has one item: the item of the key with fewer units.
#[test]
fn reports_a_limit_of_two_keys_once() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let by_path = |request: &Parts| request.uri.path().to_owned();
        let layer = || RateLimitLayer::new().limiter(limiter.clone());
        let plain = || Router::new().fallback(async || ());
        let one = plain().layer(layer().limit(ALL, |_| "all").limit(ALL, by_path));
        let two = plain().layer(layer().limit(ALL, by_path)).layer(layer().limit(ALL, |_| "all"));
        let other = plain().layer(layer().limit(ALL, |_| "all")).layer(layer().limit(ALL, by_path));
        for (app, path) in [(one, "one"), (two, "two"), (other, "other")] {
            reset(&limiter);
            let server = serve(app, &limiter);
            let state = |remaining| format!(r#""all";r={remaining};t=60"#);
            for (key, status, remaining) in
                [("a", 200, 3), ("b", 200, 2), ("b", 200, 1), ("c", 200, 0), ("d", 429, 0)]
            {
                let answer = get(server.address, &format!("/{path}/{key}"), &[]);
                let expected = (r#""all";q=4;w=60"#, &*state(remaining));
                assert_eq!((answer.status, reported(&answer)), (status, expected), "{path}/{key}");
            }
        }
    }
}

fn reset(limiter: &RateLimiter) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(limiter.reset(&ALL, "all")).expect("reset");
}

/// Caches between the service and its clients store responses for all clients.
#[test]
fn reports_nothing_in_responses_that_shared_caches_store() {
    let (limiter, _) = timed();
    let echo = async |request: Request| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let lines = query.split('&').map(|line| line.split_once(':').expect("a header"));
        let lines = lines.map(|(name, value)| (name.to_owned(), value.to_owned()));
        AppendHeaders(lines.collect::<Vec<_>>()).into_response()
    };
    let limit = Limit::fixed("cached", 99, MINUTE);
    let layer = RateLimitLayer::new().legacy_headers().limit(limit, |_| ());
    let app = Router::new().route("/", route_get(echo));
    let server = serve(app.layer(layer.limiter(limiter.clone())), &limiter);
    for (query, is_reported) in CACHED {
        let answer = get(server.address, &format!("/?{query}"), &[]);
        for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-remaining"] {
            assert_eq!(answer.header(name).is_some(), is_reported, "{name} beside {query}");
        }
    }
}

#[test]
fn joins_the_headers_of_several_layers() {
    let (limiter, _) = timed();
    let layer = |name, threshold| {
        let limit = Limit::fixed(name, threshold, MINUTE);
        RateLimitLayer::new().limit(limit, |_| ()).limiter(limiter.clone())
    };
    let router = router().layer(layer("inner", 1)).layer(layer("outer", 9).legacy_headers());
    let server = serve(router, &limiter);
    let ask = |path| get(server.address, path, &["accept: application/json"]);
    let policy = r#""outer";q=9;w=60, "inner";q=1;w=60"#;
    assert_eq!(reported(&ask("/hi/1")).0, r#""outer";q=9;w=60, "inner";q=1;w=60, "hi";q=2;w=30"#);
    let rejected = ask("/hi/1");
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("60")));
    // The inner layer rejected the request, so its limit comes first.
    assert_eq!(reported(&rejected), (policy, r#""inner";r=0;t=60, "outer";r=7;t=60"#));
    assert_eq!(rejected.header("x-ratelimit-remaining"), Some("7"));
}

/// For limits of layers, and of a handler that continues after a rejection.
#[test]
fn reports_no_time_after_retry_after() {
    let (limiter, _) = timed();
    let handler = async || if again().await.is_err() { second().await } else { Ok(()) };
    let layer = |name| {
        let limit = Limit::fixed(name, 1000, MINUTE * 1440);
        RateLimitLayer::new().legacy_headers().limit(limit, |_| ()).limiter(limiter.clone())
    };
    let router = Router::new().route("/", route_get(handler));
    let server = serve(router.layer(layer("day")).layer(layer("outer")), &limiter);
    let ask = || get(server.address, "/", &[]);
    assert!((0..5).all(|_| ask().status == 200));
    let rejected = ask();
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("1")));
    let policies =
        r#""outer";q=1000;w=86400, "day";q=1000;w=86400, "all";q=4;w=60, "second";q=1;w=1"#;
    let states = r#""second";r=0;t=1, "day";r=994, "all";r=0, "outer";r=994"#;
    assert_eq!(reported(&rejected), (policies, states));
    assert_eq!(rejected.header("x-ratelimit-limit"), Some("1"));
    assert_eq!(rejected.header("x-ratelimit-reset"), Some("1"));
}

#[test]
fn reports_the_limit_closest_to_reject_in_legacy_headers() {
    let (limiter, _) = timed();
    let layer = |name, threshold| {
        let limit = Limit::fixed(name, threshold, MINUTE);
        RateLimitLayer::new().legacy_headers().limit(limit, |_| ()).limiter(limiter.clone())
    };
    let plain = || Router::new().route("/", route_get(async || ()));
    for (outer, inner, nearest) in [("a", "b", "2"), ("c", "d", "2")] {
        let (wide, narrow) = if outer == "a" { (9, 2) } else { (2, 9) };
        let server = serve(plain().layer(layer(inner, narrow)).layer(layer(outer, wide)), &limiter);
        for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
            let answer = get(server.address, "/", &[]);
            assert_eq!(answer.status, status);
            assert_eq!(answer.header("x-ratelimit-limit"), Some(nearest));
            assert_eq!(answer.header("x-ratelimit-remaining"), Some(remaining));
        }
    }
}

#[test]
fn reports_only_the_limits_of_the_handler_to_exempt_requests() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit(ALL, |_| ()).exempt(|_| true);
    let server = serve(router().layer(layer.limiter(limiter.clone())), &limiter);
    let answer = get(server.address, "/plain", &[]);
    assert_eq!((answer.header("ratelimit-policy"), answer.header("ratelimit")), (None, None));
    let hi = (r#""hi";q=2;w=30"#, r#""hi";r=1;t=30"#);
    assert_eq!(reported(&get(server.address, "/hi/1", &[])), hi);
}

#[test]
fn joins_headers_that_the_handler_sets() {
    let (limiter, _) = timed();
    let upstream = async || {
        let lines = [r#""x";r=1;t=1"#, r#""y,\";z";r=2;t=2"#];
        let policies = [r#""x";q=1;w=1"#, r#""y,\";z";q=2;w=2"#];
        let policies = policies.map(|line| ("ratelimit-policy", line));
        (AppendHeaders(lines.map(|line| ("ratelimit", line))), AppendHeaders(policies))
    };
    let layer = RateLimitLayer::new().limit(ALL, |_| ()).limiter(limiter.clone());
    let server = serve(Router::new().route("/", route_get(upstream)).layer(layer), &limiter);
    assert_eq!(
        reported(&get(server.address, "/", &[])),
        (
            r#""all";q=4;w=60, "x";q=1;w=1, "y,\";z";q=2;w=2"#,
            r#""all";r=3;t=60, "x";r=1;t=1, "y,\";z";r=2;t=2"#,
        )
    );
}

#[test]
fn sends_legacy_headers_if_they_are_set() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().legacy_headers().limit(ALL, |_| ()).limiter(limiter.clone());
    let server = serve(router().layer(layer), &limiter);
    let legacy = |path| {
        let answer = get(server.address, path, &[]);
        let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
        names.map(|name| answer.header(name).unwrap_or("none").to_owned())
    };
    assert_eq!(legacy("/plain"), ["4", "3", "60"]);
    for remaining in ["1", "0"] {
        assert_eq!(legacy("/hi/1"), ["2", remaining, "30"]);
    }
    // Rejected by the handler, and then by the layer.
    assert_eq!(legacy("/hi/1"), ["2", "0", "30"]);
    assert_eq!(legacy("/hi/1"), ["4", "0", "60"]);
}
