//! The client of a rejected upload receives the response, although no handler reads the body.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use crate::prelude::*;

const ONE: Limit = Limit::fixed("uploads", 1, MINUTE);

/// Sends a request, its body in slow parts. Returns the status of the response.
fn upload(stream: &mut TcpStream, head: &str, parts: &[&[u8]]) -> String {
    let request = format!("POST / HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("the head is sent");
    for part in parts {
        std::thread::sleep(Duration::from_millis(5));
        stream.write_all(part).expect("the body is sent");
    }
    let mut buffer = [0; 4096];
    let length = stream.read(&mut buffer).expect("a response");
    String::from_utf8_lossy(&buffer[..length]).chars().skip(9).take(3).collect()
}

/// Uploads as much as is read of a body, twice over one connection.
fn assert_responds_after_small_bodies(address: SocketAddr, status: &str) {
    let mut stream = connect(address);
    let part = &[b'a'; 4096][..];
    let chunk = [b"fff\r\n", &part[1..], b"\r\n"].concat();
    let mut chunks = vec![&*chunk; 15];
    chunks.push(b"0\r\n\r\n");
    for _ in 0..2 {
        assert_eq!(upload(&mut stream, "content-length: 65536", &[part; 16]), status);
    }
    for _ in 0..2 {
        assert_eq!(upload(&mut stream, "transfer-encoding: chunked", &chunks), status);
    }
}

/// Starts a server that has admitted its last request.
fn app(limiter: &RateLimiter) -> Running {
    let layer = RateLimitLayer::new().limit(ONE, |_| ());
    let server = serve(Router::new().fallback(async |_: Bytes| ()).layer(layer), limiter);
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
        assert_responds_after_small_bodies(app(&limiter).address, "429");
    }
    let layer = RateLimitLayer::new().limits(|_, _| Err(TextResponse::from((401, "who?"))));
    let refusing = Router::new().fallback(async || ()).layer(layer);
    assert_responds_after_small_bodies(serve(refusing, &timed().0).address, "401");
    // actix-web reads what the middleware leaves.
    let routes = |config: &mut web::ServiceConfig| {
        config.route("/", web::post().to(async || ""));
    };
    let address = serve_actix(routes, RateLimits::new().limit(ONE, |_| ()), &timed().0, false);
    assert_eq!(post(address, "/", &[], b"").status, 200);
    for _ in 0..2 {
        assert_eq!(
            upload(&mut connect(address), "content-length: 65536", &[&[b'a'; 4096][..]; 16]),
            "429"
        );
    }
}

#[test]
fn nothing_is_read_of_a_large_body_or_one_that_the_client_has_not_sent() {
    let server = app(&timed().0);
    for head in ["content-length: 65537", "content-length: 9\r\nexpect: 100-continue"] {
        let start = Instant::now();
        assert_eq!(upload(&mut connect(server.address), head, &[]), "429", "{head}");
        assert!(start.elapsed() < Duration::from_millis(900), "{head}");
    }
}

#[test]
fn a_client_that_stops_has_its_response_after_a_second() {
    let (server, start) = (app(&timed().0), Instant::now());
    assert_eq!(upload(&mut connect(server.address), "content-length: 9", &[b"a"]), "429");
    assert!(start.elapsed() >= SECOND);
}
