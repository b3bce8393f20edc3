//! Responses over HTTP, and clients that leave.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix_web::{HttpResponse, web};
use axum::Router;
use axum::body::Body;
use axum::routing::get as route_get;
use bytes::Bytes;
use futures::stream;
use hyper::body::Frame;
use ratelimit_runtime::RateLimiter;
use ratelimit_runtime::web::actix::RateLimits;
use support::http::get;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use super::{Part, PartSender, SentBody, TWO, in_flight, layer, wait_for_in_flight};
use crate::{MINUTE, serve, serve_actix};

/// A client that reads as much of a response as it wants.
struct SlowClient(TcpStream);

impl SlowClient {
    fn get(address: SocketAddr, path: &str) -> Self {
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(MINUTE)).expect("supported");
        let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("the request is sent");
        Self(stream)
    }

    fn read_until(&mut self, text: &str) {
        let (mut shown, mut part) = (String::new(), [0; 1_024]);
        while !shown.contains(text) {
            let read = self.0.read(&mut part).expect("the server responds");
            assert!(read > 0, "the response ended with {shown}");
            shown.push_str(&String::from_utf8_lossy(&part[..read]));
        }
    }
}

type Senders = Arc<Mutex<Vec<PartSender>>>;

/// Returns a body whose first part is sent, and keeps its sender.
fn streamed(senders: &Senders) -> SentBody {
    let (sender, body) = unbounded_channel();
    sender.send(Ok(Frame::data(Bytes::from_static(b"started")))).expect("not dropped");
    senders.lock().expect("no panic").push(sender);
    SentBody(body)
}

/// Two clients read the streams of a server, which hold both slots until they end.
fn assert_streams_hold_their_slots(address: SocketAddr, senders: &Senders) {
    let mut clients = [(); 2].map(|()| SlowClient::get(address, "/stream"));
    for client in &mut clients {
        client.read_until("started");
    }
    let rejected = get(address, "/text", &["accept: application/json"]);
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("1")));
    assert_eq!(rejected.header("cache-control"), Some("no-store"));
    let policy = r#""two";q=2;qu="concurrent-requests""#;
    assert_eq!(rejected.header("ratelimit-policy"), Some(policy));
    assert_eq!(rejected.header("ratelimit"), Some(r#""two";r=0"#));
    let problem = r#""violated-policies":["two"]"#;
    assert!(rejected.body.contains(problem), "{}", rejected.body);
    senders.lock().expect("no panic").clear();
    for client in &mut clients {
        client.read_until("0\r\n\r\n");
    }
}

#[test]
fn a_stream_holds_its_slot_over_http_until_it_ends_or_its_client_leaves() {
    let (limiter, senders) = (RateLimiter::embedded(), Senders::default());
    let (kept, (entered, left)) = (Arc::clone(&senders), std::sync::mpsc::channel());
    let app = Router::new()
        .route("/stream", route_get(async move || Body::new(streamed(&kept))))
        .route("/text", route_get(async || "text"))
        .route("/never", {
            // The end of the handler, as it sees it.
            route_get(async move || {
                let (sender, ended) = oneshot::channel::<Infallible>();
                entered.send(ended).expect("the test receives it");
                std::future::pending::<()>().await;
                drop(sender);
            })
        });
    let server = serve(app.layer(layer(&limiter)), &limiter);
    assert_streams_hold_their_slots(server.address, &senders);
    server.runtime.block_on(async {
        wait_for_in_flight(&limiter, &TWO, 0).await;
        // Its stream waits for the next part when the client leaves.
        let mut leaving = SlowClient::get(server.address, "/stream");
        leaving.read_until("started");
        assert_eq!(in_flight(&limiter, &TWO).await, 1);
        leaving.0.shutdown(Shutdown::Both).expect("connected");
        wait_for_in_flight(&limiter, &TWO, 0).await;
    });

    // There is no response yet when the client leaves.
    let leaving = SlowClient::get(server.address, "/never");
    let ended = left.recv().expect("the handler runs");
    drop(leaving);
    server.runtime.block_on(async {
        assert!(ended.await.is_err());
        wait_for_in_flight(&limiter, &TWO, 0).await;
    });
}

#[test]
fn a_stream_of_actix_holds_its_slot_until_it_ends_or_its_client_leaves() {
    let (limiter, senders) = (RateLimiter::embedded(), Senders::default());
    let kept = Arc::clone(&senders);
    let routes = move |config: &mut web::ServiceConfig| {
        let senders = Arc::clone(&kept);
        let stream = move || {
            let next = async |mut parts: UnboundedReceiver<Part>| {
                let part = parts.recv().await?;
                Some((part.map(|frame| frame.into_data().unwrap_or_default()), parts))
            };
            let body = stream::unfold(streamed(&senders).0, next);
            async move { HttpResponse::Ok().streaming(body) }
        };
        let broken = async || Err::<&str, _>(actix_web::error::ErrorBadGateway("broken"));
        config
            .route("/stream", web::get().to(stream))
            .route("/none", web::get().to(async || HttpResponse::NoContent().finish()))
            .route("/broken", web::get().to(broken))
            .route("/text", web::get().to(async || "text"));
    };
    let limits = RateLimits::new().limit(TWO, |_| ());
    let address = serve_actix(routes, limits, &limiter, false);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for (path, status) in [("/none", 204), ("/broken", 502), ("/text", 200), ("/other", 404)] {
        for _ in 0..3 {
            assert_eq!(get(address, path, &[]).status, status);
            runtime.block_on(wait_for_in_flight(&limiter, &TWO, 0));
        }
    }
    assert_eq!(get(address, "/text", &[]).header("content-length"), Some("4"));

    assert_streams_hold_their_slots(address, &senders);
    runtime.block_on(wait_for_in_flight(&limiter, &TWO, 0));

    let mut failing = SlowClient::get(address, "/stream");
    failing.read_until("started");
    let sender = senders.lock().expect("no panic").pop().expect("a body");
    sender.send(Err("the source fails")).expect("not dropped");
    runtime.block_on(wait_for_in_flight(&limiter, &TWO, 0));

    let mut leaving = SlowClient::get(address, "/stream");
    leaving.read_until("started");
    drop(leaving);
    let sender = senders.lock().expect("no panic").pop().expect("a body");
    // Actix-web notices that a client has left when it writes to it.
    runtime.block_on(async {
        while sender.send(Ok(Frame::data(Bytes::from_static(b"more")))).is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        wait_for_in_flight(&limiter, &TWO, 0).await;
    });
}
