//! [`RateLimitLayer`]: the settings of the middleware for tower. Twin of `RateLimits` in `actix`; both call
//! `middleware`.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::request::Parts;
use tower_layer::Layer;

#[cfg(doc)]
use super::address::Client;
use super::address::Clients;
use super::middleware::MiddlewareConfig;
use super::outbound::OutboundLayer;
use super::rejected::RejectedRequest;
use super::request_limits::RequestLimits;
use super::response::Http;
use super::service::RateLimitService;
use super::text_response::TextResponse;
use crate::key::Key;
use crate::limit::Limit;
use crate::limiter::RateLimiter;
#[cfg(doc)]
use crate::reply::Rejection;

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
/// one item for each limit that was checked for the request. If several limits are decided together, `RateLimit` has an
/// item only for the limit that made the decision; see [`RateLimiter::check_all`].
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
///   reset. After a rejected request, it is the time until the same request can be admitted.
/// - A character of a name that is not printable ASCII is percent-encoded.
/// - A [shadow limit](Limit::shadow) is not reported.
/// - If the response has `Retry-After`, `RateLimit` leaves out limits that admitted the request, and limits with a
///   later `t`.
///
/// # Rejected requests
///
/// | status | reason |
/// | --- | --- |
/// | 429 | the limit is reached |
/// | 413 | the cost exceeds the capacity: the request can never be admitted |
/// | 503 | the store could not decide |
///
/// The response has `Cache-Control: no-store` and a body. The body is plain text, or problem details in JSON (RFC 9457)
/// if the client prefers JSON. If a wait helps, the response also has `Retry-After` in whole seconds, rounded up. A
/// [`Rejection`] that a handler returns becomes the same response. The application can change that response: the layer
/// only adds headers to the responses of handlers.
///
/// # Several layers
///
/// Each layer adds its items before those of the layers inside it. If an inner layer rejects a request, the
/// outer layer has still counted it. The limits of one layer are decided together, all or nothing.
pub struct RateLimitLayer<F = Http> {
    pub(super) config: Arc<MiddlewareConfig<Parts>>,
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

    /// Sets the body of rejected requests: a function that returns the content type and the text, or a [`TextResponse`]
    /// with another status. It sees the method, the path and the headers of the request, such as a request identifier
    /// or a language.
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
    #[must_use]
    pub fn rejection_body<T: Into<TextResponse>>(
        self,
        body: impl Fn(&RejectedRequest<'_>) -> T + Send + Sync + 'static,
    ) -> Self {
        self.configure(|config| config.set_body(body))
    }
}

#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
impl RateLimitLayer<super::Grpc> {
    /// Returns a layer for a gRPC server: the response of a rejected request is a status.
    #[must_use]
    pub fn grpc() -> Self {
        Self::default()
    }
}

impl<F> RateLimitLayer<F> {
    /// Limits requests by `limit`. `key` returns the key of a request, from its method, URI, headers and extensions.
    /// Several limits are decided together: see [`RateLimiter::check_all`].
    ///
    /// # Panics
    ///
    /// If the limits of the layer differ in scope, `on_error`, shadow or wait. Add such limits to separate
    /// layers.
    #[must_use]
    pub fn limit<K: Key>(
        self,
        limit: Limit,
        key: impl Fn(&Parts) -> K + Send + Sync + 'static,
    ) -> Self {
        self.configure(|config| config.add_limit(limit, key))
    }

    /// Chooses the limits of each request: `choose` adds them. A request to which it adds none is not limited. If
    /// `choose` returns an error, the request is not handled and not charged, and the error is the response: to limit
    /// guesses of API keys, limit clients in an outer layer. The limits of the request are decided together.
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
    /// Limits that differ in scope, `on_error`, shadow or wait cannot be decided together, nor can two different limits
    /// that share a count: such a request gets a 503.
    #[must_use]
    pub fn limits(
        self,
        choose: impl Fn(&Parts, &mut RequestLimits) -> Result<(), TextResponse> + Send + Sync + 'static,
    ) -> Self {
        self.configure(|config| config.add_limits(choose))
    }

    /// Admits the requests for which `is_exempt` returns true, for instance health checks, without a check.
    /// Their responses do not report the limits of this layer.
    #[must_use]
    pub fn exempt(self, is_exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.configure(|config| config.set_exempt(is_exempt))
    }

    /// Sets how clients are identified: by [`Client::of`] in the key functions of this layer, and by `Client` in the
    /// handlers behind it. It is put into the extensions of each request.
    #[must_use]
    pub fn clients(self, clients: Clients) -> Self {
        self.configure(|config| config.set_clients(clients))
    }

    /// Uses `limiter` for the limits of this layer, instead of the current one. Annotated functions are not
    /// affected.
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

    fn configure(mut self, change: impl FnOnce(&mut MiddlewareConfig<Parts>)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

impl<F> Clone for RateLimitLayer<F> {
    fn clone(&self) -> Self {
        Self { config: Arc::clone(&self.config), format: PhantomData }
    }
}

impl<F> Default for RateLimitLayer<F> {
    fn default() -> Self {
        Self { config: Arc::default(), format: PhantomData }
    }
}

impl<F> fmt::Debug for RateLimitLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").finish_non_exhaustive()
    }
}

impl<S, F> Layer<S> for RateLimitLayer<F> {
    type Service = RateLimitService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitService { inner, layer: self.clone() }
    }
}
