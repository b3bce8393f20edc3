//! [`OutboundLayer`]: limits in front of a client. Twin of `layer`, which limits a server. Also the header
//! `Retry-After` of a service that a client calls, and the key of its host.

use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{DATE, RETRY_AFTER};
use httpdate::parse_http_date;
use tower_layer::Layer;
use tower_service::Service;

use super::config::LayerConfig;
use super::settings::limit_settings;
#[cfg(doc)]
use crate::limit::Limit;
#[cfg(doc)]
use crate::limiter::RateLimiter;
use crate::printing::debug_by_name;
#[cfg(doc)]
use crate::reply::{Decision, Rejection};
use crate::report::request_log;

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
    config: Arc<LayerConfig<R, BoxError>>,
}

type BoxError = Box<dyn Error + Send + Sync>;

impl<R> OutboundLayer<R> {
    limit_settings!(R, BoxError);
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

// Not derived: a request type need not implement `Clone` or `Default`.
impl<R> Clone for OutboundLayer<R> {
    fn clone(&self) -> Self {
        Self { config: Arc::clone(&self.config) }
    }
}

impl<R> Default for OutboundLayer<R> {
    fn default() -> Self {
        Self { config: Arc::new(LayerConfig::new(false)) }
    }
}

debug_by_name!("OutboundLayer" [R] OutboundLayer<R>);

impl<S, R> Layer<S> for OutboundLayer<R> {
    type Service = OutboundService<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        OutboundService { inner, layer: self.clone() }
    }
}

/// A client behind an [`OutboundLayer`]. A request whose future is dropped while it waits takes nothing.
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
    S: Service<R, Error: Into<Box<dyn Error + Send + Sync>>, Future: Send> + Clone + Send + 'static,
    R: Send + 'static,
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
        let mut check = None;
        let started = if config.is_exempt(&request) {
            Ok(())
        } else {
            request_log::without(|| config.start(&request, &mut check))
        };
        Box::pin(async move {
            started?;
            if let Some(mut check) = check {
                let poll = |context: &mut Context<'_>| {
                    request_log::without(|| Pin::new(&mut check).poll(context))
                };
                let call = poll_fn(poll).await?;
                if let Some(expose) = expose {
                    expose(&mut request, call.decision);
                }
            }
            ready.call(request).await.map_err(Into::into)
        })
    }
}

/// Returns how long a response asks its client to wait, by `Retry-After` (RFC 9110, section 10.2.3); `None` if it does
/// not have the header, or if no value of it can be read.
///
/// ```
/// use std::time::Duration;
/// use http::HeaderMap;
/// use ratelimit_runtime::web::retry_after;
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(retry_after(&headers), None);
/// headers.insert("retry-after", "120".parse()?);
/// assert_eq!(retry_after(&headers), Some(Duration::from_secs(120)));
///
/// // The service decides by its own clock.
/// headers.insert("date", "Wed, 21 Oct 2015 07:28:00 GMT".parse()?);
/// headers.insert("retry-after", "Wed, 21 Oct 2015 07:28:30 GMT".parse()?);
/// assert_eq!(retry_after(&headers), Some(Duration::from_secs(30)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - A date is relative to the `Date` of the response, or to the clock of this machine if it has none. A date that has
///   passed is no wait.
/// - Of several values, the longest wait counts. Values that cannot be read are ignored.
/// - A fraction is rounded up to whole seconds. More seconds than fit into a `u64` are `u64::MAX`.
///
/// Read the header of the statuses 429 and 503 only, and bound the time that you obey, as `block_at_most` does: a
/// service can ask for a hundred years.
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let date = headers.get(DATE).and_then(|date| parse_http_date(date.to_str().ok()?).ok());
    let now = date.unwrap_or_else(SystemTime::now);
    let lines = headers.get_all(RETRY_AFTER).iter();
    lines.filter_map(|line| longest_wait(line.to_str().ok()?, now)).max()
}

/// Returns the longest wait of a list. A date has a comma after the day of the week.
fn longest_wait(line: &str, now: SystemTime) -> Option<Duration> {
    let until =
        |date: &str| Some(parse_http_date(date).ok()?.duration_since(now).unwrap_or_default());
    let parts: Vec<_> = line.split(',').collect();
    let alone = parts.iter().filter_map(|part| seconds(part.trim()).or_else(|| until(part)));
    let pairs = parts.windows(2).filter_map(|pair| until(&pair.join(",")));
    alone.chain(pairs).max()
}

/// Returns a number of seconds, rounded up.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let whole = whole.parse().unwrap_or(u64::MAX);
    let is_more = fraction.bytes().any(|digit| digit != b'0');
    Some(Duration::from_secs(whole.saturating_add(is_more.into())))
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
