//! Layers that hold slots: a request holds its slots until the body of its response has ended.
//!
//! | a test of ... | belongs in |
//! | --- | --- |
//! | the ends of a body, and of a handler | [`bodies`] |
//! | what a handler takes out of the request | [`taken`] |
//! | holding beside the other settings of a layer, rules, waits, and other layers | [`beside`] |
//! | clients that leave, responses over HTTP, actix-web | [`sockets`] |

mod beside;
mod bodies;
mod sockets;
mod taken;

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Frame, SizeHint};
use ratelimit_runtime::web::{HeldBody, RateLimitLayer};
use ratelimit_runtime::{Limit, RateLimiter};
use support::wait::wait_until;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tower::{ServiceExt, service_fn};
use tower_layer::Layer;

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
