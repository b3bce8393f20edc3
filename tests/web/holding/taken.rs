//! A handler that takes the slots out of its request, responses over HTTP, and clients that leave.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc;

use actix_web::HttpResponse;
use actix_web::test::{call_service, read_body};
use axum::Extension;
use axum::body::Body;
use futures::stream;
use ratelimit_runtime::Permit;
use ratelimit_runtime::web::RequestSlots;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::{Part, PartSender, SentBody, TWO, data, in_flight, layer, wait_for_in_flight};
use crate::prelude::*;

const OUTER: Limit = Limit::in_flight("outer", 9);

type Taken = UnboundedSender<Vec<Permit>>;

async fn take(slots: RequestSlots, Extension(taken): Extension<Taken>) -> &'static str {
    taken.send(slots.take()).expect("the test receives them");
    assert!(slots.take().is_empty());
    "taken"
}

async fn status(service: &Router) -> u16 {
    let response = service.clone().oneshot(Request::new(Body::empty())).await;
    response.expect("infallible").status().as_u16()
}

/// The slots of all layers belong to the work of the handler. Without a slot, nothing is taken.
#[tokio::test]
async fn taken_slots_are_held_until_their_permits_are_dropped() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let (sender, mut taken) = unbounded_channel::<Vec<Permit>>();
        let outer = RateLimitLayer::new().limit(OUTER, |_| ()).limiter(limiter.clone());
        let app = Router::new().fallback(take).layer(Extension(sender));
        let app = app.layer(layer(&limiter)).layer(outer);
        assert_eq!((status(&app).await, status(&app).await), (200, 200));
        let [first, second] = [taken.recv().await, taken.recv().await].map(|it| it.expect("sent"));
        assert_eq!((first.len(), second.len()), (2, 2));
        assert_eq!(status(&app).await, 429);
        wait_for_in_flight(&limiter, &OUTER, 2).await;
        assert_eq!(in_flight(&limiter, &TWO).await, 2);
        drop(first);
        wait_for_in_flight(&limiter, &TWO, 1).await;
        wait_for_in_flight(&limiter, &OUTER, 1).await;
        assert_eq!(status(&app).await, 200);
        drop((second, taken.recv().await));

        limiter.set_rules(ruled("two", Rule::new().exempt(true))).expect("valid");
        assert_eq!(status(&app).await, 200);
        assert_eq!(taken.recv().await.expect("sent").len(), 1);
    }
}

/// Slots that are not taken while the response is there are free, whoever still has the extension.
#[tokio::test]
async fn slots_that_are_taken_too_late_are_gone() {
    let (limiter, _) = timed();
    let (sender, mut kept) = unbounded_channel::<RequestSlots>();
    let handle = tower::service_fn(move |request: Request<String>| {
        let slots = request.extensions().get::<RequestSlots>().cloned().expect("from the layer");
        assert_eq!(format!("{slots:?}"), "RequestSlots { slots: 1 }");
        sender.send(slots).expect("the test receives it");
        std::future::ready(Ok::<_, Infallible>(Response::new(String::new())))
    });
    let response = layer(&limiter).layer(handle).oneshot(Request::new(String::new())).await;
    let slots = kept.recv().await.expect("sent");
    assert_eq!(in_flight(&limiter, &TWO).await, 0);
    assert!(slots.take().is_empty());
    drop(response);
}

#[tokio::test]
async fn an_extractor_without_a_layer_that_holds_responds_with_500() {
    let limiter = RateLimiter::embedded();
    let (sender, _taken) = unbounded_channel::<Vec<Permit>>();
    let app = Router::new().fallback(take).layer(Extension(sender));
    let app = app.layer(RateLimitLayer::new().limiter(limiter.clone()));
    assert_eq!(status(&app).await, 500);

    let handle = async |slots: RequestSlots| slots.take().len().to_string();
    let fixed = RateLimits::new().limit(TWO, |_| ());
    let chosen = RateLimits::new().limits(|request, limits| {
        if request.path() == "/" {
            limits.add(&TWO, (), 1);
        }
        Ok(())
    });
    // An empty text stands for any response with 500.
    for (limits, path, taken) in [
        (RateLimits::new(), "/", ""),
        (fixed, "/", "1"),
        (chosen.clone(), "/", "1"),
        (chosen, "/free", "0"),
    ] {
        let app = App::new().wrap(limits.limiter(limiter.clone()));
        let app = init_service(app.route("/{path:.*}", web::get().to(handle))).await;
        let response = call_service(&app, TestRequest::get().uri(path).to_request()).await;
        assert_eq!(response.status() == 500, taken.is_empty(), "{path}");
        assert!(read_body(response).await.starts_with(taken.as_bytes()), "{path}");
        assert_eq!(in_flight(&limiter, &TWO).await, 0);
    }
}

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
    sender.send(Ok(data("started"))).expect("not dropped");
    senders.lock().expect("no panic").push(sender);
    SentBody(body)
}

/// Starts to read the stream of a server. Returns the client, and the sender of the stream.
fn start_stream(address: SocketAddr, senders: &Senders) -> (SlowClient, PartSender) {
    let mut client = SlowClient::get(address, "/stream");
    client.read_until("started");
    (client, senders.lock().expect("no panic").pop().expect("a body"))
}

fn assert_streams_hold_their_slots(address: SocketAddr, senders: &Senders) {
    let streams = [(); 2].map(|()| start_stream(address, senders));
    let rejected = get(address, "/text", &["accept: application/json"]);
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("1")));
    assert_eq!(rejected.header("cache-control"), Some("no-store"));
    let policy = r#""two";q=2;qu="concurrent-requests""#;
    assert_eq!(rejected.header("ratelimit-policy"), Some(policy));
    assert_eq!(rejected.header("ratelimit"), Some(r#""two";r=0"#));
    assert!(rejected.body.contains(r#""violated-policies":["two"]"#), "{}", rejected.body);
    for (mut client, sender) in streams {
        drop(sender);
        client.read_until("0\r\n\r\n");
    }
}

#[test]
fn a_stream_holds_its_slot_over_http_until_it_ends_or_its_client_leaves() {
    let (limiter, senders) = (RateLimiter::embedded(), Senders::default());
    let (kept, (entered, left)) = (Arc::clone(&senders), mpsc::channel());
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
    let wait_for = |units| server.runtime.block_on(wait_for_in_flight(&limiter, &TWO, units));
    assert_streams_hold_their_slots(server.address, &senders);
    wait_for(0);

    let (leaving, _sender) = start_stream(server.address, &senders);
    wait_for(1);
    leaving.0.shutdown(Shutdown::Both).expect("connected");
    wait_for(0);

    let leaving = SlowClient::get(server.address, "/never");
    let ended = left.recv().expect("the handler runs");
    drop(leaving);
    assert!(ended.blocking_recv().is_err());
    wait_for(0);
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
    let address = serve_actix(routes, RateLimits::new().limit(TWO, |_| ()), &limiter, false);
    let runtime = support::runtime();
    let wait_until_free = || runtime.block_on(wait_for_in_flight(&limiter, &TWO, 0));
    for (path, status) in [("/none", 204), ("/broken", 502), ("/text", 200), ("/other", 404)] {
        for _ in 0..3 {
            let answer = get(address, path, &[]);
            assert_eq!(answer.status, status);
            assert!(path != "/text" || answer.header("content-length") == Some("4"));
            wait_until_free();
        }
    }
    assert_streams_hold_their_slots(address, &senders);
    wait_until_free();

    let (_failing, sender) = start_stream(address, &senders);
    sender.send(Err("the source fails")).expect("not dropped");
    wait_until_free();

    let (leaving, sender) = start_stream(address, &senders);
    drop(leaving);
    // Actix-web notices that a client has left when it writes to it.
    while sender.send(Ok(data("more"))).is_ok() {
        std::thread::sleep(Duration::from_millis(2));
    }
    wait_until_free();
}
