//! [`OutboundLayer`]: limits in front of a client. Twin of `layer` and `service`, which limit a server.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::limit_sources::{Admission, LimitSources};
use super::pending::{COMPLETED, PendingRequest};
use super::settings::limit_settings;
use crate::reply::Decision;
use crate::report::request_log;
#[cfg(doc)]
use crate::{limit::Limit, limiter::RateLimiter, reply::Rejection};

/// A [`tower_layer::Layer`] for clients that are tower services, such as those of reqwest and hyper-util. It checks
/// each request before the client sends it. If its limits have a [`wait`](Limit::wait), a request waits for its units,
/// first come, first served. [`RateLimitLayer::outbound`](super::RateLimitLayer::outbound) creates it.
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use ratelimit_runtime::Limit;
/// use ratelimit_runtime::web::{RateLimitLayer, host_key};
///
/// /// Each host gets five requests a second, evenly spaced. No request waits for more than ten seconds.
/// const EACH_HOST: Limit =
///     Limit::leaky_bucket("each host", 5, Duration::from_secs(1)).wait(Duration::from_secs(10));
///
/// let layer = RateLimitLayer::outbound()
///     .limit(EACH_HOST, |request: &Request<String>| request.uri().host().map(host_key));
/// # let _ = layer;
/// ```
///
/// With [`limits`](Self::limits), a function chooses the limits of each request, such as another one for each host:
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use ratelimit_runtime::Limit;
/// use ratelimit_runtime::web::{RateLimitLayer, RequestLimits};
///
/// const SEARCHES: Limit =
///     Limit::sliding("searches", 30, Duration::from_secs(60)).wait(Duration::from_secs(60));
///
/// let layer = RateLimitLayer::outbound().limits(
///     |request: &Request<String>, limits: &mut RequestLimits| {
///         if request.uri().path().starts_with("/search") {
///             limits.add(&SEARCHES, (), 1);
///         }
///         Ok(())
///     },
/// );
/// # let _ = layer;
/// ```
///
/// [`host_key`](super::host_key) returns the same key for all spellings of a host.
///
/// The example `outbound_layer` in the repository puts the layer in front of reqwest and of hyper-util.
///
/// # Errors of the service
///
/// The service returns the errors of the client, boxed. If a request is not admitted, it is not sent, and the error is
/// the [`Rejection`]:
///
/// ```
/// use ratelimit_runtime::Rejection;
///
/// fn describe(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
///     match error.downcast_ref::<Rejection>() {
///         Some(Rejection::Limited { name, decision, .. }) => {
///             format!("`{name}` admits it in {:?}", decision.retry_after)
///         }
///         Some(Rejection::Unavailable { name, error, .. }) => format!("`{name}`: {error}"),
///         Some(other) => other.to_string(),
///         None => format!("it was sent, and failed: {error}"),
///     }
/// }
/// # assert_eq!(describe(&std::fmt::Error), format!("it was sent, and failed: {}", std::fmt::Error));
/// ```
///
/// # Between other layers
///
/// - A retry layer outside of this one sends each attempt through the limits.
/// - In front of a tonic `Channel`, the error of a rejected request becomes a status `UNKNOWN` whose source is the
///   [`Rejection`].
/// - The layer does not read responses. To obey `Retry-After`, block the key for the time that
///   [`retry_after`](super::retry_after) reads, with [`RateLimiter::block`] or `block` in the attribute.
/// - A timeout outside of it includes the time that a request waits; a timeout inside does not.
/// - A request that waits holds what the layers inside of it reserved, such as the permit of a concurrency limit. Put
///   a concurrency limit outside, if requests may wait.
///
/// If a handler of a server sends a request, the response of the server does not report the limits of this layer.
pub struct OutboundLayer<R> {
    config: Arc<OutboundConfig<R>>,
}

/// The settings of an [`OutboundLayer`].
struct OutboundConfig<R> {
    limits: LimitSources<R, BoxError>,
    /// Puts the decision about a request into it.
    expose: Option<fn(&mut R, Decision)>,
}

type BoxError = Box<dyn Error + Send + Sync>;

impl<R> OutboundLayer<R> {
    limit_settings!(R, BoxError);

    fn configure(mut self, change: impl FnOnce(&mut OutboundConfig<R>)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

impl<B> OutboundLayer<http::Request<B>> {
    /// Puts the [`Decision`] about each admitted request into its extensions, for the client and the layers inside of
    /// this one. A request that is exempt, or that has no limits here, gets none.
    #[must_use]
    pub fn expose_decision(self) -> Self {
        self.configure(|config| {
            config.expose = Some(|request, decision| {
                request.extensions_mut().insert(decision);
            });
        })
    }
}

impl<R> OutboundConfig<R> {
    /// Starts the check of a request.
    fn start(&self, request: &R) -> Result<Admission, BoxError> {
        if self.limits.is_exempt(request) {
            return Ok(Admission::Admitted(None));
        }
        request_log::without(|| self.limits.start(request))
    }

    /// Puts the decision about a request into it, if that is set.
    fn expose(&self, request: &mut R, decision: Decision) {
        if let Some(expose) = self.expose {
            expose(request, decision);
        }
    }
}

// Not derived: a request type need not implement `Clone` or `Default`.
impl<R> Clone for OutboundConfig<R> {
    fn clone(&self) -> Self {
        Self { limits: self.limits.clone(), expose: self.expose }
    }
}

impl<R> Default for OutboundConfig<R> {
    fn default() -> Self {
        Self { limits: LimitSources::new(false), expose: None }
    }
}

impl<R> Clone for OutboundLayer<R> {
    fn clone(&self) -> Self {
        Self { config: Arc::clone(&self.config) }
    }
}

impl<R> Default for OutboundLayer<R> {
    fn default() -> Self {
        Self { config: Arc::default() }
    }
}

impl<R> fmt::Debug for OutboundLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundLayer").finish_non_exhaustive()
    }
}

impl<S, R> Layer<S> for OutboundLayer<R> {
    type Service = OutboundService<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        OutboundService { inner, layer: self.clone() }
    }
}

/// A client behind an [`OutboundLayer`].
pub struct OutboundService<S, R> {
    inner: S,
    layer: OutboundLayer<R>,
}

impl<S: Clone, R> Clone for OutboundService<S, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, R> fmt::Debug for OutboundService<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, R> Service<R> for OutboundService<S, R>
where
    S: Service<R, Error: Into<Box<dyn Error + Send + Sync>>> + Clone,
{
    type Response = S::Response;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = OutboundFuture<S, R>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: R) -> Self::Future {
        let config = &self.layer.config;
        let stage = match config.start(&request) {
            Ok(Admission::Admitted(call)) => {
                if let Some(call) = call {
                    config.expose(&mut request, call.decision);
                }
                OutboundStage::Sent { response: self.inner.call(request) }
            }
            Ok(Admission::Rejected(rejection)) => {
                // Frees what the inner service reserved when it became ready, such as a permit.
                self.inner = self.inner.clone();
                OutboundStage::Refused { error: Some(rejection.into()) }
            }
            Err(error) => {
                self.inner = self.inner.clone();
                OutboundStage::Refused { error: Some(error) }
            }
            Ok(Admission::Pending(check)) => {
                let config = Arc::clone(config);
                let pending = PendingRequest::new(check, &mut self.inner, request);
                OutboundStage::Pending { pending: Box::new((pending, config)) }
            }
        };
        OutboundFuture { stage }
    }
}

pin_project! {
    /// The response future of [`OutboundService`]. A request that is dropped while it waits takes nothing.
    pub struct OutboundFuture<S, R>
    where
        S: Service<R>,
    {
        #[pin]
        stage: OutboundStage<S, R, S::Future>,
    }
}

pin_project! {
    #[project = OutboundStageProjection]
    enum OutboundStage<S, R, F> {
        Pending { pending: Box<(PendingRequest<S, R>, Arc<OutboundConfig<R>>)> },
        Sent { #[pin] response: F },
        Refused { error: Option<BoxError> },
    }
}

impl<S, R> Future for OutboundFuture<S, R>
where
    S: Service<R, Error: Into<Box<dyn Error + Send + Sync>>>,
{
    type Output = Result<S::Response, Box<dyn Error + Send + Sync>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            let next = match stage.as_mut().project() {
                OutboundStageProjection::Pending { pending } => {
                    let (pending, config) = &mut **pending;
                    let check = Pin::new(&mut pending.check);
                    match ready!(request_log::without(|| check.poll(context))) {
                        Ok(call) => {
                            if let Some(request) = pending.request_mut() {
                                config.expose(request, call.decision);
                            }
                            OutboundStage::Sent { response: pending.call() }
                        }
                        Err(rejection) => OutboundStage::Refused { error: Some(rejection.into()) },
                    }
                }
                OutboundStageProjection::Sent { response } => {
                    return response.poll(context).map_err(Into::into);
                }
                OutboundStageProjection::Refused { error } => {
                    return Poll::Ready(Err(error.take().expect(COMPLETED)));
                }
            };
            stage.set(next);
        }
    }
}

impl<S: Service<R>, R> fmt::Debug for OutboundFuture<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboundFuture").finish_non_exhaustive()
    }
}
