//! Responses under rules: their fields and statuses are those of the limits in force.

use std::time::Duration;

use axum::Router;
use axum::routing::get as route_get;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Limit, Rejection, Rule, RuleSet, rate_limit};
use support::http::get;
use support::limits::ruled;
use support::server::Server;

use crate::{MINUTE, limiters, reported, serve, timed};

const RULED: Limit = Limit::fixed("ruled", 3, MINUTE);

#[rate_limit(limit = RULED)]
async fn handler() -> Result<&'static str, Rejection> {
    Ok("handler")
}

#[rate_limit(
    wait = "90s",
    limit(name = "ruled", period = "1m", threshold = 2),
    limit(name = "other", period = "1h", threshold = 50)
)]
async fn waiting() -> Result<&'static str, Rejection> {
    Ok("waiting")
}

/// A layer and a handler report each limit once, with the amounts in force.
#[test]
fn layers_report_the_limits_in_force() {
    let redis = Server::start();
    let other = Limit::fixed("other", 50, MINUTE);
    for (limiter, clock) in limiters(&redis) {
        let layer = || RateLimitLayer::new().limiter(limiter.clone());
        let both = layer().limit(other, |_| ()).limit(RULED, |_| "both");
        let app = Router::new()
            .route("/layer", route_get(async || ()).layer(layer().limit(RULED, |_| "layer")))
            .route("/both", route_get(async || ()).layer(both))
            .route("/handler", route_get(handler).layer(RateLimitLayer::new()));
        let server = serve(app, &limiter);
        let set = |rule| limiter.set_rules(ruled("ruled", rule)).expect("valid");
        for path in ["/layer", "/handler"] {
            let ask = || get(server.address, path, &[]);
            limiter.set_rules(RuleSet::new()).expect("valid");
            assert_eq!(reported(&ask()), (r#""ruled";q=3;w=60"#, r#""ruled";r=2;t=60"#));
            set(Rule::new().threshold(5));
            assert_eq!(reported(&ask()), (r#""ruled";q=5;w=60"#, r#""ruled";r=3;t=60"#));
            set(Rule::new().threshold(1));
            // On Redis, the second rejection comes from the cache.
            for _ in 0..2 {
                let answer = ask();
                assert_eq!(answer.status, 429);
                assert_eq!(reported(&answer), (r#""ruled";q=1;w=60"#, r#""ruled";r=0;t=60"#));
            }
            for rule in [Rule::new().exempt(true), Rule::new().threshold(1).shadow(true)] {
                set(rule);
                let answer = ask();
                assert_eq!((answer.status, answer.header("ratelimit")), (200, None), "{rule:?}");
            }
            let blocked = Rule::new().blocked(true);
            let until = std::time::SystemTime::UNIX_EPOCH + clock.now() + MINUTE / 2;
            for (rule, wait) in [(blocked.until(until), Some("30")), (blocked, None)] {
                set(rule);
                let answer = ask();
                assert_eq!((answer.status, answer.header("retry-after")), (429, wait), "{rule:?}");
            }
        }
        set(Rule::new().threshold(5));
        let policy = r#""other";q=50;w=60, "ruled";q=5;w=60"#;
        let states = r#""other";r=49;t=60, "ruled";r=4;t=60"#;
        assert_eq!(reported(&get(server.address, "/both", &[])), (policy, states));
    }
}

/// A call that starts again under a new rule reports its limits once.
#[test]
fn a_call_that_waits_reports_its_limits_once() {
    let (limiter, _) = timed();
    let app = Router::new().route("/waiting", route_get(waiting)).layer(RateLimitLayer::new());
    let server = serve(app, &limiter);
    let ruled_limit = Limit::sliding("ruled", 2, Duration::from_secs(60));
    server.runtime.block_on(async {
        limiter.check(&ruled_limit, (), 2).await.expect("admitted");
    });
    let address = server.address;
    let answer = std::thread::spawn(move || get(address, "/waiting", &[]));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!answer.is_finished(), "it waits");
    limiter.set_rules(ruled("ruled", Rule::new().threshold(1))).expect("valid");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!answer.is_finished(), "it waits");
    limiter.set_rules(ruled("ruled", Rule::new().threshold(9))).expect("valid");
    let answer = answer.join().expect("no panic");
    assert_eq!(answer.status, 200);
    let (policy, state) = reported(&answer);
    assert_eq!(policy, r#""ruled";q=9;w=60, "other";q=50;w=3600"#);
    assert_eq!(state, r#""ruled";r=6;t=60, "other";r=49;t=3600"#);
}
