//! The headers that report limits, of the layer and of the handlers behind it.

use axum::Router;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::response::{AppendHeaders, IntoResponse};
use axum::routing::get as route_get;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Limit, Rejection, Scope, rate_limit};
use support::http::get;
use support::server::Server;

use super::{ALL, again, assert_reports_all_limits, legacy_of, router};
use crate::{MINUTE, items, limiters, reported, serve, timed};

#[rate_limit(period = "1s", threshold = 1, algo = "fixed", key = (), name = "second")]
async fn second() -> Result<(), Rejection> {
    Ok(())
}

#[test]
fn reports_all_limits_on_every_response() {
    let (limiter, clock) = timed();
    let layer = RateLimitLayer::new().legacy_headers().limit(ALL, |_| ()).limiter(limiter.clone());
    let server = serve(router().layer(layer), &limiter);
    assert_reports_all_limits(server.address, &clock);
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

/// Nor those of a layer to a request that is exempt.
#[test]
fn does_not_report_shadow_limits() {
    let layer = RateLimitLayer::new().limit(ALL, |_| ()).exempt(|_| true);
    let server = serve(router().layer(layer), &timed().0);
    for path in ["/tried", "/tried", "/plain"] {
        let answer = get(server.address, path, &[]);
        assert_eq!((answer.status, answer.header("ratelimit-policy")), (200, None));
        assert_eq!(answer.header("ratelimit"), None);
    }
    let hi = (r#""hi";q=2;w=30"#, r#""hi";r=1;t=30"#);
    assert_eq!(reported(&get(server.address, "/hi/1", &[])), hi);
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
            assert_eq!(legacy_of(&answer), legacy, "{path}");
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
        let all = |key: &'static str| layer().limit(ALL, move |_| key);
        let one = plain().layer(all("one").limit(ALL, by_path));
        let two = plain().layer(layer().limit(ALL, by_path)).layer(all("two"));
        let other = plain().layer(all("other")).layer(layer().limit(ALL, by_path));
        for (app, path) in [(one, "one"), (two, "two"), (other, "other")] {
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

/// The headers of responses as queries, and whether a layer reports limits beside them.
const CACHED: [(&str, bool); 14] = [
    ("cache-control:public", false),
    ("cache-control:max-age=60,Public", false),
    ("cache-control:s-maxage=60", false),
    ("cache-control:max-age=60", false),
    ("cache-control:no-transform&cache-control:PUBLIC", false),
    ("cache-control:private=a,max-age=60", false),
    ("cache-control:private&cdn-cache-control:max-age=60", false),
    ("cache-control:private", true),
    ("cache-control:private,max-age=60", true),
    ("cache-control:max-age=60&cache-control:private", true),
    ("cache-control:no-store,public", true),
    ("cache-control:max-age=0,must-revalidate", true),
    ("cache-control:no-cache", true),
    ("x-cache-control:public", true),
];

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
    let states = r#""second";r=0;t=1, "outer";r=994, "day";r=994, "all";r=0"#;
    assert_eq!(reported(&rejected), (policies, states));
    assert_eq!(legacy_of(&rejected), ["1", "0", "1"]);
}

/// The limit that rejects comes first, and the limit of a layer that was not asked is missing.
#[test]
fn joins_the_headers_of_several_layers() {
    let (limiter, _) = timed();
    let layer = |(name, threshold)| {
        let limit = Limit::fixed(name, threshold, MINUTE);
        RateLimitLayer::new().legacy_headers().limit(limit, |_| ()).limiter(limiter.clone())
    };
    for ([outer, inner], policy, states) in [
        ([("a", 9), ("b", 2)], r#""a";q=9;w=60, "b";q=2;w=60"#, r#""b";r=0;t=60, "a";r=6;t=60"#),
        ([("c", 2), ("d", 9)], r#""c";q=2;w=60"#, r#""c";r=0;t=60"#),
    ] {
        let plain = Router::new().route("/", route_get(async || ()));
        let server = serve(plain.layer(layer(inner)).layer(layer(outer)), &limiter);
        let ask = || get(server.address, "/", &[]);
        for remaining in ["1", "0"] {
            let answer = ask();
            assert_eq!((answer.status, legacy_of(&answer)), (200, ["2", remaining, "60"]));
        }
        let rejected = ask();
        assert_eq!((rejected.status, reported(&rejected)), (429, (policy, states)));
        assert_eq!(legacy_of(&rejected), ["2", "0", "60"]);
    }
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
