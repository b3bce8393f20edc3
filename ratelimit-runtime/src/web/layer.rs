//! [`RateLimitLayer`]: the settings of the middleware for tower. Twin of `RateLimits` in `actix`; both call
//! `middleware`.
//!
//! [`RateLimitService`] is a service behind a [`RateLimitLayer`], and the future of its responses.

use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::config::LayerConfig;
use super::middleware::{RequestScope, ServerRequest};
use super::outbound::OutboundLayer;
use super::rejected::TextResponse;
use super::response::{Http, ResponseFormat};
use super::settings::{body_setting, limit_settings, server_settings};
use super::slots::{HeldBody, HeldSlots};
use super::unread::UnreadBody;
use crate::printing::debug_by_name;

/// A [`tower_layer::Layer`] for axum, tonic, hyper and every other server of tower services. It limits requests
/// before they are handled and before their bodies are read. Each response reports the limits of the layer and
/// those of annotated functions that the handler called.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::Limit;
/// use ratelimit_runtime::web::{Client, Clients, RateLimitLayer};
///
/// const BURST: Limit = Limit::token_bucket("burst", 100, Duration::from_secs(60));
///
/// let layer: RateLimitLayer = RateLimitLayer::new()
///     .clients(Clients::behind_proxies(["10.0.0.0/8"])?)
///     .limit(BURST, Client::of);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A layer and an annotated function whose limits have the same name, algorithm, period and align share their
/// counts and metrics. The layer uses the [current](crate::current) limiter unless [another is
/// set](Self::limiter).
///
/// # Response headers
///
/// Each response has `RateLimit-Policy` and `RateLimit`, as defined by draft-ietf-httpapi-ratelimit-headers-11, with
/// one item for each limit that was checked for the request, also if several limits are decided together.
///
/// ```text
/// RateLimit-Policy: "burst";q=100;w=60
/// RateLimit: "burst";r=50;t=30
/// ```
///
/// - `q` is the threshold, and `w` is the period in whole seconds, rounded up. If the burst of a bucket is larger than
///   its threshold, `q` is the burst, and `w` is the time in which the burst refills.
/// - `r` is the number of remaining units.
/// - `t` is in whole seconds, rounded up. After an admitted request, it is the time until the count of the key is
///   reset, or until a bucket without units has one. After a rejected request, it is the time until the same request
///   can be admitted.
/// - A limit has one item. If it decides about several keys, or in several layers, the item is that of the key with the
///   fewest units.
/// - A limit of calls [in flight](crate::Limit::in_flight) has `qu="concurrent-requests"` instead of `w`, and no `t`.
/// - A character of a name that is not printable ASCII is percent-encoded.
/// - A [shadow](crate::Limit::shadow) and a [hidden](crate::Limit::hidden) limit are not reported.
/// - A response that shared caches store has none of these headers: `Cache-Control` or `CDN-Cache-Control` with
///   `public`, `s-maxage` or `max-age`, and without `private` and `no-store`.
/// - In `RateLimit`, a limit that rejected comes first; if several did, the one with the longest wait. An
///   item has no `t` if it would be later than `Retry-After`.
///
/// # Rejected requests
///
/// | status | reason |
/// | --- | --- |
/// | 429 | the limit is reached |
/// | 413 | the cost exceeds the capacity: the request can never be admitted |
/// | 503 | the store could not decide |
/// | 500 | the program has a mistake |
///
/// The response has `Cache-Control: no-store` and a body. The body is plain text, or problem details in JSON (RFC 9457)
/// if the client prefers JSON. Over HTTP/1, it comes after the body of the request if that has at most 64 KiB, so that
/// the client receives it. If a wait helps, the response also has `Retry-After` in whole seconds, rounded up. A
/// [`Rejection`](crate::Rejection) that a handler returns becomes the same response. The application can change that
/// response: the layer only adds headers to the responses of handlers. If a limit has rejected a call of the handler, a
/// response with status 429 gets `Retry-After` and `Cache-Control: no-store`, unless it has them.
///
/// With [`rejection_body`](Self::rejection_body), the application sets the body:
///
/// ```
/// use ratelimit_runtime::web::{RateLimitLayer, RejectedRequest};
///
/// let layer = RateLimitLayer::new().rejection_body(|request: &RejectedRequest<'_>| {
///     let title = match request.header("accept-language") {
///         Some(language) if language.starts_with("de") => "Zu viele Anfragen",
///         _ => "Too many requests",
///     };
///     ("text/html", format!("<h1>{title}</h1>"))
/// });
/// ```
///
/// # Limits for each request
///
/// With [`limits`](Self::limits), a function chooses the limits of each request. An error is the response; to limit
/// guesses of API keys, limit clients in an outer layer.
///
/// A value that the client chooses is no key, and chooses no plan: with a new value for each request, no request is
/// rejected. Let an outer layer verify it, and put the customer into the extensions of the request.
///
/// ```
/// use std::time::Duration;
/// use http::request::Parts;
/// use ratelimit_runtime::Limit;
/// use ratelimit_runtime::web::{RateLimitLayer, RequestLimits, TextResponse};
///
/// const FREE: Limit = Limit::sliding("free", 100, Duration::from_secs(3600));
/// const PAID: Limit = Limit::sliding("paid", 10_000, Duration::from_secs(3600));
///
/// /// The customer of a request, from an outer layer that has verified the API key.
/// #[derive(Clone)]
/// struct Customer {
///     id: u64,
///     has_paid: bool,
/// }
///
/// fn by_plan(request: &Parts, limits: &mut RequestLimits) -> Result<(), TextResponse> {
///     if request.uri.path() == "/health" {
///         return Ok(());
///     }
///     let customer = request.extensions.get::<Customer>().ok_or((401, "send a known API key"))?;
///     limits.add(if customer.has_paid { &PAID } else { &FREE }, customer.id, 1);
///     Ok(())
/// }
///
/// let layer: RateLimitLayer = RateLimitLayer::new().limits(by_plan);
/// ```
///
/// # Requests in flight
///
/// A limit of calls [in flight](crate::Limit::in_flight) beside rates is one decision with them:
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::Limit;
/// use ratelimit_runtime::web::{Client, RateLimitLayer};
///
/// const REPORTS: Limit = Limit::sliding("reports", 100, Duration::from_secs(60));
/// const RUNNING: Limit = Limit::in_flight("running reports", 2).hold(Duration::from_secs(30));
///
/// // At most 100 reports a minute and two at the same time, for each client.
/// let layer: RateLimitLayer =
///     RateLimitLayer::new().limit(REPORTS, Client::of).limit(RUNNING, Client::of);
/// ```
///
/// A request holds its slots until the body of its response ends: a stream or server-sent events hold them until the
/// last event, and trailers are part of the body. They are free earlier if the body fails, if the handler panics or
/// returns an error, and if the client leaves: the server then drops the response, or the handler before there is one.
/// A handler whose work goes on after its response takes the slots with it: see [`RequestSlots`](super::RequestSlots).
///
/// The body of a response ends when the server has taken its last part, which can still be on its way to the client.
/// A body that a middleware outside of this layer collects, for instance to compress it, ends when it is collected.
///
/// # Several layers
///
/// The outermost layer writes the headers for all layers: its items come before those of the layers inside it. If an
/// inner layer rejects a request, the outer layer has still counted it. The limits of one layer are decided together,
/// all or nothing.
///
/// # The type of bodies
///
/// Responses have a [`HeldBody`](super::HeldBody) around the body of the handler. What must have one body type with and
/// without the layer, such as an optional layer or a boxed service, converts it outside of the layer:
///
/// ```
/// use axum::body::Body;
/// use axum::response::Response;
/// use ratelimit_runtime::web::{HeldBody, RateLimitLayer};
/// use tower::ServiceBuilder;
///
/// let limits = ServiceBuilder::new()
///     .map_response(|response: Response<HeldBody<Body>>| response.map(Body::new))
///     .layer(RateLimitLayer::new());
/// let layers = ServiceBuilder::new().option_layer(Some(limits));
/// # let _: axum::Router = axum::Router::new().layer(layers);
/// ```
#[derive(Clone)]
pub struct RateLimitLayer<F = Http> {
    config: Arc<LayerConfig<Parts, TextResponse>>,
    format: PhantomData<fn() -> F>,
}

impl RateLimitLayer {
    /// Returns a layer without limits of its own. Its responses report the limits of annotated functions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a layer for clients, without limits: it limits requests of type `R` before they are sent.
    #[must_use]
    pub fn outbound<R>() -> OutboundLayer<R> {
        OutboundLayer::default()
    }

    body_setting!();
}

#[cfg(feature = "tonic")]
impl RateLimitLayer<super::Grpc> {
    /// Returns a layer for a gRPC server: the response of a rejected request is a status.
    #[must_use]
    pub fn grpc() -> Self {
        Self::default()
    }
}

impl<F> RateLimitLayer<F> {
    limit_settings!(Parts, TextResponse);
    server_settings!("RateLimitLayer", " use ratelimit_runtime::web::RateLimitLayer;");
}

impl<F> Default for RateLimitLayer<F> {
    fn default() -> Self {
        Self { config: Arc::new(LayerConfig::new(true)), format: PhantomData }
    }
}

debug_by_name!("RateLimitLayer" [F] RateLimitLayer<F>);

/// The message of the panic of a future that is polled too often.
const COMPLETED: &str = "a response future is polled after completion";

/// A service behind a [`RateLimitLayer`].
#[derive(Clone)]
pub struct RateLimitService<S, F = Http> {
    inner: S,
    layer: RateLimitLayer<F>,
}

impl<S, F: Clone> Layer<S> for RateLimitLayer<F> {
    type Service = RateLimitService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitService { inner, layer: self.clone() }
    }
}

debug_by_name!("RateLimitService" [S, F] RateLimitService<S, F>);

impl<S, F, B, C> Service<Request<B>> for RateLimitService<S, F>
where
    S: Service<Request<B>, Response = Response<C>> + Clone,
    F: ResponseFormat<C> + Clone,
    B: Body,
    C: Body,
{
    type Response = Response<HeldBody<C>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, F, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let layer = self.layer.clone();
        let is_grpc = F::is_grpc(&parts);
        let mut scope = layer.config.scope(&mut parts, is_grpc);
        let stage = match layer.config.start_check(&mut parts, &mut scope) {
            // The usual request needs no clone of the service.
            Poll::Ready(None) => RequestStage::admitted(&mut scope, &mut self.inner, parts, body),
            Poll::Ready(Some(response)) => {
                drop(self.take_ready());
                RequestStage::unhandled(response.map(F::body), &parts, body)
            }
            Poll::Pending => {
                RequestStage::Arrived { request: Some((self.take_ready(), parts, body)) }
            }
        };
        ResponseFuture { stage, scope, layer }
    }
}

impl<S: Clone, F> RateLimitService<S, F> {
    /// Takes the inner service, which is ready, and leaves a clone, which must become ready first. A service that is
    /// dropped frees what it reserved when it became ready, such as a permit.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }
}

pin_project! {
    /// The response future of [`RateLimitService`]. Dropped before the response, it frees the slots of its request.
    pub struct ResponseFuture<S, F, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        stage: RequestStage<S, S::Future, S::Response, B>,
        scope: RequestScope,
        layer: RateLimitLayer<F>,
    }
}

pin_project! {
    #[project = RequestStageProjection]
    enum RequestStage<S, H, R, B> {
        // With the service that is ready for the request.
        Arrived { request: Option<(S, Parts, B)> },
        Admitted { #[pin] handler: H },
        // Boxed, because few requests with a body are rejected.
        Unhandled { response: Option<R>, unread: Option<Pin<Box<UnreadBody<B>>>> },
    }
}

impl<S: Service<Request<B>>, B: Body> RequestStage<S, S::Future, S::Response, B> {
    /// Calls the service, which is ready.
    // Inlined, because a call copies the request (`benches/all -- layer`).
    #[inline]
    fn admitted(scope: &mut RequestScope, service: &mut S, parts: Parts, body: B) -> Self {
        let request = Request::from_parts(parts, body);
        Self::Admitted { handler: scope.log.sync_scope(|| service.call(request)) }
    }

    fn unhandled(response: S::Response, request: &Parts, body: B) -> Self {
        Self::Unhandled { response: Some(response), unread: UnreadBody::of(request, body) }
    }
}

impl<S, F, B, C> Future for ResponseFuture<S, F, B>
where
    S: Service<Request<B>, Response = Response<C>>,
    F: ResponseFormat<C>,
    B: Body,
    C: Body,
{
    type Output = Result<Response<HeldBody<C>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (config, scope) = (&this.layer.config, this.scope);
        loop {
            let next = match this.stage.as_mut().project() {
                RequestStageProjection::Arrived { request } => {
                    let checked = ready!(scope.poll_check(context));
                    let (mut service, mut parts, body) = request.take().expect(COMPLETED);
                    match config.conclude(&mut parts, scope, checked) {
                        None => RequestStage::admitted(scope, &mut service, parts, body),
                        Some(response) => {
                            RequestStage::unhandled(response.map(F::body), &parts, body)
                        }
                    }
                }
                RequestStageProjection::Admitted { handler } => {
                    let result = ready!(scope.log.sync_scope(|| handler.poll(context)));
                    // An error frees the slots.
                    let finished = result.inspect_err(|_| scope.permits = HeldSlots::default());
                    let (mut head, body) = finished?.into_parts();
                    let (slots, is_at_end) =
                        (config.finish(scope, &mut head), body.is_end_stream());
                    let body = HeldBody::new(body, slots, is_at_end);
                    return Poll::Ready(Ok(Response::from_parts(head, body)));
                }
                RequestStageProjection::Unhandled { response, unread } => {
                    if let Some(unread) = unread {
                        ready!(unread.as_mut().poll(context));
                    }
                    let response = response.take().expect(COMPLETED);
                    return Poll::Ready(Ok(response.map(HeldBody::free)));
                }
            };
            this.stage.set(next);
        }
    }
}

debug_by_name!("ResponseFuture" [S: Service<Request<B>>, F, B] ResponseFuture<S, F, B>);
