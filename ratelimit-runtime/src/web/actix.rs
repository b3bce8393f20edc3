//! For actix-web 4: a [`Rejection`] is an error with its response, a client an extractor, and
//! [`RateLimits`] a middleware.
//!
//! ```
//! use std::time::Duration;
//!
//! use actix_web::{App, HttpServer, get, web};
//! use ratelimit_runtime::web::actix::{RateLimits, route};
//! use ratelimit_runtime::web::{Client, Clients};
//! use ratelimit_runtime::{Limit, Rejection, rate_limit};
//!
//! /// Of each client 100 a minute, on each route.
//! const ALL: Limit = Limit::sliding("all", 100, Duration::from_secs(60));
//!
//! /// And of each client two greetings of one user.
//! #[get("/hi/{id}")]
//! #[rate_limit(period = "30s", threshold = 2, key = (client, *id))]
//! async fn hi(client: Client, id: web::Path<u64>) -> Result<String, Rejection> {
//!     Ok(format!("hi {id}"))
//! }
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let clients = Clients::behind_proxies(["10.0.0.0/8"])?;
//! let layer_clients = clients.clone();
//! let limits = RateLimits::new().limit(ALL, move |request| (route(request), layer_clients.identify(request)));
//! HttpServer::new(move || {
//!     App::new().app_data(web::Data::new(clients.clone())).wrap(limits.clone()).service(hi)
//! })
//! .bind("127.0.0.1:3000")?
//! .run()
//! .await?;
//! # Ok(())
//! # }
//! ```
//!
//! `hi` uses the same limiter as the middleware, and what it decides is in the fields of the response.
//! By itself, without the middleware, a [`Rejection`] is a plain text with `Retry-After`: it does not
//! know what the client accepts. An error that a middleware returns as an `Err`, not as a response, passes
//! by without fields of these limits. To say something else, return an error type of your own that is
//! `From<Rejection>` and a `ResponseError`.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, Ready, poll_fn, ready};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::body::{BoxBody, EitherBody};
use actix_web::dev::{Payload, Service, ServiceRequest, ServiceResponse, Transform};
use actix_web::http::StatusCode;
use actix_web::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use actix_web::{Error, FromRequest, HttpRequest, HttpResponse, ResponseError, web};

use super::accept::prefers_json;
use super::address::sealed::IncomingRequest;
use super::address::{Client, Clients};
use super::fields;
use super::rejected::RejectedRequest;
use super::rules::Rules;
use super::seen::{self, Seen};
use crate::key::Key;
use crate::limit::Limit;
use crate::limiter::RateLimiter;
use crate::rejection::Rejection;

/// 429 with `Retry-After`, 413 for a cost that can never be admitted, 503 when the store could not
/// decide. Behind [`RateLimits`] it is a text or a problem, as the client asks for; else a text with
/// the fields of the limit.
impl ResponseError for Rejection {
    fn status_code(&self) -> StatusCode {
        status(&RejectedRequest::new(self, &Seen::default()))
    }

    fn error_response(&self) -> HttpResponse<BoxBody> {
        if let Some(seen) = seen::refused(self) {
            return response(self, &seen);
        }
        let mut seen = Seen::default();
        seen.note(&Err(self.clone()));
        let mut response = response(self, &seen);
        tell(response.headers_mut(), &seen, false);
        response
    }
}

/// The client, by the [`Clients`] that are the application's data: `web::Data<Clients>`, or
/// [`Clients::direct`] where there is none.
impl FromRequest for Client {
    type Error = Error;
    type Future = Ready<Result<Self, Error>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(match request.app_data::<web::Data<Clients>>() {
            Some(clients) => clients.identify(request),
            None => Clients::direct().identify(request),
        }))
    }
}

/// The route of `request`, as a key: the pattern that matches, `/users/{id}`. Requests that match none
/// are one.
#[must_use]
pub fn route(request: &ServiceRequest) -> String {
    request.match_pattern().unwrap_or_default()
}

/// Limits requests before they are handled and their bodies are read, and tells clients of all limits
/// that they met: those of this middleware, and those of annotated functions that were called while the
/// request was handled.
///
/// Limits, keys, fields and refusals are as [of the layer](super) for tower.
#[derive(Clone, Default)]
pub struct RateLimits {
    rules: Arc<Rules<ServiceRequest>>,
}

impl RateLimits {
    /// A middleware that limits nothing by itself, and tells of what annotated functions decide.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits requests by `limit`, counted by the key that `key` makes of each. Several limits are
    /// decided together, as [`RateLimiter::check_all`] does, and must agree on what it says.
    ///
    /// # Panics
    ///
    /// When the limits disagree about scope, `on_error`, shadow or wait: wrap with several of these.
    #[must_use]
    pub fn limit<K: Key>(
        self,
        limit: Limit,
        key: impl Fn(&ServiceRequest) -> K + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.limit(limit, key))
    }

    /// Lets requests pass of which `is_exempt` says so: health checks, say. They are not told of the limits
    /// of this middleware.
    #[must_use]
    pub fn exempt(
        self,
        is_exempt: impl Fn(&ServiceRequest) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.exempt(is_exempt))
    }

    /// Decides by `limiter` instead of the [current](crate::current) one. Annotated functions are not
    /// affected.
    #[must_use]
    pub fn limiter(self, limiter: RateLimiter) -> Self {
        self.with(|rules| rules.limiter(limiter))
    }

    /// Sends `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (in seconds) as well,
    /// of the limit that refused or has the least left: for clients that know no newer fields.
    #[must_use]
    pub fn legacy_headers(self) -> Self {
        self.with(|rules| rules.has_legacy_headers = true)
    }

    /// Says what the body of a refusal is: a content type, and a text.
    #[must_use]
    pub fn rejection_body(
        self,
        body: impl Fn(&RejectedRequest<'_>) -> (&'static str, String) + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.body(body))
    }

    fn with(mut self, set: impl FnOnce(&mut Rules<ServiceRequest>)) -> Self {
        set(Arc::make_mut(&mut self.rules));
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
        ready(Ok(RateLimitMiddleware { rules: Arc::clone(&self.rules), service: Rc::new(service) }))
    }
}

/// A service behind [`RateLimits`].
pub struct RateLimitMiddleware<S> {
    rules: Arc<Rules<ServiceRequest>>,
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
        let (rules, service) = (Arc::clone(&self.rules), Rc::clone(&self.service));
        Box::pin(async move {
            let is_exempt = rules.exempts(&request);
            let mut seen = rules.seen(is_exempt);
            let accept = request.headers().get_all(ACCEPT);
            seen.asked.json = prefers_json(accept.map(HeaderValue::as_bytes));
            let begun = if is_exempt { None } else { seen.during(|| rules.check(&request)) };
            let mut refused = None;
            if let Some((mut check, _)) = begun {
                let check = poll_fn(|context| seen.during(|| Pin::new(&mut check).poll(context)));
                refused = check.await.err();
            }
            if let Some(rejection) = refused {
                let mut answer = response(&rejection, &seen);
                tell(answer.headers_mut(), &seen, rules.has_legacy_headers);
                return Ok(request.into_response(answer).map_into_right_body());
            }
            let mut handled = Box::pin(seen.throughout(service.call(request)));
            let mut response = handled.as_mut().await?.map_into_left_body();
            let seen = handled.as_mut().take_value().map(RefCell::into_inner);
            tell(response.headers_mut(), &seen.unwrap_or_default(), rules.has_legacy_headers);
            Ok(response)
        })
    }
}

/// The answer to a refused request, without the fields that tell of limits.
fn response(rejection: &Rejection, seen: &Seen) -> HttpResponse {
    let refusal = RejectedRequest::new(rejection, seen);
    let (kind, text) = refusal.body(seen.asked.body.as_ref());
    let mut response = HttpResponse::build(status(&refusal));
    response.insert_header((CONTENT_TYPE, kind));
    // RFC 6585, section 4: a 429 must not be stored by a cache. Nor is any other refusal to be.
    response.insert_header((CACHE_CONTROL, "no-store"));
    if let Some(seconds) = refusal.retry_after() {
        response.insert_header((RETRY_AFTER, seconds));
    }
    response.body(text)
}

fn status(refusal: &RejectedRequest<'_>) -> StatusCode {
    StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
}

/// Adds the fields that tell of the limits in `seen`, before those that are there.
fn tell(headers: &mut HeaderMap, seen: &Seen, has_legacy_headers: bool) {
    if seen.len() == 0 {
        return;
    }
    let retry_after = number(headers, RETRY_AFTER.as_str());
    let state = fields::state(seen, retry_after);
    let values = [(fields::POLICY, fields::policy(seen)), (fields::STATE, state)];
    for (name, mut value) in values.into_iter().filter(|(_, value)| !value.is_empty()) {
        // Lines of a list are one list. A rejection that became a response elsewhere has told of itself.
        let ours = value.len();
        for theirs in headers.get_all(name).filter_map(|line| line.to_str().ok()) {
            if !value[..ours].ends_with(theirs) {
                value.push_str(", ");
                value.push_str(theirs);
            }
        }
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    let left = number(headers, fields::OLDER[1]);
    if has_legacy_headers && let Some(values) = fields::older(seen, retry_after, left) {
        for (name, value) in fields::OLDER.into_iter().zip(values) {
            headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
        }
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<u32> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

impl IncomingRequest for HttpRequest {
    fn peer(&self) -> Option<IpAddr> {
        self.peer_addr().map(|address| address.ip())
    }

    fn lines(&self, name: &'static str) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.headers().get_all(name).map(HeaderValue::as_bytes)
    }
}

impl IncomingRequest for ServiceRequest {
    fn peer(&self) -> Option<IpAddr> {
        self.peer_addr().map(|address| address.ip())
    }

    fn lines(&self, name: &'static str) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.headers().get_all(name).map(HeaderValue::as_bytes)
    }
}
