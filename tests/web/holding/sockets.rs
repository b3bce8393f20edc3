//! Responses over HTTP, and clients that leave.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix_web::body::{BodySize, MessageBody};
use actix_web::{App, HttpResponse, HttpServer, web};
use axum::Router;
use axum::body::Body;
use axum::response::Sse;
use axum::response::sse::Event;
use axum::routing::get as route_get;
use bytes::Bytes;
use futures::stream;
use hyper::body::Frame;
use ratelimit_runtime::RateLimiter;
use ratelimit_runtime::web::actix::RateLimits;
use ratelimit_runtime::web::{Client, Clients, RateLimitLayer};
use support::http::{get, request};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot;

use super::{PartSender, SentBody, TWO, in_flight, layer, wait_for_in_flight};
use crate::{MINUTE, serve};

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

    /// Reads until the response has shown `text`.
    fn read_until(&mut self, text: &str) {
        let (mut shown, mut part) = (String::new(), [0; 1_024]);
        while !shown.contains(text) {
            let read = self.0.read(&mut part).expect("the server responds");
            assert!(read > 0, "the response ended with {shown}");
            shown.push_str(&String::from_utf8_lossy(&part[..read]));
        }
    }
}

/// The senders of the bodies that an application streams.
type Senders = Arc<Mutex<Vec<PartSender>>>;

/// Returns a body whose first part is sent, and keeps its sender.
fn streamed(senders: &Senders) -> SentBody {
    let (sender, body) = unbounded_channel();
    sender.send(Ok(Frame::data(Bytes::from_static(b"started")))).expect("not dropped");
    senders.lock().expect("no panic").push(sender);
    SentBody(body)
}

fn end_one(senders: &Senders) {
    drop(senders.lock().expect("no panic").pop().expect("a body"));
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
    let mut first = SlowClient::get(server.address, "/stream");
    let mut second = SlowClient::get(server.address, "/stream");
    first.read_until("started");
    second.read_until("started");

    let rejected = get(server.address, "/text", &[]);
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("1")));
    assert_eq!(rejected.header("cache-control"), Some("no-store"));
    let policy = r#""two";q=2;qu="concurrent-requests""#;
    assert_eq!(rejected.header("ratelimit-policy"), Some(policy));
    assert_eq!(rejected.header("ratelimit"), Some(r#""two";r=0"#));
    let json = get(server.address, "/text", &["accept: application/json"]);
    assert!(json.body.contains(r#""violated-policies":["two"]"#), "{}", json.body);

    end_one(&senders);
    end_one(&senders);
    first.read_until("0\r\n\r\n");
    second.read_until("0\r\n\r\n");
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
fn events_and_bodies_without_data_free_their_slots() {
    let limiter = RateLimiter::embedded();
    let event = Event::default().data("an event");
    let app = Router::new()
        .route("/events", {
            route_get(async move || Sse::new(stream::iter([Ok::<_, Infallible>(event)])))
        })
        .route("/none", route_get(async || http::StatusCode::NO_CONTENT))
        .route("/text", route_get(async || "text"));
    let server = serve(app.layer(layer(&limiter)), &limiter);
    let events = get(server.address, "/events", &[]);
    assert!(events.body.contains("data: an event"), "{}", events.body);
    assert_eq!(events.header("ratelimit"), Some(r#""two";r=1"#));
    for _ in 0..4 {
        assert_eq!(get(server.address, "/none", &[]).status, 204);
        let text = get(server.address, "/text", &[]);
        // The size of the body is known behind the layer as well.
        assert_eq!((text.header("content-length"), &*text.body), (Some("4"), "text"));
        assert_eq!(request(server.address, "HEAD", "/events", &[], &[]).status, 200);
        server.runtime.block_on(wait_for_in_flight(&limiter, &TWO, 0));
    }
}

/// The body of a response of actix-web.
struct ActixBody(SentBody);

impl MessageBody for ActixBody {
    type Error = &'static str;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Bytes, &'static str>>> {
        let body = std::pin::Pin::new(&mut self.0);
        let part = hyper::body::Body::poll_frame(body, context);
        part.map_ok(|frame| frame.into_data().unwrap_or_default())
    }
}

fn serve_actix(limiter: &RateLimiter, senders: &Senders) -> SocketAddr {
    let (tell, address) = std::sync::mpsc::channel();
    let limits = RateLimits::new().limit(TWO, |_| ()).limiter(limiter.clone());
    let senders = Arc::clone(senders);
    std::thread::spawn(move || {
        let server = HttpServer::new(move || {
            let senders = Arc::clone(&senders);
            let stream = move || {
                let body = ActixBody(streamed(&senders));
                async move { HttpResponse::Ok().message_body(body).expect("a response") }
            };
            let broken = async || Err::<&str, _>(actix_web::error::ErrorBadGateway("broken"));
            App::new()
                .wrap(limits.clone())
                .route("/stream", web::get().to(stream))
                .route("/none", web::get().to(async || HttpResponse::NoContent().finish()))
                .route("/broken", web::get().to(broken))
                .route("/text", web::get().to(async || "text"))
        });
        let server = server.workers(1).disable_signals().bind("127.0.0.1:0").expect("a free port");
        tell.send(server.addrs()[0]).expect("the test waits for it");
        actix_web::rt::System::new().block_on(server.run()).expect("it is served");
    });
    address.recv().expect("an address")
}

#[test]
fn a_stream_of_actix_holds_its_slot_until_it_ends_or_its_client_leaves() {
    let (limiter, senders) = (RateLimiter::embedded(), Senders::default());
    let address = serve_actix(&limiter, &senders);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for (path, status) in [("/none", 204), ("/broken", 502), ("/text", 200), ("/other", 404)] {
        for _ in 0..3 {
            assert_eq!(get(address, path, &[]).status, status);
            runtime.block_on(wait_for_in_flight(&limiter, &TWO, 0));
        }
    }
    assert_eq!(get(address, "/text", &[]).header("content-length"), Some("4"));

    let mut first = SlowClient::get(address, "/stream");
    let mut second = SlowClient::get(address, "/stream");
    first.read_until("started");
    second.read_until("started");
    let rejected = get(address, "/text", &[]);
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("1")));
    let policy = r#""two";q=2;qu="concurrent-requests""#;
    assert_eq!(rejected.header("ratelimit-policy"), Some(policy));

    end_one(&senders);
    end_one(&senders);
    first.read_until("0\r\n\r\n");
    second.read_until("0\r\n\r\n");
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

/// Each client has slots of its own.
#[test]
fn clients_have_slots_of_their_own() {
    let (limiter, senders) = (RateLimiter::embedded(), Senders::default());
    let app = Router::new()
        .route("/stream", route_get(async move || Body::new(streamed(&senders))))
        .route("/text", route_get(async || "text"));
    let layer = RateLimitLayer::new()
        .clients(Clients::behind_proxies(["127.0.0.1"]).expect("valid"))
        .limit(TWO, Client::of)
        .limiter(limiter.clone());
    let server = serve(app.layer(layer), &limiter);
    let _streams = [(); 2].map(|()| {
        let mut client = SlowClient::get(server.address, "/stream");
        client.read_until("started");
        client
    });
    assert_eq!(get(server.address, "/text", &[]).status, 429);
    assert_eq!(get(server.address, "/text", &["x-forwarded-for: 192.0.2.1"]).status, 200);
}
