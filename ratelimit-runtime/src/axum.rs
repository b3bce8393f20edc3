//! [`Rejection`] as an axum response.

use axum_core::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderValue, StatusCode};

use crate::rejection::Rejection;

/// `429 Too Many Requests` with `Retry-After`, `413 Payload Too Large` for a cost that can never be
/// admitted, `503 Service Unavailable` when the store could not decide; the text is the `Display`.
impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Limited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::CostExceedsCapacity { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
        };
        let mut response = (status, self.to_string()).into_response();
        let headers = response.headers_mut();
        // RFC 6585, section 4: a 429 must not be stored by a cache.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after() {
            // RFC 9110, section 10.2.3: whole seconds.
            let seconds = wait.as_micros().div_ceil(1_000_000).max(1);
            let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
