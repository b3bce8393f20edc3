//! A rejected request, and its response as plain values.

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use http::{HeaderMap, Method, Response, Uri};

use super::headers::push_name;
use super::text_response::{PLAIN_TEXT, TextResponse};
use crate::reply::Rejection;
use crate::report::request_log::{self, RequestLog};

/// A rejected request: the argument of a [`rejection_body`](super::RateLimitLayer::rejection_body) function.
#[derive(Clone, Copy, Debug)]
pub struct RejectedRequest<'a> {
    rejection: &'a Rejection,
    facts: &'a RequestFacts,
    /// The number of limits in the log before this one that have the same name.
    namesakes: usize,
}

/// The facts of a request that the response of its rejection needs.
#[derive(Clone, Default)]
pub(crate) struct RequestFacts {
    pub(crate) prefers_json: bool,
    /// Whether it is a gRPC request, with feature `tonic`.
    pub(crate) is_grpc: bool,
    /// Returns the body, if the application sets it.
    pub(crate) body: Option<BodyFn>,
    /// The request, if the application sets the body.
    pub(crate) head: Option<Arc<RequestHead>>,
}

impl RequestFacts {
    /// Returns whether a response is the same without these facts.
    pub(crate) fn is_default(&self) -> bool {
        !self.prefers_json && !self.is_grpc && self.body.is_none() && self.head.is_none()
    }
}

/// Returns the body of a rejection.
pub(crate) type BodyFn = Arc<dyn Fn(&RejectedRequest<'_>) -> TextResponse + Send + Sync>;

/// The part of a request that the body of a rejection can show.
pub(crate) struct RequestHead {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
}

impl<'a> RejectedRequest<'a> {
    pub(crate) fn new(rejection: &'a Rejection, facts: &'a RequestFacts, log: &RequestLog) -> Self {
        let namesakes = match rejection {
            Rejection::Limited { name, quota, .. }
            | Rejection::Blocked { name, quota, .. }
            | Rejection::Busy { name, quota, .. } => {
                let before = log.limits().take_while(|it| it.identity() != (name, *quota));
                before.filter(|it| it.name == *name).count()
            }
            _ => 0,
        };
        Self { rejection, facts, namesakes }
    }

    /// Returns why the request was rejected.
    #[must_use]
    pub fn rejection(&self) -> &'a Rejection {
        self.rejection
    }

    /// Returns the method of the request, such as `GET`.
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.head().map_or("", |head| head.method.as_str())
    }

    /// Returns the path of the request, without its query.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.head().map_or("", |head| head.uri.path())
    }

    /// Returns the query of the request, without the `?`; `None` if it has none.
    #[must_use]
    pub fn query(&self) -> Option<&'a str> {
        self.head()?.uri.query()
    }

    /// Returns the first value of a header of the request; `None` if the request does not have it, or if its value is
    /// not ASCII.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.head()?.headers.get(name)?.to_str().ok()
    }

    /// Returns whether the `Accept` header of the request names JSON with at least the weight of plain
    /// text.
    #[must_use]
    pub fn prefers_json(&self) -> bool {
        self.facts.prefers_json
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
        let (kind, title, has_policies) = match self.rejection {
            Rejection::Limited { .. }
            | Rejection::Blocked { .. }
            | Rejection::Busy { .. }
            | Rejection::CostExceedsCapacity { varies: true, .. } => {
                (QUOTA_EXCEEDED, "Quota Exceeded", true)
            }
            Rejection::CostExceedsCapacity { .. } => ("about:blank", "Content Too Large", false),
            Rejection::Unavailable { .. } => (REDUCED_CAPACITY, "Temporary Reduced Capacity", true),
            Rejection::Mistake { .. } => ("about:blank", "Internal Server Error", false),
        };
        let status = self.status();
        let mut text = format!(r#"{{"type":"{kind}","title":"{title}","status":{status}"#);
        text.push_str(r#","detail":"#);
        push_json_string(&mut text, &self.rejection.to_string());
        if has_policies && !self.rejection.is_hidden() {
            text.push_str(r#","violated-policies":["#);
            // The name as in `RateLimit` is a JSON string, too: printable, with the same escapes.
            push_name(&mut text, self.rejection.name(), self.namesakes);
            text.push(']');
        }
        text.push('}');
        text
    }

    #[cfg(feature = "tonic")]
    pub(crate) fn is_grpc(&self) -> bool {
        self.facts.is_grpc
    }

    /// Returns the response over HTTP, without the headers that report limits.
    pub(crate) fn response<B: From<String>>(&self) -> Response<B> {
        let text = match &self.facts.body {
            Some(body) => body(self),
            None if self.prefers_json() => {
                TextResponse::new("application/problem+json", self.problem_json())
            }
            None => TextResponse::new(PLAIN_TEXT, self.rejection.to_string()),
        };
        text.into_http(self.status(), self.retry_after())
    }

    fn head(&self) -> Option<&'a RequestHead> {
        self.facts.head.as_deref()
    }
}

impl fmt::Debug for RequestFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFacts")
            .field("prefers_json", &self.prefers_json)
            .finish_non_exhaustive()
    }
}

/// The status code of a rejection.
pub(crate) fn status(rejection: &Rejection) -> u16 {
    match rejection {
        Rejection::Limited { .. }
        | Rejection::Blocked { .. }
        | Rejection::Busy { .. }
        | Rejection::CostExceedsCapacity { varies: true, .. } => 429,
        Rejection::CostExceedsCapacity { .. } => 413,
        Rejection::Unavailable { .. } => 503,
        Rejection::Mistake { .. } => 500,
    }
}

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Appends a string of JSON (RFC 8259, section 7).
fn push_json_string(text: &mut String, value: &str) {
    text.push('"');
    for character in value.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            '\0'..='\x1f' => {
                // Writing to a string cannot fail.
                let _ = write!(text, "\\u{:04x}", u32::from(character));
            }
            _ => text.push(character),
        }
    }
    text.push('"');
}
