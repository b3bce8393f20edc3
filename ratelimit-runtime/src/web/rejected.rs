//! A rejected request, and the response to it as plain values. An application can send another response instead.

use std::sync::Arc;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};

use super::headers::{NO_STORE, namesakes, push_name};
use crate::reply::Rejection;
use crate::report::request_log::{self, RequestLog};

/// A rejected request: the argument of a [`rejection_body`](super::RateLimitLayer::rejection_body) function.
#[derive(Clone, Copy, Debug)]
pub struct RejectedRequest<'a> {
    pub(super) rejection: &'a Rejection,
    pub(super) log: &'a RequestLog,
}

/// The body of a rejection that the application sets, and the request that it shows.
pub(crate) struct CustomBody {
    pub(crate) function: BodyFn,
    /// The request without its body and its extensions.
    pub(crate) request: Request<()>,
}

/// Returns the body of a rejection.
pub(crate) type BodyFn = Arc<dyn Fn(&RejectedRequest<'_>) -> TextResponse + Send + Sync>;

impl<'a> RejectedRequest<'a> {
    /// Returns why the request was rejected.
    #[must_use]
    pub fn rejection(&self) -> &'a Rejection {
        self.rejection
    }

    /// Returns the method of the request, such as `GET`.
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.head().map_or("", |head| head.method().as_str())
    }

    /// Returns the path of the request, without its query.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.head().map_or("", |head| head.uri().path())
    }

    /// Returns the query of the request, without the `?`; `None` if it has none.
    #[must_use]
    pub fn query(&self) -> Option<&'a str> {
        self.head()?.uri().query()
    }

    /// Returns the first value of a header of the request; `None` if the request does not have it, or if its value is
    /// not ASCII.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.head()?.headers().get(name)?.to_str().ok()
    }

    /// Returns whether the `Accept` header of the request names JSON with at least the weight of plain
    /// text.
    #[must_use]
    pub fn prefers_json(&self) -> bool {
        self.log.prefers_json
    }

    /// Returns the status code: 429 if the limit is reached, 413 if the cost exceeds the capacity, 503 if
    /// the store could not decide, 500 if the program has a mistake.
    #[must_use]
    pub fn status(&self) -> u16 {
        status(self.rejection)
    }

    /// Returns `Retry-After` (RFC 9110, section 10.2.3): whole seconds, rounded up, at least one. One second if too
    /// many calls are in flight, whose ends are not known. `None` unless the limit is reached.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        request_log::retry_after(self.rejection)
    }

    /// Returns the problem details as JSON (RFC 9457). Their types are those of
    /// draft-ietf-httpapi-ratelimit-headers-11, section 5.
    #[must_use]
    pub fn problem_json(&self) -> String {
        let (status, kind, title) = problem(self.rejection);
        // The text of a rejection is that of this crate, and numbers: no character of it is escaped.
        let detail = self.rejection;
        let mut text =
            format!(r#"{{"type":"{kind}","title":"{title}","status":{status},"detail":"{detail}""#);
        if kind != NO_KIND && !self.rejection.is_hidden() {
            text.push_str(r#","violated-policies":["#);
            // The name as in `RateLimit` is a JSON string, too: printable, with the same escapes.
            let limit = self.rejection.decided();
            let namesakes = limit.map_or(0, |(name, quota, _)| namesakes(self.log, (name, quota)));
            push_name(&mut text, self.rejection.name(), namesakes);
            text.push(']');
        }
        text.push('}');
        text
    }

    /// Returns the response over HTTP, without the headers that report limits.
    pub(super) fn response(&self) -> Response<String> {
        let text = match self.custom_body() {
            Some(body) => (body.function)(self),
            None if self.prefers_json() => {
                TextResponse::new("application/problem+json", self.problem_json())
            }
            None => TextResponse::new(PLAIN_TEXT, self.rejection.to_string()),
        };
        text.into_http(self.status(), self.retry_after())
    }

    fn custom_body(&self) -> Option<&'a CustomBody> {
        self.log.body.as_ref()?.downcast_ref()
    }

    fn head(&self) -> Option<&'a Request<()>> {
        self.custom_body().map(|body| &body.request)
    }
}

/// The status code of a rejection.
pub(crate) fn status(rejection: &Rejection) -> u16 {
    problem(rejection).0
}

/// The status code of a rejection, and the type and the title of its problem details.
fn problem(rejection: &Rejection) -> (u16, &'static str, &'static str) {
    match rejection {
        Rejection::Limited { .. }
        | Rejection::Blocked { .. }
        | Rejection::Busy { .. }
        | Rejection::CostExceedsCapacity { varies: true, .. } => {
            (429, QUOTA_EXCEEDED, "Quota Exceeded")
        }
        Rejection::CostExceedsCapacity { .. } => (413, NO_KIND, "Content Too Large"),
        Rejection::Unavailable { .. } => (503, REDUCED_CAPACITY, "Temporary Reduced Capacity"),
        Rejection::Mistake { .. } => (500, NO_KIND, "Internal Server Error"),
    }
}

/// The type of a problem that its status describes. It names no limit.
const NO_KIND: &str = "about:blank";
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

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
    headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: String,
}

const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

impl TextResponse {
    /// Returns a response with this content type and text. The body of a rejected request keeps the status of the
    /// rejection; any other response has status 400. A content type that is not a valid value is replaced by plain
    /// text.
    #[must_use]
    pub fn new(content_type: &'static str, body: impl Into<String>) -> Self {
        let content_type = HeaderValue::from_str(content_type);
        let content_type = content_type.unwrap_or(HeaderValue::from_static(PLAIN_TEXT));
        Self { status: None, headers: vec![(CONTENT_TYPE, content_type)], body: body.into() }
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
        if let (Ok(name), Ok(value)) =
            (HeaderName::try_from(name), HeaderValue::try_from(value.into()))
        {
            self.headers.push((name, value));
        }
        self
    }

    /// Returns the response over HTTP, without the headers that report limits. It has `status` unless the application
    /// sets another.
    pub(super) fn into_http(self, status: u16, retry_after: Option<u64>) -> Response<String> {
        let mut response = Response::new(self.body);
        *response.status_mut() = status_code(self.status.unwrap_or(status));
        let headers = response.headers_mut();
        headers.extend(self.headers);
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
impl<T: Into<String>> From<(u16, T)> for TextResponse {
    fn from((status, body): (u16, T)) -> Self {
        Self::new(PLAIN_TEXT, body).status(status)
    }
}

/// Lets annotated functions return types that a rejection converts to.
macro_rules! returned {
    ($([$($parameter:tt)*] $type:ty),+) => {$(
        #[diagnostic::do_not_recommend]
        impl<$($parameter)*> $crate::FromRejection for $type {
            fn from_rejection(rejection: $crate::Rejection) -> Self {
                rejection.into()
            }
        }
    )+};
}

pub(super) use returned;
