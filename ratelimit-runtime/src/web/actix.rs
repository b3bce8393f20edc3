//! Support for actix-web 4: [`RateLimits`] is a middleware, [`Rejection`] an error with its response, and
//! [`Client`] an extractor.
//!
//! ```
//! use std::time::Duration;
//!
//! use actix_web::{App, HttpServer, get, web};
//! use ratelimit_runtime::web::actix::{RateLimits, route};
//! use ratelimit_runtime::web::{Client, Clients};
//! use ratelimit_runtime::{Limit, Rejection, rate_limit};
//!
//! /// 100 requests per minute for each client on each route.
//! const ALL: Limit = Limit::sliding("all", 100, Duration::from_secs(60));
//!
//! /// 2 greetings per 30 seconds for each client and user.
//! #[get("/hi/{id}")]
//! #[rate_limit(period = "30s", threshold = 2, key = (client, *id))]
//! async fn hi(client: Client, id: web::Path<u64>) -> Result<String, Rejection> {
//!     Ok(format!("hi {id}"))
//! }
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let limits = RateLimits::new()
//!     .clients(Clients::behind_proxies(["10.0.0.0/8"])?)
//!     .limit(ALL, |request| (route(request), Client::of(request)));
//! HttpServer::new(move || App::new().wrap(limits.clone()).service(hi))
//!     .bind("127.0.0.1:3000")?
//!     .run()
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! `hi` uses the same limiter as the middleware, and the response headers report the limits of both. Without
//! the middleware, a [`Rejection`] becomes plain text with the headers of its limit, because the `Accept`
//! header of the request is not known. If an inner middleware returns an `Err` instead of a response,
//! [`RateLimits`] adds no headers to it. To send another response, return an error type of your own that
//! implements `From<Rejection>` and `ResponseError`.

use std::future::{Future, Ready, poll_fn, ready};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, BoxBody, EitherBody, MessageBody};
use actix_web::dev::{Payload, ResponseHead, Service, ServiceRequest, ServiceResponse, Transform};
use actix_web::error::ErrorInternalServerError;
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::{Error, FromRequest, HttpMessage, HttpRequest, HttpResponse, ResponseError, web};
use http::Request;
use http::response::Parts;

use super::address::Clients;
use super::address::RequestAccess;
use super::config::LayerConfig;
use super::middleware::{ServerRequest, respond};
use super::rejected::TextResponse;
use super::settings::{body_setting, limit_settings, server_settings};
use super::slots::{HeldBody, NO_LAYER_HOLDS};
use super::{Client, RequestSlots, rejected};
use crate::printing::debug_by_name;
use crate::reply::{FromRejection, Rejection};

/// Limits requests before they are handled and before their bodies are read. Each response reports the
/// limits of the middleware and those of annotated functions that the handler called.
///
/// For limits, keys, response headers and rejected requests, see
/// [`RateLimitLayer`](super::RateLimitLayer).
///
/// # Requests in flight
///
/// A request holds the slots of limits of calls [in flight](crate::Limit::in_flight) until the body of its response
/// ends, fails or is dropped, or until its handler is dropped or returns an `Err`. A stream, server-sent events, and a
/// WebSocket whose messages are the body of its response hold them until they end. A handler whose work goes on after
/// that takes the slots with it: see [`RequestSlots`].
///
/// # Limits for each request
///
/// With [`limits`](Self::limits), a function chooses the limits of each request:
///
/// ```
/// use std::time::Duration;
/// use actix_web::HttpMessage;
/// use actix_web::dev::ServiceRequest;
/// use ratelimit_runtime::Limit;
/// use ratelimit_runtime::web::actix::RateLimits;
/// use ratelimit_runtime::web::{RequestLimits, TextResponse};
///
/// const EACH_CUSTOMER: Limit = Limit::sliding("customer", 100, Duration::from_secs(3600));
///
/// /// The customer of a request, from an outer middleware that has verified the API key.
/// struct Customer(u64);
///
/// fn choose(request: &ServiceRequest, limits: &mut RequestLimits) -> Result<(), TextResponse> {
///     let extensions = request.extensions();
///     let Customer(id) = extensions.get().ok_or((401, "send a known API key"))?;
///     limits.add(&EACH_CUSTOMER, id, 1);
///     Ok(())
/// }
///
/// let limits = RateLimits::new().limits(choose);
/// ```
#[derive(Clone)]
pub struct RateLimits {
    config: Arc<ActixConfig>,
}

type ActixConfig = LayerConfig<ServiceRequest, TextResponse>;

impl RateLimits {
    /// Returns a middleware without limits of its own. Its responses report the limits of annotated functions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    limit_settings!(ServiceRequest, TextResponse);
    server_settings!("RateLimits", " use ratelimit_runtime::web::actix::RateLimits;");
    body_setting!();
}

impl Default for RateLimits {
    fn default() -> Self {
        Self { config: Arc::new(LayerConfig::new(true)) }
    }
}

debug_by_name!("RateLimits" [] RateLimits);

impl<S, B> Transform<S, ServiceRequest> for RateLimits
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<EitherBody<B>>>;
    type Error = Error;
    type Transform = RateLimitMiddleware<S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        let (config, service) = (Arc::clone(&self.config), Rc::new(service));
        ready(Ok(RateLimitMiddleware { config, service }))
    }
}

/// A service behind [`RateLimits`].
pub struct RateLimitMiddleware<S> {
    config: Arc<ActixConfig>,
    service: Rc<S>,
}

debug_by_name!("RateLimitMiddleware" [S] RateLimitMiddleware<S>);

impl<S, B> Service<ServiceRequest> for RateLimitMiddleware<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<EitherBody<B>>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>>>>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.service.poll_ready(context)
    }

    fn call(&self, mut request: ServiceRequest) -> Self::Future {
        let (config, service) = (Arc::clone(&self.config), Rc::clone(&self.service));
        Box::pin(async move {
            let mut scope = config.scope(&mut request, false);
            let started = config.start_check(&mut request, &mut scope);
            let unhandled = if let Poll::Ready(unhandled) = started {
                unhandled
            } else {
                let checked = poll_fn(|context| scope.poll_check(context)).await;
                config.conclude(&mut request, &mut scope, checked)
            };
            if let Some(response) = unhandled {
                let response =
                    request.into_response(actix_response(response)).map_into_right_body();
                return Ok(response.map_body(|_, body| HeldBody::free(body)));
            }
            let mut handler = pin!(service.call(request));
            let response =
                poll_fn(|context| scope.log.sync_scope(|| handler.as_mut().poll(context))).await;
            match response {
                Ok(response) => {
                    let mut response = response.map_into_left_body();
                    let mut head = http_head(response.response().head());
                    let slots = config.finish(&mut scope, &mut head);
                    *response.headers_mut() = actix_headers(&head.headers);
                    let is_at_end = response.response().body().size().is_eof();
                    Ok(response.map_body(|_, body| HeldBody::new(body, slots, is_at_end)))
                }
                Err(error) => {
                    // The error becomes this response outside of this middleware.
                    config
                        .settle(&scope, |counts| counts(&http_head(error.error_response().head())));
                    Err(error)
                }
            }
        })
    }
}

impl<B: MessageBody> MessageBody for HeldBody<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<web::Bytes, B::Error>>> {
        let this = self.project();
        let chunk = std::task::ready!(this.body.poll_next(context));
        this.slots.free_after(chunk.as_ref(), false);
        Poll::Ready(chunk)
    }
}

/// Extracts the client, as [`Client::of`] identifies it.
impl FromRequest for Client {
    type Error = Error;
    type Future = Ready<Result<Self, Error>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(Self::of(request)))
    }
}

/// Extracts the slots that the middlewares around the handler hold for the request.
impl FromRequest for RequestSlots {
    type Error = Error;
    type Future = Ready<Result<Self, Error>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let slots = request.extensions().get().cloned();
        ready(slots.ok_or_else(|| ErrorInternalServerError(NO_LAYER_HOLDS)))
    }
}

/// Returns the route of `request` as a key: the first pattern that matches the path, such as `/users/{id}`. The
/// parameters in the path are not part of it. All requests without a route share the empty key.
///
/// The path is the decoded one that actix-web routes by, so each spelling of it has the same key. A middleware that
/// changes the path, such as `NormalizePath`, belongs outside of [`RateLimits`]: wrap it after them. Guards are not
/// asked, also not the method of `#[get]`: if they choose between patterns that match one path, wrap each scope or
/// resource with limits of its own.
#[must_use]
pub fn route(request: &ServiceRequest) -> String {
    // `match_pattern` of the request reads the path as the client has spelled it.
    let pattern = request.resource_map().match_pattern(request.match_info().as_str());
    pattern.unwrap_or_default()
}

/// Responds with 429 and `Retry-After` if the limit is reached, with 413 for a cost that can never be admitted, and
/// with 503 if the store could not decide, with 500 if the program has a mistake. Behind [`RateLimits`], the body is
/// plain text or problem details in JSON, as the client prefers. Elsewhere, the body is plain text, and the response
/// has the headers of the limit that rejected the request.
impl ResponseError for Rejection {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(rejected::status(self)).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
    }

    fn error_response(&self) -> HttpResponse<BoxBody> {
        actix_response(respond(self))
    }
}

/// An annotated function can return a response: the rejected call returns the response of its rejection.
#[diagnostic::do_not_recommend]
impl FromRejection for HttpResponse {
    fn from_rejection(rejection: Rejection) -> Self {
        rejection.error_response()
    }
}

/// Returns the head of a response.
fn http_head(head: &ResponseHead) -> Parts {
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = http::StatusCode::from_u16(head.status.as_u16()).unwrap_or_default();
    parts.headers = http_headers(&head.headers);
    parts
}

/// Converts the response of a rejected request.
fn actix_response(response: http::Response<String>) -> HttpResponse {
    let (head, body) = response.into_parts();
    let status = StatusCode::from_u16(head.status.as_u16());
    let status = status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let mut response = HttpResponse::with_body(status, body).map_into_boxed_body();
    *response.headers_mut() = actix_headers(&head.headers);
    response
}

fn http_headers(headers: &HeaderMap) -> http::HeaderMap {
    let convert = |(name, value): (&HeaderName, &HeaderValue)| {
        let name = http::HeaderName::from_bytes(name.as_str().as_bytes()).ok()?;
        Some((name, http::HeaderValue::from_bytes(value.as_bytes()).ok()?))
    };
    headers.iter().filter_map(convert).collect()
}

fn actix_headers(headers: &http::HeaderMap) -> HeaderMap {
    let convert = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        let name = HeaderName::from_bytes(name.as_str().as_bytes()).ok()?;
        Some((name, HeaderValue::from_bytes(value.as_bytes()).ok()?))
    };
    headers.iter().filter_map(convert).collect()
}

impl ServerRequest for ServiceRequest {
    fn head(&self) -> Request<()> {
        let mut head = Request::new(());
        *head.method_mut() = self.method().as_str().parse().unwrap_or_default();
        *head.uri_mut() = self.uri().to_string().parse().unwrap_or_default();
        *head.headers_mut() = http_headers(self.headers());
        head
    }

    fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.extensions_mut().insert(value);
    }
}

/// Gives access to a request before and after its body is taken: both types have the same methods.
macro_rules! accessed {
    ($($request:ty),+) => {$(
        impl RequestAccess for $request {
            fn peer(&self) -> Option<IpAddr> {
                self.peer_addr().map(|address| address.ip())
            }

            fn lines<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> + use<'a> {
                self.headers().get_all(name).map(HeaderValue::as_bytes)
            }

            fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
                self.extensions().get().cloned()
            }

            fn clients(&self) -> Option<Clients> {
                let of_application = || self.app_data::<web::Data<Clients>>();
                self.extension().or_else(|| of_application().map(|clients| (***clients).clone()))
            }
        }
    )+};
}

accessed!(HttpRequest, ServiceRequest);
