//! The client of a rejected upload receives the response, although no handler reads the body.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use actix_web::{App, HttpServer, web};
use axum::Router;
use axum::body::Bytes;
use axum::routing::post as route_post;
use ratelimit_runtime::web::actix::RateLimits;
use ratelimit_runtime::web::{RateLimitLayer, TextResponse};
use ratelimit_runtime::{Limit, RateLimiter};
use support::http::post;
use support::server::Server;

use crate::{MINUTE, Running, limiters, serve, timed};

const ONE: Limit = Limit::fixed("uploads", 1, MINUTE);

/// The most that is read of a body.
const MOST: usize = 64 * 1024;

/// A client with a pause between the parts of its body.
fn send_slowly(stream: &mut TcpStream, head: &str, parts: usize, part: &[u8]) {
    let request = format!("POST / HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the head is sent");
    for _ in 0..parts {
        std::thread::sleep(Duration::from_millis(5));
        stream.write_all(part).expect("the body is sent");
    }
}

/// Reads until the end of a response without a body, or of a text.
fn status(stream: &mut TcpStream) -> String {
    let mut buffer = [0; 4096];
    let length = stream.read(&mut buffer).expect("a response");
    String::from_utf8_lossy(&buffer[..length]).chars().skip(9).take(3).collect()
}

fn app(limiter: &RateLimiter) -> Running {
    let layer = RateLimitLayer::new().limit(ONE, |_| ()).limiter(limiter.clone());
    serve(Router::new().route("/", route_post(async |_: Bytes| ())).layer(layer), limiter)
}

fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).expect("a connection")
}

#[test]
fn the_response_comes_after_a_small_body_and_the_connection_stays_open() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let server = app(&limiter);
        assert_eq!(post(server.address, "/", &[], b"").status, 200);
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
}

#[test]
fn a_request_without_a_key_has_its_response_after_its_body() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limits(|_, _| Err(TextResponse::from((401, "who?"))));
    let server = serve(Router::new().route("/", route_post(async || ())).layer(layer), &limiter);
    let mut stream = connect(server.address);
    for _ in 0..2 {
        send_slowly(&mut stream, "content-length: 65536", 16, &[b'a'; MOST / 16]);
        assert_eq!(status(&mut stream), "401");
    }
}

#[test]
fn nothing_is_read_of_a_large_body_or_one_that_the_client_has_not_sent() {
    let (limiter, _) = timed();
    let server = app(&limiter);
    assert_eq!(post(server.address, "/", &[], b"").status, 200);
    for head in ["content-length: 65537", "content-length: 9\r\nexpect: 100-continue"] {
        let (mut stream, start) = (connect(server.address), Instant::now());
        send_slowly(&mut stream, head, 0, b"");
        assert_eq!(status(&mut stream), "429", "{head}");
        assert!(start.elapsed() < Duration::from_millis(900), "{head}");
    }
}

#[test]
fn a_client_that_stops_has_its_response_after_a_second() {
    let (limiter, _) = timed();
    let server = app(&limiter);
    assert_eq!(post(server.address, "/", &[], b"").status, 200);
    let (mut stream, start) = (connect(server.address), Instant::now());
    send_slowly(&mut stream, "content-length: 9", 1, b"a");
    assert_eq!(status(&mut stream), "429");
    assert!(start.elapsed() >= Duration::from_secs(1));
}

/// actix-web reads what the middleware leaves.
#[test]
fn the_response_comes_after_a_small_body_in_actix() {
    let (limiter, _) = timed();
    let limits = RateLimits::new().limit(ONE, |_| ()).limiter(limiter);
    let (tell, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let factory =
            move || App::new().wrap(limits.clone()).route("/", web::post().to(async || ""));
        let server = HttpServer::new(factory).workers(1).disable_signals().bind("127.0.0.1:0");
        let server = server.expect("a free port");
        tell.send(server.addrs()[0]).expect("the test waits for it");
        actix_web::rt::System::new().block_on(server.run()).expect("it is served");
    });
    let address = address.recv().expect("an address");
    assert_eq!(post(address, "/", &[], b"").status, 200);
    for _ in 0..2 {
        let mut stream = connect(address);
        send_slowly(&mut stream, "content-length: 65536", 16, &[b'a'; MOST / 16]);
        assert_eq!(status(&mut stream), "429");
    }
}
