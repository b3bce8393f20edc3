//! What a refused client is told: the status, the body, when to come back.

use std::fmt::Write as _;
use std::sync::Arc;

use super::fields;
use super::seen::{Seen, seconds};
use crate::rejection::Rejection;

/// A refused request, to be answered; what a [body of your own](super::RateLimitLayer::rejection_body) is made
/// of.
#[derive(Clone, Copy, Debug)]
pub struct RejectedRequest<'a> {
    rejection: &'a Rejection,
    json: bool,
    /// How many limits of the same name the request met before.
    namesakes: usize,
}

/// What is known of a request, to answer it if it is refused.
#[derive(Clone, Default)]
pub(crate) struct Asked {
    pub(crate) json: bool,
    #[cfg(feature = "tonic")]
    pub(crate) is_grpc: bool,
    /// Makes the body, where the application says what it is.
    pub(crate) body: Option<MakeBody>,
}

/// A content type and a text.
pub(crate) type Body = (&'static str, String);

/// Makes the body of a refusal.
pub(crate) type MakeBody = Arc<dyn Fn(&RejectedRequest<'_>) -> Body + Send + Sync>;

impl<'a> RejectedRequest<'a> {
    /// A refusal of the request of which `seen` is known.
    pub(crate) fn new(rejection: &'a Rejection, seen: &Seen) -> Self {
        Self { rejection, json: seen.asked.json, namesakes: seen.namesakes(rejection) }
    }

    /// Why the request was refused.
    #[must_use]
    pub fn rejection(&self) -> &'a Rejection {
        self.rejection
    }

    /// Whether the client asked for JSON, and likes it no less than plain text.
    #[must_use]
    pub fn prefers_json(&self) -> bool {
        self.json
    }

    /// The status code: 429 for a limit that is reached, 413 for a cost that can never be admitted,
    /// 503 when the store could not decide.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self.rejection {
            Rejection::Limited { .. } => 429,
            Rejection::CostExceedsCapacity { .. } => 413,
            Rejection::Unavailable { .. } => 503,
        }
    }

    /// `Retry-After` (RFC 9110, section 10.2.3): whole seconds, rounded up, at least one; `None` where
    /// no wait is known to help.
    #[must_use]
    pub fn retry_after(&self) -> Option<u32> {
        self.rejection.retry_after().map(|wait| seconds(wait).max(1))
    }

    /// The problem as JSON (RFC 9457), of the types that draft-ietf-httpapi-ratelimit-headers-11
    /// defines in its section 5.
    #[must_use]
    pub fn problem_json(&self) -> String {
        let (kind, title, is_policy) = match self.rejection {
            Rejection::Limited { .. } => (QUOTA_EXCEEDED, "Quota Exceeded", true),
            Rejection::CostExceedsCapacity { .. } => ("about:blank", "Content Too Large", false),
            Rejection::Unavailable { .. } => (REDUCED_CAPACITY, "Temporary Reduced Capacity", true),
        };
        let status = self.status();
        let mut text = format!(r#"{{"type":"{kind}","title":"{title}","status":{status}"#);
        text.push_str(r#","detail":"#);
        string(&mut text, &self.rejection.to_string());
        if is_policy {
            text.push_str(r#","violated-policies":["#);
            // As a string of JSON it is as in the fields: printable, with the same escapes.
            fields::name(&mut text, self.rejection.name(), self.namesakes);
            text.push(']');
        }
        text.push('}');
        text
    }

    /// What is sent unless the application says otherwise.
    pub(crate) fn body(&self, make: Option<&MakeBody>) -> Body {
        match make {
            Some(make) => make(self),
            None if self.json => ("application/problem+json", self.problem_json()),
            None => ("text/plain; charset=utf-8", self.rejection.to_string()),
        }
    }
}

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// A string of JSON (RFC 8259, section 7).
fn string(text: &mut String, value: &str) {
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
