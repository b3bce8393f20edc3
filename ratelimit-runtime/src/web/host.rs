//! The key of a host that a client calls, for [`OutboundLayer`](super::OutboundLayer) and annotated functions.

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
/// A server can have any number of names. If strangers choose the URL, as the receiver of a webhook does, also limit by
/// the customer who has set the URL.
#[must_use]
pub fn host_key(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}
