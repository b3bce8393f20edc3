//! Layers that hold slots: a request holds its slots until the body of its response has ended.

mod taken;

use std::convert::Infallible;
use std::future::{pending, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::poll_immediate;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use ratelimit_runtime::web::actix::RateLimits;
use ratelimit_runtime::web::{HeldBody, RateLimitLayer};
use ratelimit_runtime::{Limit, Mistake, RateLimiter, Rejection};
use support::server::Server;
use support::wait::wait_until;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;

use crate::{MINUTE, left, limiters, timed};

const TWO: Limit = Limit::in_flight("two", 2).hold(Duration::from_secs(3_600));

type Part = Result<Frame<Bytes>, &'static str>;

struct SentBody(UnboundedReceiver<Part>);

/// Sends the parts of the body of one response. Dropped, the body is at its end.
type PartSender = UnboundedSender<Part>;

impl Body for SentBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Part>> {
        self.0.poll_recv(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_closed() && self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(42);
        hint
    }
}

/// The body of a rejection, which these tests do not read.
impl From<String> for SentBody {
    fn from(_: String) -> Self {
        Self(unbounded_channel().1)
    }
}

/// A handler whose responses have bodies that the test ends.
#[derive(Clone, Default)]
struct Handler {
    senders: Arc<Mutex<Vec<PartSender>>>,
}

impl Handler {
    /// Sends a request through `layer`. Returns the response, and what ends its body; nothing if it is rejected.
    async fn send(
        &self,
        layer: &RateLimitLayer,
        path: &str,
    ) -> (Response<HeldBody<SentBody>>, Option<PartSender>) {
        let senders = Arc::clone(&self.senders);
        let handle = service_fn(move |_: Request<String>| {
            let (sender, body) = unbounded_channel();
            senders.lock().expect("no panic").push(sender);
            ready(Ok::<_, Infallible>(Response::new(SentBody(body))))
        });
        let request = Request::get(path).body(String::new()).expect("a request");
        let response = layer.layer(handle).oneshot(request).await.expect("infallible");
        (response, self.senders.lock().expect("no panic").pop())
    }

    async fn admit(&self, layer: &RateLimitLayer) -> (HeldBody<SentBody>, PartSender) {
        let (response, sender) = self.send(layer, "/").await;
        assert_eq!(response.status(), 200);
        (response.into_body(), sender.expect("the handler was called"))
    }

    async fn status(&self, layer: &RateLimitLayer, path: &str) -> u16 {
        self.send(layer, path).await.0.status().as_u16()
    }
}

fn layer(limiter: &RateLimiter) -> RateLimitLayer {
    RateLimitLayer::new().limit(TWO, |_| ()).limiter(limiter.clone())
}

async fn in_flight(limiter: &RateLimiter, limit: &Limit) -> u64 {
    let peeked = limiter.peek(limit, (), 0).await.expect("decided");
    peeked.limit - peeked.remaining
}

/// Waits until `units` are in flight: a server notices late that a client has left.
pub(crate) async fn wait_for_in_flight(limiter: &RateLimiter, limit: &Limit, units: u64) {
    wait_until(async || in_flight(limiter, limit).await == units).await;
}

// The ends of a body, and of a handler.

#[tokio::test]
async fn a_body_holds_its_slot_until_it_ends_fails_or_is_dropped() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let (handler, layer) = (Handler::default(), layer(&limiter));
        let (mut body, sender) = handler.admit(&layer).await;
        let data = |text: &'static str| Ok(Frame::data(Bytes::from_static(text.as_bytes())));
        sender.send(data("first")).expect("not dropped");
        assert!(body.frame().await.expect("a part").is_ok());
        assert_eq!(in_flight(&limiter, &TWO).await, 1);
        let (mut failing, failing_sender) = handler.admit(&layer).await;
        assert_eq!(handler.status(&layer, "/").await, 429);

        // Trailers follow the data, and belong to the body.
        sender.send(data("last")).expect("not dropped");
        let trailers = HeaderMap::from_iter([("x-sum".parse().expect("a name"), 7.into())]);
        sender.send(Ok(Frame::trailers(trailers))).expect("not dropped");
        assert!(body.frame().await.expect("a part").expect("data").is_data());
        assert_eq!(in_flight(&limiter, &TWO).await, 2);
        drop(sender);
        let trailers = body.frame().await.expect("a part").expect("trailers");
        assert_eq!(trailers.into_trailers().expect("trailers")["x-sum"], "7");
        // A server does not poll a body that says that it is at its end.
        wait_for_in_flight(&limiter, &TWO, 1).await;
        assert!(body.frame().await.is_none());

        failing_sender.send(Err("the source fails")).expect("not dropped");
        assert!(failing.frame().await.expect("a part").is_err());
        wait_for_in_flight(&limiter, &TWO, 0).await;

        let (mut body, sender) = handler.admit(&layer).await;
        assert!(poll_immediate(body.frame()).await.is_none());
        drop(sender);
        assert!(body.frame().await.is_none());
        wait_for_in_flight(&limiter, &TWO, 0).await;

        // Dropped without a poll, after what hyper asks of a body before it polls it.
        let (dropped, sender) = handler.admit(&layer).await;
        drop(sender);
        assert_eq!(in_flight(&limiter, &TWO).await, 1);
        assert_eq!((dropped.is_end_stream(), dropped.size_hint().lower()), (true, 42));
        drop(dropped);
        wait_for_in_flight(&limiter, &TWO, 0).await;
    }
}

#[tokio::test]
async fn a_body_that_is_at_its_end_frees_its_slot_at_once() {
    let (limiter, _) = timed();
    let empty = service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(String::new())))
    });
    let response = layer(&limiter).layer(empty).oneshot(Request::new(String::new())).await;
    let ended = response.expect("infallible");
    assert!(ended.body().is_end_stream());
    assert_eq!(in_flight(&limiter, &TWO).await, 0);
    let full = service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("text")))
    });
    let response = layer(&limiter).layer(full).oneshot(Request::new(String::new())).await;
    let mut body = response.expect("infallible").into_body();
    assert_eq!(body.size_hint().exact(), Some(4));
    assert_eq!(in_flight(&limiter, &TWO).await, 1);
    assert!(body.frame().await.is_some());
    assert_eq!(in_flight(&limiter, &TWO).await, 0, "the only part was the last");
}

/// A client that leaves before the response makes the server drop the future of the handler.
#[tokio::test]
async fn a_handler_that_is_dropped_fails_or_panics_frees_its_slot() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let layer = layer(&limiter);
        let handle = service_fn(async |request: Request<String>| match request.uri().path() {
            "/never" => pending().await,
            "/panic" => panic!("the handler panics"),
            _ => Err::<Response<Full<Bytes>>, _>("the service fails"),
        });
        let send = |path: &str| {
            let request = Request::get(path).body(String::new()).expect("a request");
            layer.layer(handle).oneshot(request)
        };
        {
            let mut running = pin!(send("/never"));
            while in_flight(&limiter, &TWO).await == 0 {
                assert!(poll_immediate(&mut running).await.is_none());
            }
            assert_eq!(in_flight(&limiter, &TWO).await, 1);
        }
        // Redis can have admitted the request before this process has received the reply.
        wait_for_in_flight(&limiter, &TWO, 0).await;
        let failed = send("/fail");
        assert!(failed.await.is_err());
        wait_for_in_flight(&limiter, &TWO, 0).await;
        assert!(AssertUnwindSafe(send("/panic")).catch_unwind().await.is_err());
        wait_for_in_flight(&limiter, &TWO, 0).await;
    }
}

// Slots beside rates, the other settings of a layer, rules, waits, and other layers.

const RATE: Limit = Limit::fixed("rate", 3, MINUTE);

/// Of the limits that reject a request, the one with the longest wait is reported first, and then those without slots.
/// Then those follow that admit it.
#[tokio::test]
async fn a_rate_and_slots_are_one_decision() {
    let redis = Server::start();
    let wide = Limit::fixed("wide", 9, MINUTE);
    for (limiter, _) in limiters(&redis) {
        let handler = Handler::default();
        let layer = RateLimitLayer::new().limit(wide, |_| ()).limit(TWO, |_| ()).legacy_headers();
        let layer = layer.limit_with_cost(RATE, |_| (), |head| head.uri.path().len() as u64);
        let layer = layer.limiter(limiter.clone());
        let running = [handler.admit(&layer).await, handler.admit(&layer).await];
        for (path, wait, capacity, states) in [
            ("/", "1", "2", r#""two";r=0, "wide";r=7, "rate";r=1"#),
            ("/7", "60", "3", r#""rate";r=1;t=60, "two";r=0, "wide";r=7;t=60"#),
        ] {
            let (rejected, _) = handler.send(&layer, path).await;
            assert_eq!(rejected.status(), 429);
            assert_eq!(rejected.headers()["retry-after"], wait);
            assert_eq!(rejected.headers()["ratelimit"], states);
            assert_eq!(rejected.headers()["x-ratelimit-limit"], capacity);
            let policy = r#""wide";q=9;w=60, "two";q=2;qu="concurrent-requests", "rate";q=3;w=60"#;
            assert_eq!(rejected.headers()["ratelimit-policy"], policy);
        }
        // A rate keeps the charge of a request that has ended.
        assert_eq!((left(&limiter, &RATE).await, in_flight(&limiter, &TWO).await), (1, 2));
        drop(running);
        wait_for_in_flight(&limiter, &TWO, 0).await;
        assert_eq!(left(&limiter, &RATE).await, 1);
    }
}

/// A request that does not count gets its charge back with the head of its response, and holds its slot until the end.
#[tokio::test]
async fn slots_are_held_whether_the_request_counts_or_not() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let handler = Handler::default();
        let layer = layer(&limiter).limit(RATE, |_| ());
        for (counts, remaining) in [(false, 3), (true, 2)] {
            let layer = layer.clone().count_if(move |_| counts);
            let (body, _sender) = handler.admit(&layer).await;
            assert_eq!(left(&limiter, &RATE).await, remaining);
            assert_eq!(in_flight(&limiter, &TWO).await, 1);
            drop(body);
            wait_for_in_flight(&limiter, &TWO, 0).await;
            assert_eq!(left(&limiter, &RATE).await, remaining);
        }
    }
}

#[tokio::test]
async fn a_request_waits_until_a_body_ends() {
    let redis = Server::start();
    // Real time: Redis grants slots to lines from the background thread.
    let on_redis = redis.builder().build().expect("valid settings");
    for limiter in [RateLimiter::embedded(), on_redis] {
        let waiting = TWO.wait(MINUTE);
        let layer = RateLimitLayer::new().limit(waiting, |_| ()).limiter(limiter.clone());
        let handler = Handler::default();
        let (mut first, sender) = handler.admit(&layer).await;
        let second = handler.admit(&layer).await;
        let mut third = Box::pin(handler.admit(&layer));
        let mut fourth = Box::pin(handler.admit(&layer));
        for _ in 0..20 {
            assert!(poll_immediate(&mut third).await.is_none());
            assert!(poll_immediate(&mut fourth).await.is_none());
            tokio::task::yield_now().await;
        }
        sender.send(Ok(Frame::data(Bytes::from_static(b"last")))).expect("not dropped");
        drop(sender);
        assert!(first.frame().await.is_some());
        let third = tokio::time::timeout(MINUTE, third).await.expect("a slot is free");
        // Its client leaves while it waits.
        drop(fourth);
        drop((second, third));
        wait_for_in_flight(&limiter, &TWO, 0).await;
    }
}

#[tokio::test]
async fn a_layer_that_cannot_hold_or_settle_says_so() {
    let message = |build: &dyn Fn()| {
        let panic = catch_unwind(AssertUnwindSafe(build)).expect_err("refused");
        panic.downcast::<String>().map(|text| *text).unwrap_or_default()
    };
    let leased = Limit::fixed("leased", 9, MINUTE).lease(2);
    let refused = message(&|| drop(RateLimitLayer::outbound::<()>().limit(TWO, |()| ())));
    assert!(refused.contains("`two` limits calls in flight"), "{refused}");
    for refused in [
        message(&|| drop(RateLimitLayer::new().limit(TWO, |_| ()).limit(leased, |_| ()))),
        message(&|| drop(RateLimitLayer::new().limit(leased, |_| ()).limit(TWO, |_| ()))),
        message(&|| drop(RateLimits::new().limit(TWO, |_| ()).limit(leased, |_| ()))),
        message(&|| drop(RateLimitLayer::new().limit(leased, |_| ()).count_if(|_| true))),
        message(&|| drop(RateLimitLayer::new().count_if(|_| true).limit(leased, |_| ()))),
    ] {
        assert!(refused.contains("`leased` has a lease"), "{refused}");
    }

    // Limits that are chosen for each request are known late.
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limits(move |request, limits| {
        if request.uri.path() != "/leased" {
            limits.add(&TWO, (), 1);
        }
        if request.uri.path() != "/" {
            limits.add(&leased, (), 1);
        }
        Ok(())
    });
    let layer = layer.limiter(limiter.clone());
    let handler = Handler::default();
    let (body, _sender) = handler.admit(&layer).await;
    assert_eq!(in_flight(&limiter, &TWO).await, 1);
    assert_eq!(handler.status(&layer, "/both").await, 500);
    assert_eq!(handler.status(&layer, "/leased").await, 200);
    assert_eq!(handler.status(&layer.count_if(|_| true), "/leased").await, 500);
    drop(body);

    let layer = RateLimitLayer::outbound().limits(|(): &(), limits| {
        limits.add(&TWO, (), 1);
        Ok(())
    });
    let client = tower::service_fn(async |()| Ok::<_, std::convert::Infallible>(()));
    let service = tower_layer::Layer::layer(&layer.limiter(limiter), client);
    let error = tower::ServiceExt::oneshot(service, ()).await.expect_err("it holds no slots");
    let Some(Rejection::Mistake { mistake: Mistake::NeedsPermit, .. }) = error.downcast_ref()
    else {
        panic!("{error}")
    };
}
