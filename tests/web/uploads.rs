//! The client of a rejected upload receives the response, although no handler reads the body.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use actix_web::web;
use axum::Router;
use axum::body::Bytes;
use axum::routing::post as route_post;
use ratelimit_runtime::web::actix::RateLimits;
use ratelimit_runtime::web::{RateLimitLayer, TextResponse};
use ratelimit_runtime::{Limit, RateLimiter};
use support::http::post;
use support::server::Server;

use crate::{MINUTE, Running, limiters, serve, serve_actix, timed};

const ONE: Limit = Limit::fixed("uploads", 1, MINUTE);

/// The most bytes that are read of a body.
const MOST: usize = 64 * 1024;

fn send_slowly(stream: &mut TcpStream, head: &str, parts: usize, part: &[u8]) {
    let request = format!("POST / HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the head is sent");
    for _ in 0..parts {
        std::thread::sleep(Duration::from_millis(5));
        stream.write_all(part).expect("the body is sent");
    }
}

fn status(stream: &mut TcpStream) -> String {
    let mut buffer = [0; 4096];
    let length = stream.read(&mut buffer).expect("a response");
    String::from_utf8_lossy(&buffer[..length]).chars().skip(9).take(3).collect()
}

fn app(limiter: &RateLimiter) -> Running {
    let layer = RateLimitLayer::new().limit(ONE, |_| ()).limiter(limiter.clone());
    let router = Router::new().route("/", route_post(async |_: Bytes| ())).layer(layer);
    let server = serve(router, limiter);
    assert_eq!(post(server.address, "/", &[], b"").status, 200);
    server
}

fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).expect("a connection")
}

#[test]
fn the_response_comes_after_a_small_body_and_the_connection_stays_open() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let server = app(&limiter);
        let mut stream = connect(server.address);
        let head = format!("content-length: {MOST}");
        for _ in 0..2 {
            send_slowly(&mut stream, &head, 16, &[b'a'; MOST / 16]);
            assert_eq!(status(&mut stream), "429");
        }
        let chunk = [b"fff\r\n", &[b'a'; 0xfff][..], b"\r\n"].concat();
        for _ in 0..2 {
            send_slowly(&mut stream, "transfer-encoding: chunked", 15, &chunk);
            stream.write_all(b"0\r\n\r\n").expect("the end is sent");
            assert_eq!(status(&mut stream), "429");
        }
    }
    // A request without a key.
    let layer = RateLimitLayer::new().limits(|_, _| Err(TextResponse::from((401, "who?"))));
    let router = Router::new().route("/", route_post(async || ())).layer(layer);
    let server = serve(router, &timed().0);
    let mut stream = connect(server.address);
    for _ in 0..2 {
        send_slowly(&mut stream, "content-length: 65536", 16, &[b'a'; MOST / 16]);
        assert_eq!(status(&mut stream), "401");
    }
}

#[test]
fn nothing_is_read_of_a_large_body_or_one_that_the_client_has_not_sent() {
    let server = app(&timed().0);
    for head in ["content-length: 65537", "content-length: 9\r\nexpect: 100-continue"] {
        let (mut stream, start) = (connect(server.address), Instant::now());
        send_slowly(&mut stream, head, 0, b"");
        assert_eq!(status(&mut stream), "429", "{head}");
        assert!(start.elapsed() < Duration::from_millis(900), "{head}");
    }
}

#[test]
fn a_client_that_stops_has_its_response_after_a_second() {
    let server = app(&timed().0);
    let (mut stream, start) = (connect(server.address), Instant::now());
    send_slowly(&mut stream, "content-length: 9", 1, b"a");
    assert_eq!(status(&mut stream), "429");
    assert!(start.elapsed() >= Duration::from_secs(1));
}

/// actix-web reads what the middleware leaves.
#[test]
fn the_response_comes_after_a_small_body_in_actix() {
    let routes = |config: &mut web::ServiceConfig| {
        config.route("/", web::post().to(async || ""));
    };
    let address = serve_actix(routes, RateLimits::new().limit(ONE, |_| ()), &timed().0, false);
    assert_eq!(post(address, "/", &[], b"").status, 200);
    for _ in 0..2 {
        let mut stream = connect(address);
        send_slowly(&mut stream, "content-length: 65536", 16, &[b'a'; MOST / 16]);
        assert_eq!(status(&mut stream), "429");
    }
}
