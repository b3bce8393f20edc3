//! The response that an application sends instead of that of a rejection.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::headers::NO_STORE;

/// A status, a content type and a text: the body of a rejected request, or the response to a request without a key. See
/// [`rejection_body`](super::RateLimitLayer::rejection_body) and [`limits`](super::RateLimitLayer::limits).
///
/// ```
/// use ratelimit_runtime::web::TextResponse;
///
/// let plain: TextResponse = (401, "send an API key").into();
/// assert_eq!(plain, TextResponse::new("text/plain; charset=utf-8", "send an API key").status(401));
/// ```
///
/// Over gRPC, a rejection keeps the status of the rejection. Of a request without a key, the text is the message of a
/// status: 400 is `INVALID_ARGUMENT`, 401 is `UNAUTHENTICATED`, 403 is
/// `PERMISSION_DENIED`, 404 is `NOT_FOUND`, 429 is `RESOURCE_EXHAUSTED`, 503 is `UNAVAILABLE`, and others are
/// `UNKNOWN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextResponse {
    pub(super) status: Option<u16>,
    content_type: &'static str,
    headers: Vec<(&'static str, String)>,
    pub(super) body: String,
}

pub(super) const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

impl TextResponse {
    /// Returns a response with this content type and text. The body of a rejected request keeps the status of the
    /// rejection; any other response has status 400. A content type that is not a valid value is replaced by plain
    /// text.
    #[must_use]
    pub fn new(content_type: &'static str, body: impl Into<String>) -> Self {
        Self { status: None, content_type, headers: Vec::new(), body: body.into() }
    }

    /// Sets the status code. A number that is not one is replaced by 503.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Adds a header, such as `Content-Language`. A name or a value that is not valid is left out.
    ///
    /// ```
    /// use ratelimit_runtime::web::TextResponse;
    ///
    /// let german = TextResponse::new("text/plain; charset=utf-8", "Zu viele Anfragen")
    ///     .header("content-language", "de")
    ///     .header("vary", "accept-language");
    /// # let _ = german;
    /// ```
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns the response over HTTP, without the headers that report limits. It has `status` unless the application
    /// sets another.
    pub(super) fn into_http<B: From<String>>(
        self,
        status: u16,
        retry_after: Option<u64>,
    ) -> Response<B> {
        let mut response = Response::new(B::from(self.body));
        *response.status_mut() = status_code(self.status.unwrap_or(status));
        let headers = response.headers_mut();
        let content_type = HeaderValue::from_str(self.content_type);
        let content_type = content_type.unwrap_or(HeaderValue::from_static(PLAIN_TEXT));
        headers.insert(CONTENT_TYPE, content_type);
        for (name, value) in self.headers {
            if let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(name.as_bytes()), HeaderValue::try_from(value))
            {
                headers.append(name, value);
            }
        }
        headers.insert(CACHE_CONTROL, NO_STORE);
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Returns a status code; 503 in place of a number that is not one.
pub(super) fn status_code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
}

/// A content type and a text.
impl From<(&'static str, String)> for TextResponse {
    fn from((content_type, body): (&'static str, String)) -> Self {
        Self::new(content_type, body)
    }
}

/// A status, a content type and a text.
impl From<(u16, &'static str, String)> for TextResponse {
    fn from((status, content_type, body): (u16, &'static str, String)) -> Self {
        Self::new(content_type, body).status(status)
    }
}

/// A status and a plain text.
impl From<(u16, &str)> for TextResponse {
    fn from((status, body): (u16, &str)) -> Self {
        Self::new(PLAIN_TEXT, body).status(status)
    }
}

/// A status and a plain text.
impl From<(u16, String)> for TextResponse {
    fn from((status, body): (u16, String)) -> Self {
        Self::new(PLAIN_TEXT, body).status(status)
    }
}
