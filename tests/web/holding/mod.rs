//! Layers that hold slots: a request holds its slots until the body of its response has ended.

mod taken;

use std::future::{pending, ready};
use std::panic::catch_unwind;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use http::HeaderMap;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame};
use ratelimit_runtime::Mistake;
use ratelimit_runtime::web::HeldBody;
use support::limits::HOUR;
use support::wait::wait_until;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::prelude::*;

const TWO: Limit = Limit::in_flight("two", 2).hold(HOUR);

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
}

/// The body of a rejection, which these tests do not read.
impl From<String> for SentBody {
    fn from(_: String) -> Self {
        Self(unbounded_channel().1)
    }
}

fn data(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(text.as_bytes()))
}

/// Sends a request through `layer` to a handler. Returns the response, and what ends its body.
async fn send(layer: &RateLimitLayer, path: &str) -> (Response<HeldBody<SentBody>>, PartSender) {
    let (sender, body) = unbounded_channel();
    let body = Arc::new(Mutex::new(Some(SentBody(body))));
    let handle = service_fn(move |_: Request<String>| {
        let body = body.lock().expect("no panic").take().expect("one request");
        ready(Ok::<_, Infallible>(Response::new(body)))
    });
    let request = Request::get(path).body(String::new()).expect("a request");
    (layer.layer(handle).oneshot(request).await.expect("infallible"), sender)
}

async fn admit(layer: &RateLimitLayer) -> (HeldBody<SentBody>, PartSender) {
    let (response, sender) = send(layer, "/").await;
    assert_eq!(response.status(), 200);
    (response.into_body(), sender)
}

async fn status(layer: &RateLimitLayer, path: &str) -> u16 {
    send(layer, path).await.0.status().as_u16()
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

support::on_both_stores! {
    limiters;

    async fn a_body_holds_its_slot_until_it_ends_fails_or_is_dropped((limiter, _)) {
        let layer = layer(&limiter);
        let (mut body, sender) = admit(&layer).await;
        sender.send(Ok(data("first"))).expect("not dropped");
        assert!(body.frame().await.expect("a part").is_ok());
        assert_eq!(in_flight(&limiter, &TWO).await, 1);
        let (mut failing, failing_sender) = admit(&layer).await;
        assert_eq!(status(&layer, "/").await, 429);
        // Trailers follow the data, and belong to the body.
        sender.send(Ok(data("last"))).expect("not dropped");
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

        let (mut body, sender) = admit(&layer).await;
        assert!(poll_immediate(body.frame()).await.is_none());
        drop(sender);
        assert!(body.frame().await.is_none());
        wait_for_in_flight(&limiter, &TWO, 0).await;
        // Dropped without a poll, after what hyper asks of a body before it polls it.
        let (dropped, sender) = admit(&layer).await;
        drop(sender);
        assert_eq!((in_flight(&limiter, &TWO).await, dropped.is_end_stream()), (1, true));
        drop(dropped);
        wait_for_in_flight(&limiter, &TWO, 0).await;
    }

    /// A client that leaves before the response makes the server drop the future of the handler.
    async fn a_handler_that_is_dropped_fails_or_panics_frees_its_slot((limiter, _)) {
        let layer = layer(&limiter);
        let handle = service_fn(async |request: Request<String>| match request.uri().path() {
            "/never" => pending().await,
            "/panic" => panic!("the handler panics"),
            _ => Err::<Response<Full<Bytes>>, _>("the service fails"),
        });
        let send = |path: &str| {
            layer.layer(handle).oneshot(Request::get(path).body(String::new()).expect("a request"))
        };
        {
            let mut running = pin!(send("/never"));
            while in_flight(&limiter, &TWO).await == 0 {
                assert!(poll_immediate(&mut running).await.is_none());
            }
        }
        // Redis can have admitted the request before this process has received the reply.
        wait_for_in_flight(&limiter, &TWO, 0).await;
        assert!(send("/fail").await.is_err());
        wait_for_in_flight(&limiter, &TWO, 0).await;
        assert!(AssertUnwindSafe(send("/panic")).catch_unwind().await.is_err());
        wait_for_in_flight(&limiter, &TWO, 0).await;
    }

    /// The order: limits that reject the request, the one with the longest wait first, those without slots, and others.
    async fn a_rate_and_slots_are_one_decision((limiter, _)) {
        let wide = Limit::fixed("wide", 9, MINUTE);
        let layer = RateLimitLayer::new().limit(wide, |_| ()).limit(TWO, |_| ()).legacy_headers();
        let layer = layer.limit_with_cost(RATE, |_| (), |head| head.uri.path().len() as u64);
        let layer = layer.limiter(limiter.clone());
        let running = [admit(&layer).await, admit(&layer).await];
        for (path, wait, capacity, states) in [
            ("/", "1", "2", r#""two";r=0, "wide";r=7, "rate";r=1"#),
            ("/7", "60", "3", r#""rate";r=1;t=60, "two";r=0, "wide";r=7;t=60"#),
        ] {
            let (rejected, _) = send(&layer, path).await;
            assert_eq!(rejected.status(), 429);
            let policy = r#""wide";q=9;w=60, "two";q=2;qu="concurrent-requests", "rate";q=3;w=60"#;
            for (name, value) in [
                ("retry-after", wait),
                ("ratelimit", states),
                ("x-ratelimit-limit", capacity),
                ("ratelimit-policy", policy),
            ] {
                assert_eq!(rejected.headers()[name], value, "{path}");
            }
        }
        drop(running);
        wait_for_in_flight(&limiter, &TWO, 0).await;
        assert_eq!(left(&limiter, &RATE).await, 1);
    }

    /// A request that does not count gets its charge back with the head of its response. It holds its slot to the end.
    async fn slots_are_held_whether_the_request_counts_or_not((limiter, _)) {
        for (counts, remaining) in [(false, 3), (true, 2)] {
            let layer = layer(&limiter).limit(RATE, |_| ()).count_if(move |_| counts);
            let (body, _sender) = admit(&layer).await;
            assert_eq!(left(&limiter, &RATE).await, remaining);
            assert_eq!(in_flight(&limiter, &TWO).await, 1);
            drop(body);
            wait_for_in_flight(&limiter, &TWO, 0).await;
            assert_eq!(left(&limiter, &RATE).await, remaining);
        }
    }
}

#[tokio::test]
async fn a_body_that_is_at_its_end_frees_its_slot_at_once() {
    let (limiter, _) = timed();
    for text in ["", "text"] {
        let handle = service_fn(move |_: Request<String>| {
            ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(text))))
        });
        let response = layer(&limiter).layer(handle).oneshot(Request::new(String::new())).await;
        let mut body = response.expect("infallible").into_body();
        assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
        assert_eq!(body.is_end_stream(), text.is_empty());
        assert_eq!(in_flight(&limiter, &TWO).await, u64::from(!text.is_empty()));
        assert_eq!(body.frame().await.is_some(), !text.is_empty());
        assert_eq!(in_flight(&limiter, &TWO).await, 0, "the only part was the last");
    }
}

const RATE: Limit = Limit::fixed("rate", 3, MINUTE);

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
        for (limit, without) in [(TWO, "/leased"), (leased, "/")] {
            if request.uri.path() != without {
                limits.add(&limit, (), 1);
            }
        }
        Ok(())
    });
    let layer = layer.limiter(limiter.clone());
    let (_body, _sender) = admit(&layer).await;
    assert_eq!(in_flight(&limiter, &TWO).await, 1);
    assert_eq!((status(&layer, "/both").await, status(&layer, "/leased").await), (500, 200));
    assert_eq!(status(&layer.count_if(|_| true), "/leased").await, 500);

    let layer = RateLimitLayer::outbound().limits(|(): &(), limits| {
        limits.add(&TWO, (), 1);
        Ok(())
    });
    let client = service_fn(async |()| Ok::<_, Infallible>(()));
    let error = layer.limiter(limiter).layer(client).oneshot(()).await.expect_err("no slots");
    let needs_permit = matches!(
        error.downcast_ref(),
        Some(Rejection::Mistake { mistake: Mistake::NeedsPermit, .. })
    );
    assert!(needs_permit, "{error}");
}
