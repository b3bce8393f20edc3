//! [`HoldingLayer`]: a [`RateLimitLayer`] whose responses hold slots. Twin of `HoldingLimits` in `actix`.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::held_body::HeldBody;
use super::layer::RateLimitLayer;
use super::middleware::MiddlewareConfig;
use super::response::{Http, ResponseFormat};
use super::service::{RateLimitService, ResponseFuture};
use super::settings::{body_setting, limit_settings, server_settings};
use super::text_response::TextResponse;

/// A [`RateLimitLayer`] that holds slots: it also takes limits of calls [in flight](crate::Limit::in_flight).
/// [`RateLimitLayer::holding`] creates it.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::Limit;
/// use ratelimit_runtime::web::{Client, HoldingLayer, RateLimitLayer};
///
/// const REPORTS: Limit = Limit::sliding("reports", 100, Duration::from_secs(60));
/// const RUNNING: Limit = Limit::in_flight("running reports", 2).hold(Duration::from_secs(30));
///
/// /// At most 100 reports a minute and two at the same time, for each client, in one decision.
/// fn reports() -> HoldingLayer {
///     RateLimitLayer::new().holding().limit(REPORTS, Client::of).limit(RUNNING, Client::of)
/// }
/// # let _ = reports();
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
/// Bodies are of type [`HeldBody`], which adds no allocation. Limits with a [lease](crate::Limit::lease) belong to
/// a layer that does not hold.
pub struct HoldingLayer<F = Http> {
    layer: RateLimitLayer<F>,
}

impl<F> RateLimitLayer<F> {
    /// Returns this layer as one that holds slots: it also takes limits of calls [in
    /// flight](crate::Limit::in_flight). A request holds its slots until the body of its response ends; see
    /// [`HoldingLayer`].
    ///
    /// # Panics
    ///
    /// If a limit has a [lease](crate::Limit::lease): add it to another layer.
    #[must_use]
    pub fn holding(self) -> HoldingLayer<F> {
        HoldingLayer { layer: self.configure(MiddlewareConfig::set_holding) }
    }
}

impl HoldingLayer {
    body_setting!();
}

impl<F> HoldingLayer<F> {
    limit_settings!(Parts, TextResponse);
    server_settings!(
        http::response::Parts,
        "HoldingLayer",
        "RateLimitLayer::new().holding()",
        " use ratelimit_runtime::web::{HoldingLayer, RateLimitLayer};"
    );

    fn configure(self, change: impl FnOnce(&mut MiddlewareConfig<Parts>)) -> Self {
        Self { layer: self.layer.configure(change) }
    }
}

impl<F> Clone for HoldingLayer<F> {
    fn clone(&self) -> Self {
        Self { layer: self.layer.clone() }
    }
}

impl<F> fmt::Debug for HoldingLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldingLayer").finish_non_exhaustive()
    }
}

impl<S, F> Layer<S> for HoldingLayer<F> {
    type Service = HoldingService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        HoldingService { service: self.layer.layer(inner) }
    }
}

/// A service behind a [`HoldingLayer`].
pub struct HoldingService<S, F = Http> {
    service: RateLimitService<S, F>,
}

impl<S: Clone, F> Clone for HoldingService<S, F> {
    fn clone(&self) -> Self {
        Self { service: self.service.clone() }
    }
}

impl<S: fmt::Debug, F> fmt::Debug for HoldingService<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldingService").field("inner", &self.service.inner).finish_non_exhaustive()
    }
}

impl<S, F, B, C> Service<Request<B>> for HoldingService<S, F>
where
    S: Service<Request<B>, Response = Response<C>> + Clone,
    F: ResponseFormat<C>,
    B: http_body::Body,
    C: http_body::Body,
{
    type Response = Response<HeldBody<C>>;
    type Error = S::Error;
    type Future = HoldingFuture<S, F, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        HoldingFuture { response: self.service.call(request) }
    }
}

pin_project! {
    /// The response future of [`HoldingService`]. Dropped before the response, it frees the slots.
    pub struct HoldingFuture<S, F, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        response: ResponseFuture<S, F, B>,
    }
}

impl<S, F, B, C> Future for HoldingFuture<S, F, B>
where
    S: Service<Request<B>, Response = Response<C>>,
    F: ResponseFormat<C>,
    B: http_body::Body,
    C: http_body::Body,
{
    type Output = Result<Response<HeldBody<C>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut future = self.project().response;
        let response = ready!(future.as_mut().poll(context));
        let slots = future.take_slots();
        Poll::Ready(response.map(|response| response.map(|body| HeldBody::http(body, slots))))
    }
}

impl<S: Service<Request<B>>, F, B> fmt::Debug for HoldingFuture<S, F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldingFuture").finish_non_exhaustive()
    }
}
