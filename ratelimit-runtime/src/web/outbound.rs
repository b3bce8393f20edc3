//! [`OutboundLayer`]: limits in front of a client. Twin of `layer`, which limits a server. Also the key of a host.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tower_layer::Layer;
use tower_service::Service;

use super::config::LayerConfig;
use super::obey::Obedience;
use super::service_limits::ServiceLimits;
use super::settings::limit_settings;
use crate::key::{Key, OwnedKey};
use crate::limit::Limit;
use crate::printing::debug_by_name;
use crate::report::request_log;

/// A [`tower_layer::Layer`] for clients that are tower services, such as those of reqwest and hyper-util. It checks
/// each request before the client sends it. If its limits have a [`wait`](crate::Limit::wait), a request waits for its
/// units, first come, first served. [`RateLimitLayer::outbound`](super::RateLimitLayer::outbound) creates it.
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
/// the [`Rejection`](crate::Rejection):
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
///   [`Rejection`](crate::Rejection).
/// - The layer reads responses only with [`obey`](Self::obey).
/// - A timeout outside of it includes the time that a request waits; a timeout inside does not.
/// - A request that waits holds what the layers inside of it reserved, such as the permit of a concurrency limit. Put
///   a concurrency limit outside, if requests may wait.
///
/// If a handler of a server sends a request, the response of the server does not report the limits of this layer.
pub struct OutboundLayer<R, O = Unread> {
    config: Arc<LayerConfig<R, BoxError>>,
    responses: O,
}

/// What an [`OutboundLayer`] does with responses: it does not read them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unread;

/// What an [`OutboundLayer`] with [`obey`](OutboundLayer::obey) does with responses of type `T`.
pub struct Obeyed<T> {
    obedience: Arc<Obedience>,
    read: Arc<dyn Fn(&T) -> ServiceLimits + Send + Sync>,
}

/// What an [`OutboundLayer`] does with responses of type `T`. This trait is sealed.
pub trait ReadResponse<T>: Read<T> {}

impl<T, O: Read<T>> ReadResponse<T> for O {}

#[allow(unreachable_pub, reason = "it seals a public trait")]
pub trait Read<T>: Clone + Send + 'static {
    fn obeyed(&self) -> Option<&Obeyed<T>>;
}

impl<T> Read<T> for Unread {
    fn obeyed(&self) -> Option<&Obeyed<T>> {
        None
    }
}

impl<T: 'static> Read<T> for Obeyed<T> {
    fn obeyed(&self) -> Option<&Self> {
        Some(self)
    }
}

type BoxError = Box<dyn Error + Send + Sync>;

impl<R, O> OutboundLayer<R, O> {
    limit_settings!(R, BoxError);

    /// Obeys the service: what `read` finds in a response, usually by [`ServiceLimits::read`], holds for the key of the
    /// first limit of its request, in all processes that share the limit.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{Request, Response};
    /// use ratelimit_runtime::Limit;
    /// use ratelimit_runtime::web::{RateLimitLayer, ServiceLimits};
    ///
    /// const GITHUB: Limit =
    ///     Limit::sliding("github", 5_000, Duration::from_secs(3600)).wait(Duration::from_secs(60));
    ///
    /// let layer = RateLimitLayer::outbound()
    ///     .limit(GITHUB, |_: &Request<String>| "our token")
    ///     .obey(Duration::from_secs(3600), |response: &Response<String>| {
    ///         ServiceLimits::read(response.status(), response.headers())
    ///     });
    /// # let _ = layer;
    /// ```
    ///
    /// - While the service admits nothing, the key is [blocked](crate::RateLimiter::block), but at most for `at_most`.
    /// - If few requests remain, the fleet spreads them evenly over the time until the reset. Few are at most a fifth
    ///   of the limit of the service, or at most twice the requests under way. If more remain, this process sends no
    ///   more requests until the reset than remain.
    /// - After a pause, and after a reset for which requests were held, the fleet sends one request a second, until
    ///   this process has an answer without a pause. A process can miss the pause that another process has read. It
    ///   then learns of it when the block rejects a request, or when a request has waited for a second without an
    ///   answer.
    ///
    /// The pace is a limit of its own, `<name> pace`. A request is held within the [`wait`](crate::Limit::wait) of its
    /// limit. Then it is rejected, unless it may be the one of its second; its limits have charged it. Its checks can
    /// take two deadlines more. A request whose future is kept and not polled holds up those behind it until their
    /// waits end. A [shadow](crate::Limit::shadow) does not obey.
    #[must_use]
    pub fn obey<T>(
        self,
        at_most: Duration,
        read: impl Fn(&T) -> ServiceLimits + Send + Sync + 'static,
    ) -> OutboundLayer<R, Obeyed<T>> {
        let responses = Obeyed { obedience: Obedience::new(at_most), read: Arc::new(read) };
        OutboundLayer { config: self.config, responses }
    }
}

impl<B, O> OutboundLayer<http::Request<B>, O> {
    /// Puts the [`Decision`](crate::Decision) about each admitted request into its extensions, for the client and the
    /// layers inside of this one. A request that is exempt, or that has no limits here, gets none.
    #[must_use]
    pub fn expose_decision(self) -> Self {
        self.configure(|config| {
            config.expose = Some(|request, decision| {
                request.extensions_mut().insert(decision);
            });
        })
    }
}

// Not derived: a request type need not implement `Clone` or `Default`.
impl<R, O: Clone> Clone for OutboundLayer<R, O> {
    fn clone(&self) -> Self {
        Self { config: Arc::clone(&self.config), responses: self.responses.clone() }
    }
}

impl<T> Clone for Obeyed<T> {
    fn clone(&self) -> Self {
        Self { obedience: Arc::clone(&self.obedience), read: Arc::clone(&self.read) }
    }
}

impl<R> Default for OutboundLayer<R> {
    fn default() -> Self {
        Self { config: Arc::new(LayerConfig::new(false)), responses: Unread }
    }
}

debug_by_name!("OutboundLayer" [R, O] OutboundLayer<R, O>, "Obeyed" [T] Obeyed<T>);

impl<S, R, O: Clone> Layer<S> for OutboundLayer<R, O> {
    type Service = OutboundService<S, R, O>;

    fn layer(&self, inner: S) -> Self::Service {
        OutboundService { inner, layer: self.clone() }
    }
}

/// A client behind an [`OutboundLayer`]. A request whose future is dropped while it waits for its limits takes nothing.
pub struct OutboundService<S, R, O = Unread> {
    inner: S,
    layer: OutboundLayer<R, O>,
}

impl<S: Clone, R, O: Clone> Clone for OutboundService<S, R, O> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

debug_by_name!("OutboundService" [S, R, O] OutboundService<S, R, O>);

impl<S, R, O> Service<R> for OutboundService<S, R, O>
where
    S: Service<R, Error: Into<Box<dyn Error + Send + Sync>>, Future: Send> + Clone + Send + 'static,
    S::Response: Send,
    R: Send + 'static,
    O: ReadResponse<S::Response>,
{
    type Response = S::Response;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: R) -> Self::Future {
        let config = &self.layer.config;
        let (expose, clone) = (config.expose, self.inner.clone());
        // A rejected request drops it, and frees what it reserved when it became ready, such as a permit.
        let mut ready = mem::replace(&mut self.inner, clone);
        let responses = self.layer.responses.clone();
        let (mut check, mut first) = (None, None);
        let keep = |limit: &Limit, key: &dyn Key| {
            // A limit that remembers has the id of the request as its key, and a shadow does not obey.
            let is_obeyed =
                responses.obeyed().is_some() && !limit.policy().once && !limit.policy().shadow;
            if is_obeyed && first.is_none() {
                first = Some((*limit, OwnedKey::of(key)));
            }
        };
        let started = if config.is_exempt(&request) {
            Ok(())
        } else {
            request_log::without(|| config.start(&request, &mut check, keep))
        };
        let begin =
            |(limit, key)| responses.obeyed()?.obedience.begin(config.limiter.as_ref(), limit, key);
        let mut obeyed = first.and_then(begin);
        Box::pin(async move {
            started?;
            if let Some(check) = check {
                let result = unlogged(check).await;
                if let (Some(obeyed), Err(rejection)) = (&obeyed, &result) {
                    obeyed.rejected(rejection);
                }
                let call = result?;
                if let Some(expose) = expose {
                    expose(&mut request, call.decision);
                }
            }
            if let Some(obeyed) = &mut obeyed {
                unlogged(obeyed.paced()).await?;
            }
            let response = ready.call(request).await.map_err(Into::into)?;
            let limits = responses.obeyed().map(|it| (it.read)(&response));
            if let (Some(obeyed), Some(limits)) = (&obeyed, limits) {
                obeyed.obey(limits).await;
            }
            Ok(response)
        })
    }
}

/// Polls a future outside of the log of a request that a server handles.
async fn unlogged<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| request_log::without(|| work.as_mut().poll(context))).await
}

/// Returns the key of a host: in lower case, and without the dot at the end. `Example.COM.` is the host `example.com`,
/// so both share one count.
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use ratelimit_runtime::Limit;
/// use ratelimit_runtime::web::{RateLimitLayer, host_key};
///
/// const EACH_HOST: Limit = Limit::leaky_bucket("each host", 5, Duration::from_secs(1));
///
/// let layer = RateLimitLayer::outbound()
///     .limit(EACH_HOST, |request: &Request<String>| request.uri().host().map(host_key));
/// # let _ = layer;
/// assert_eq!(host_key("Example.COM."), "example.com");
/// ```
///
/// A server can have any number of names. If strangers choose the URL, as customers choose that of a webhook, also
/// limit by the customer.
#[must_use]
pub fn host_key(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}
