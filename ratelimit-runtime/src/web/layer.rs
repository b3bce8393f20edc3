//! [`RateLimitLayer`]: limits for every tower-based server, and the fields that tell clients of them.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::rejected::RejectedRequest;
use super::response::{Http, ResponseFormat, policy, tell};
use super::rules::{Decides, Rules};
use super::seen::{Entry, Recorded, Seen};
use crate::check::Check;
use crate::key::Key;
use crate::limit::Limit;
use crate::limiter::RateLimiter;
use crate::rejection::Rejection;

/// Limits requests before they are handled and their bodies are read, and tells clients of all limits
/// that they met: those of the layer and those of annotated functions that were called while the request
/// was handled. It is a [`tower_layer::Layer`], for axum, tonic, hyper and what else is made of tower
/// services.
///
/// ```
/// use std::time::Duration;
/// use http::request::Parts;
/// use ratelimit_runtime::Limit;
/// use ratelimit_runtime::web::{Clients, RateLimitLayer};
///
/// const BURST: Limit = Limit::token_bucket("burst", 100, Duration::from_secs(60));
///
/// let clients = Clients::behind_proxies(["10.0.0.0/8"])?;
/// let layer: RateLimitLayer =
///     RateLimitLayer::new().limit(BURST, move |request: &Parts| clients.identify(request));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Limits, names, keys and stores are those of the attribute: a limit of one name counts in both places,
/// and is one in the metrics. The layer uses the [current](crate::current) limiter unless it is
/// [given one](Self::limiter).
///
/// # What clients are told
///
/// Every response has `RateLimit-Policy` and `RateLimit`, as draft-ietf-httpapi-ratelimit-headers-11
/// defines them, with one item for each limit that was decided for the request; of several limits that
/// are decided together, `RateLimit` has the one that is nearest to refuse.
///
/// ```text
/// RateLimit-Policy: "burst";q=100;w=60
/// RateLimit: "burst";r=50;t=30
/// ```
///
/// `q` is the threshold and `w` the period in whole seconds, rounded up, also of buckets. `r` is what
/// remains, which for a bucket may be more than `q`; `t` is the time, rounded up, after which an admitted
/// request has left no trace, and after which a refused one would be admitted. What is not printable ASCII
/// in a name is percent-encoded. Limits that only try themselves out ([`Limit::shadow`]) are not told of.
///
/// A refusal has, besides, `Retry-After` in whole seconds, rounded up, `Cache-Control: no-store`, and a
/// body: plain text, or a problem in JSON (RFC 9457) for who asks for JSON. It is 429 for a limit that
/// is reached, 413 for a cost that can never be admitted, 503 when the store cannot decide. A
/// [`Rejection`] that a handler returns is answered in the same way; what the application makes of that
/// answer stays, as do all other responses: the layer only adds fields to them. `RateLimit` leaves out
/// what ends later than `Retry-After` says to come back.
///
/// # Several layers
///
/// Each adds its fields before those of the layers within. What a request took of an outer layer's
/// limit stays taken when an inner one refuses it; limits of one layer are decided together, all or
/// nothing.
pub struct RateLimitLayer<A = Http> {
    rules: Arc<Rules<Parts>>,
    /// `RateLimit-Policy` where a request met no other limits.
    policy: Option<HeaderValue>,
    answers: PhantomData<fn() -> A>,
}

impl RateLimitLayer {
    /// A layer that limits nothing by itself, and tells of what annotated functions decide.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says what the body of a refusal is: a content type, and a text.
    ///
    /// ```
    /// use ratelimit_runtime::web::{RateLimitLayer, RejectedRequest};
    ///
    /// let layer = RateLimitLayer::new().rejection_body(|refusal: &RejectedRequest<'_>| {
    ///     ("text/html", format!("<h1>{}</h1>", refusal.rejection()))
    /// });
    /// ```
    #[must_use]
    pub fn rejection_body(
        self,
        body: impl Fn(&RejectedRequest<'_>) -> (&'static str, String) + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.body(body))
    }
}

#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
impl RateLimitLayer<super::Grpc> {
    /// The same for a gRPC server: refusals are statuses.
    #[must_use]
    pub fn grpc() -> Self {
        Self::default()
    }
}

impl<A> RateLimitLayer<A> {
    /// Limits requests by `limit`, counted by the key that `key` makes of each: a function of all but the
    /// body. Several limits are decided together, as [`RateLimiter::check_all`] does, and must agree on
    /// what it says.
    ///
    /// # Panics
    ///
    /// When the limits disagree about scope, `on_error`, shadow or wait: put those into layers of their
    /// own.
    #[must_use]
    pub fn limit<K: Key>(
        self,
        limit: Limit,
        key: impl Fn(&Parts) -> K + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.limit(limit, key))
    }

    /// Lets requests pass of which `is_exempt` says so: health checks, say. They are not told of the limits
    /// of this layer.
    #[must_use]
    pub fn exempt(self, is_exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.exempt(is_exempt))
    }

    /// Decides by `limiter` instead of the current one. Annotated functions are not affected.
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

    fn with(mut self, set: impl FnOnce(&mut Rules<Parts>)) -> Self {
        set(Arc::make_mut(&mut self.rules));
        self.policy = policy(&self.rules.told);
        self
    }

    /// Adds the fields that tell of the limits in `seen`.
    fn tell(&self, headers: &mut HeaderMap, seen: &Seen) {
        let told = self.rules.told.entries().map(Entry::identity);
        let is_known = seen.entries().map(Entry::identity).eq(told);
        let policy = if is_known { self.policy.clone() } else { policy(seen) };
        tell(headers, seen, policy, self.rules.has_legacy_headers);
    }
}

impl<A> Clone for RateLimitLayer<A> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules), policy: self.policy.clone(), answers: PhantomData }
    }
}

impl<A> Default for RateLimitLayer<A> {
    fn default() -> Self {
        Self { rules: Arc::default(), policy: None, answers: PhantomData }
    }
}

impl<A> fmt::Debug for RateLimitLayer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").finish_non_exhaustive()
    }
}

impl<S, A> Layer<S> for RateLimitLayer<A> {
    type Service = RateLimitService<S, A>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitService { inner, layer: self.clone() }
    }
}

/// A service behind a [`RateLimitLayer`].
pub struct RateLimitService<S, A = Http> {
    inner: S,
    layer: RateLimitLayer<A>,
}

impl<S: Clone, A> Clone for RateLimitService<S, A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, A> fmt::Debug for RateLimitService<S, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, A, B, C> Service<Request<B>> for RateLimitService<S, A>
where
    S: Service<Request<B>, Response = Response<C>> + Clone,
    A: ResponseFormat<C>,
{
    type Response = Response<C>;
    type Error = S::Error;
    type Future = ResponseFuture<S, A, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let rules = &self.layer.rules;
        let (parts, body) = request.into_parts();
        let is_exempt = rules.exempts(&parts);
        let mut seen = rules.seen(is_exempt);
        seen.asked.read(&parts);
        let begun = seen.during(|| {
            if is_exempt {
                return None;
            }
            let (mut check, by) = rules.check(&parts)?;
            // What is decided here is decided, and no service need be kept for later. A question to
            // Redis is asked once the future is polled.
            let decided = match by {
                Decides::Here => poll_now(&mut check),
                Decides::Elsewhere => Poll::Pending,
            };
            Some((check, decided))
        });
        let request = Request::from_parts(parts, body);
        let stage = match begun {
            None | Some((_, Poll::Ready(Ok(_)))) => {
                Stage::Handled { inner: seen.throughout(self.inner.call(request)) }
            }
            Some((_, Poll::Ready(Err(rejection)))) => {
                // Whatever the inner service holds ready, others may have it.
                self.inner = self.inner.clone();
                Stage::Refused { refused: Some((rejection, seen)) }
            }
            Some((check, Poll::Pending)) => {
                // The one that is ready is the one that is called; a clone has yet to become ready.
                let clone = self.inner.clone();
                let service = mem::replace(&mut self.inner, clone);
                Stage::Checked { waiting: Box::new((check, seen, Some((service, request)))) }
            }
        };
        ResponseFuture { stage, layer: self.layer.clone() }
    }
}

/// Polls a future that is ready.
fn poll_now<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

pin_project! {
    /// A request on its way through a [`RateLimitService`].
    pub struct ResponseFuture<S, A, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        stage: Stage<S, S::Future, B>,
        layer: RateLimitLayer<A>,
    }
}

/// A check, and what is to be done after it. It is boxed: only Redis is waited for.
type Waiting<S, B> = (Check, Seen, Option<(S, Request<B>)>);

pin_project! {
    #[project = StageNow]
    enum Stage<S, F, B> {
        Checked { waiting: Box<Waiting<S, B>> },
        Handled { #[pin] inner: Recorded<F> },
        Refused { refused: Option<(Rejection, Seen)> },
    }
}

impl<S, A, B, C> Future for ResponseFuture<S, A, B>
where
    S: Service<Request<B>, Response = Response<C>>,
    A: ResponseFormat<C>,
{
    type Output = Result<Response<C>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.stage.as_mut().project() {
                StageNow::Checked { waiting } => {
                    let (check, seen, waiting) = &mut **waiting;
                    let decided = seen.during(|| Pin::new(check).poll(context));
                    match ready!(decided) {
                        Ok(_) => {
                            let (mut service, request) =
                                waiting.take().expect("polled after it was ready");
                            let inner = mem::take(seen).throughout(service.call(request));
                            Stage::Handled { inner }
                        }
                        Err(rejection) => {
                            Stage::Refused { refused: Some((rejection, mem::take(seen))) }
                        }
                    }
                }
                StageNow::Handled { mut inner } => {
                    let mut response = ready!(inner.as_mut().poll(context))?;
                    let seen = inner.take_value().map(RefCell::into_inner);
                    let seen = seen.unwrap_or_default();
                    this.layer.tell(response.headers_mut(), &seen);
                    return Poll::Ready(Ok(response));
                }
                StageNow::Refused { refused } => {
                    let (rejection, seen) = refused.take().expect("polled after it was ready");
                    let mut response = A::answer(&rejection, &seen);
                    this.layer.tell(response.headers_mut(), &seen);
                    return Poll::Ready(Ok(response));
                }
            };
            this.stage.set(next);
        }
    }
}

impl<S: Service<Request<B>>, A, B> fmt::Debug for ResponseFuture<S, A, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
