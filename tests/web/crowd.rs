//! Many concurrent requests on a real Redis: exactly the threshold is admitted.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use axum::Router;
use axum::routing::get;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Limit, Rejection, rate_limit};
use support::server::Server;

use crate::{MINUTE, serve};

const CONNECTIONS: usize = 8;
const REQUESTS: usize = 10_000;

const ALL: Limit = Limit::sliding("crowd.layer", 4_000, MINUTE);

#[rate_limit(period = "1d", threshold = 1000, algo = "token_bucket", name = "crowd.handler")]
async fn handler() -> Result<&'static str, Rejection> {
    Ok("in")
}

/// Numbers of requests: admitted, rejected by the layer, rejected by the handler.
type Count = [usize; 3];

/// Sends requests over one connection, one after the other.
fn ask(address: SocketAddr, requests: usize) -> Count {
    let mut stream = BufReader::new(TcpStream::connect(address).expect("a connection"));
    let mut count = [0; 3];
    for _ in 0..requests {
        let request = b"GET / HTTP/1.1\r\nhost: x\r\naccept: application/json\r\n\r\n";
        stream.get_mut().write_all(request).expect("a request");
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let start = head.len();
            stream.read_line(&mut head).expect("a line");
            match &head[start..] {
                "\r\n" => break,
                line => {
                    if let Some(value) = line.strip_prefix("content-length: ") {
                        length = value.trim().parse().expect("a length");
                    }
                }
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).expect("a body");
        let body = String::from_utf8(body).expect("UTF-8");
        count[match (&head[9..12], &*body) {
            ("200", "in") => 0,
            ("429", body) if body.contains("[\"crowd.layer\"]") => 1,
            ("429", body) if body.contains("[\"crowd.handler\"]") => 2,
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
    let router = Router::new().route("/", get(handler)).layer(layer);
    let server = serve(router, &limiter);
    let counts: Vec<Count> = std::thread::scope(|scope| {
        let ask = || ask(server.address, REQUESTS / CONNECTIONS);
        let crowd: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(ask)).collect();
        crowd.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    let total = [0, 1, 2].map(|what| counts.iter().map(|count| count[what]).sum::<usize>());
    assert_eq!(total, [1_000, 6_000, 3_000]);
}
