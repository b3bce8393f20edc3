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

mod http;

use std::fmt;
use std::future::{Future, Ready, poll_fn, ready};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::body::{BoxBody, EitherBody};
use actix_web::dev::{Payload, Service, ServiceRequest, ServiceResponse, Transform};
use actix_web::http::StatusCode;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use actix_web::{Error, FromRequest, HttpMessage, HttpRequest, HttpResponse, ResponseError};

use super::address::{Client, Clients};
use super::limit_sources::Admission;
use super::middleware::{self, MiddlewareConfig};
use super::rejected::{self, CACHE_CONTROL_VALUE, RejectedRequest, RejectionResponse};
use super::request_limits::RequestLimits;
use super::text_response::{PLAIN_TEXT, TextResponse};
use crate::key::Key;
use crate::limit::Limit;
use crate::limiter::RateLimiter;
use crate::reply::{FromRejection, Rejection};

/// Limits requests before they are handled and before their bodies are read. Each response reports the
/// limits of the middleware and those of annotated functions that the handler called.
///
/// For limits, keys, response headers and rejected requests, see
#[cfg_attr(feature = "tower", doc = "[`RateLimitLayer`](super::RateLimitLayer).")]
#[cfg_attr(not(feature = "tower"), doc = "`RateLimitLayer`, with feature `tower`.")]
#[derive(Clone, Default)]
pub struct RateLimits {
    config: Arc<MiddlewareConfig<ServiceRequest>>,
}

impl RateLimits {
    /// Returns a middleware without limits of its own. Its responses report the limits of annotated functions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits requests by `limit`. `key` returns the key of a request. Several limits are decided together: see
    /// [`RateLimiter::check_all`].
    ///
    /// # Panics
    ///
    /// If the limits of the middleware differ in scope, `on_error`, shadow or wait. Add such limits to separate
    /// middlewares.
    #[must_use]
    pub fn limit<K: Key>(
        self,
        limit: Limit,
        key: impl Fn(&ServiceRequest) -> K + Send + Sync + 'static,
    ) -> Self {
        self.configure(|config| config.add_limit(limit, key))
    }

    /// Chooses the limits of each request: `choose` adds them. A request to which it adds none is not limited. If
    /// `choose` returns an error, the request is not handled and not charged, and the error is the response: to limit
    /// guesses of API keys, limit clients in an outer layer. The limits of the request are decided together.
    ///
    /// A value that the client chooses is no key: with a new value for each request, no request is rejected. Let an
    /// outer middleware verify it, and put the customer into the extensions of the request.
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
    ///
    /// Limits that differ in scope, `on_error`, shadow or wait cannot be decided together, nor can two different limits
    /// that share a count: such a request gets a 503.
    #[must_use]
    pub fn limits(
        self,
        choose: impl Fn(&ServiceRequest, &mut RequestLimits) -> Result<(), TextResponse>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.configure(|config| config.add_limits(choose))
    }

    /// Admits the requests for which `is_exempt` returns true, for instance health checks, without a check.
    /// Their responses do not report the limits of this middleware.
    #[must_use]
    pub fn exempt(
        self,
        is_exempt: impl Fn(&ServiceRequest) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.configure(|config| config.set_exempt(is_exempt))
    }

    /// Sets how clients are identified: by [`Client::of`] in the key functions of this middleware, and by `Client` in
    /// the handlers behind it. It is put into the extensions of each request.
    #[must_use]
    pub fn clients(self, clients: Clients) -> Self {
        self.configure(|config| config.set_clients(clients))
    }

    /// Uses `limiter` for the limits of this middleware, instead of the [current](crate::current) one.
    /// Annotated functions are not affected.
    #[must_use]
    pub fn limiter(self, limiter: RateLimiter) -> Self {
        self.configure(|config| config.set_limiter(limiter))
    }

    /// Also sends `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (in seconds), for
    /// clients that do not know `RateLimit`. They report the limit that rejected the request or, if none did,
    /// the limit with the fewest remaining units.
    #[must_use]
    pub fn legacy_headers(self) -> Self {
        self.configure(MiddlewareConfig::set_legacy_headers)
    }

    /// Sets the body of rejected requests: a function that returns the content type and the text, or a [`TextResponse`]
    /// with another status. It sees the method, the path and the headers of the request, such as a request identifier
    /// or a language.
    #[must_use]
    pub fn rejection_body<T: Into<TextResponse>>(
        self,
        body: impl Fn(&RejectedRequest<'_>) -> T + Send + Sync + 'static,
    ) -> Self {
        self.configure(|config| config.set_body(body))
    }

    fn configure(mut self, change: impl FnOnce(&mut MiddlewareConfig<ServiceRequest>)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

impl fmt::Debug for RateLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimits").finish_non_exhaustive()
    }
}

impl<S, B> Transform<S, ServiceRequest> for RateLimits
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: 'static,
{
    type Response = ServiceResponse<EitherBody<B>>;
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
    config: Arc<MiddlewareConfig<ServiceRequest>>,
    service: Rc<S>,
}

impl<S> fmt::Debug for RateLimitMiddleware<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitMiddleware").finish_non_exhaustive()
    }
}

impl<S, B> Service<ServiceRequest> for RateLimitMiddleware<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: 'static,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>>>>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.service.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let (config, service) = (Arc::clone(&self.config), Rc::clone(&self.service));
        if let Some(clients) = config.clients() {
            request.extensions_mut().insert(clients.clone());
        }
        Box::pin(async move {
            let mut scope = config.scope(&request);
            let rejection = match config.start(&request, &mut scope) {
                Ok(Admission::Admitted(_)) => None,
                Ok(Admission::Rejected(rejection)) => Some(rejection),
                Err(refused) => {
                    let response = build(refused.into());
                    return Ok(request.into_response(response).map_into_right_body());
                }
                Ok(Admission::Pending(mut check)) => {
                    poll_fn(|context| scope.poll_check(&mut check, context)).await.err()
                }
            };
            if let Some(rejection) = rejection {
                let mut rejected = response(&scope.rejected(&rejection));
                config.write_headers(rejected.headers_mut(), scope.log());
                return Ok(request.into_response(rejected).map_into_right_body());
            }
            let mut handler = pin!(service.call(request));
            let response = poll_fn(|context| scope.poll_handler(handler.as_mut(), context)).await;
            let mut response = response?.map_into_left_body();
            config.write_headers(response.headers_mut(), scope.log());
            Ok(response)
        })
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

/// Returns the route of `request` as a key: the pattern that matches the path, such as `/users/{id}`. All requests
/// without a route share one key.
#[must_use]
pub fn route(request: &ServiceRequest) -> String {
    request.match_pattern().unwrap_or_default()
}

/// Responds with 429 and `Retry-After` if the limit is reached, with 413 for a cost that can never be admitted, and
/// with 503 if the store could not decide. Behind [`RateLimits`], the body is plain text or problem details in JSON, as
/// the client prefers. Elsewhere, the body is plain text, and the response has the headers of the limit that rejected
/// the request.
impl ResponseError for Rejection {
    fn status_code(&self) -> StatusCode {
        status_code(rejected::status(self))
    }

    fn error_response(&self) -> HttpResponse<BoxBody> {
        middleware::respond(self, response, HttpResponse::headers_mut)
    }
}

/// An annotated function can return a response: the rejected call returns the response of its rejection.
#[diagnostic::do_not_recommend]
impl FromRejection for HttpResponse {
    fn from_rejection(rejection: Rejection) -> Self {
        rejection.error_response()
    }
}

/// Builds the response of a rejected request, without the headers that report limits.
fn response(rejected: &RejectedRequest<'_>) -> HttpResponse {
    build(rejected.response())
}

fn build(plain: RejectionResponse) -> HttpResponse {
    let mut response = HttpResponse::build(status_code(plain.status));
    let content_type = HeaderValue::from_str(plain.content_type);
    let content_type = content_type.unwrap_or(HeaderValue::from_static(PLAIN_TEXT));
    response.insert_header((CONTENT_TYPE, content_type));
    for (name, value) in plain.headers {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::try_from(value))
        {
            response.append_header((name, value));
        }
    }
    response.insert_header((CACHE_CONTROL, CACHE_CONTROL_VALUE));
    if let Some(seconds) = plain.retry_after {
        response.insert_header((RETRY_AFTER, seconds));
    }
    response.body(plain.body)
}

fn status_code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
}
