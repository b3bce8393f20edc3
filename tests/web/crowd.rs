//! Many concurrent requests on a real Redis: exactly the threshold is admitted.

use std::net::SocketAddr;

use axum::Router;
use axum::routing::get as route_get;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Limit, Rejection, rate_limit};
use support::http::get;
use support::server::Server;

use crate::{MINUTE, serve};

const CLIENTS: usize = 8;
const REQUESTS: usize = 4_000;

const ALL: Limit = Limit::sliding("crowd.layer", 1_600, MINUTE);

#[rate_limit(period = "1d", threshold = 400, algo = "token_bucket", name = "crowd.handler")]
async fn handler() -> Result<&'static str, Rejection> {
    Ok("in")
}

/// Numbers of requests: admitted, rejected by the layer, rejected by the handler.
type Count = [usize; 3];

fn ask(address: SocketAddr, requests: usize) -> Count {
    let mut count = [0; 3];
    for _ in 0..requests {
        let answer = get(address, "/", &["accept: application/json"]);
        count[match (answer.status, &*answer.body) {
            (200, "in") => 0,
            (429, body) if body.contains("[\"crowd.layer\"]") => 1,
            (429, body) if body.contains("[\"crowd.handler\"]") => 2,
            other => panic!("{other:?}"),
        }] += 1;
    }
    count
}

#[test]
fn admits_exactly_the_threshold() {
    let redis = Server::start();
    let limiter = redis.builder().build().expect("valid");
    // Without a limiter of its own, the layer uses that of the handler.
    let layer = RateLimitLayer::new().limit(ALL, |_| ());
    let router = Router::new().route("/", route_get(handler)).layer(layer);
    let server = serve(router, &limiter);
    let counts: Vec<Count> = std::thread::scope(|scope| {
        let ask = || ask(server.address, REQUESTS / CLIENTS);
        let crowd: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        crowd.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    let total = [0, 1, 2].map(|what| counts.iter().map(|count| count[what]).sum::<usize>());
    assert_eq!(total, [400, 2_400, 1_200]);
}
