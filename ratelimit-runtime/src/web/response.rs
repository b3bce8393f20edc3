//! Refusals and fields as responses of the `http` crate: what the layer sends, and what [`Rejection`]
//! is where a framework turns it into a response.

use std::iter;

use http::header::Entry;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::accept::prefers_json;
use super::fields;
use super::rejected::{Asked, RejectedRequest};
use super::seen::{self, Seen};
use crate::rejection::Rejection;

/// Answers rejected requests in HTTP: in plain text, or as a JSON problem (RFC 9457) if the client prefers
/// JSON. With feature `tonic`, a gRPC request is answered as by [`Grpc`].
#[derive(Clone, Copy, Debug)]
pub struct Http;

/// Answers rejected requests in gRPC, with a status.
#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
#[derive(Clone, Copy, Debug)]
pub struct Grpc;

/// How a layer answers refused requests, in responses with the body `B`: [`Http`] or `Grpc`. It is
/// sealed.
pub trait ResponseFormat<B>: sealed::ResponseFormat<B> {}

impl<A: sealed::ResponseFormat<B>, B> ResponseFormat<B> for A {}

mod sealed {
    use super::{Rejection, Response, Seen};

    #[allow(unreachable_pub, private_interfaces, reason = "it seals a public trait")]
    pub trait ResponseFormat<B> {
        fn answer(rejection: &Rejection, seen: &Seen) -> Response<B>;
    }
}

#[allow(private_interfaces, reason = "it seals a public trait")]
impl<B: From<String>> sealed::ResponseFormat<B> for Http {
    fn answer(rejection: &Rejection, seen: &Seen) -> Response<B> {
        #[cfg(feature = "tonic")]
        if seen.asked.is_grpc {
            return super::tonic::response::<()>(rejection).map(|()| B::from(String::new()));
        }
        response(&RejectedRequest::new(rejection, seen), &seen.asked).map(B::from)
    }
}

#[cfg(feature = "tonic")]
#[allow(private_interfaces, reason = "it seals a public trait")]
impl<B: Default> sealed::ResponseFormat<B> for Grpc {
    fn answer(rejection: &Rejection, _: &Seen) -> Response<B> {
        super::tonic::response(rejection)
    }
}

impl Asked {
    pub(crate) fn read(&mut self, request: &Parts) {
        let accept = request.headers.get_all(ACCEPT).iter();
        self.json = prefers_json(accept.map(HeaderValue::as_bytes));
        #[cfg(feature = "tonic")]
        {
            self.is_grpc = super::tonic::is_grpc(request);
        }
    }
}

/// The answer to a refused request, without the fields that tell of limits.
fn response(refusal: &RejectedRequest<'_>, asked: &Asked) -> Response<String> {
    let (kind, text) = refusal.body(asked.body.as_ref());
    let mut response = Response::new(text);
    *response.status_mut() =
        StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let headers = response.headers_mut();
    if let Ok(kind) = HeaderValue::from_str(kind) {
        headers.insert(CONTENT_TYPE, kind);
    }
    // RFC 6585, section 4: a 429 must not be stored by a cache. Nor is any other refusal to be.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = refusal.retry_after() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The response that a rejection is. Where a request is handled behind a
/// [`RateLimitLayer`](super::RateLimitLayer), that is what the layer would answer, which adds the fields
/// that tell of limits; elsewhere, as in a spawned task, a plain text with the fields of its limit.
impl<B: From<String>> From<Rejection> for Response<B> {
    fn from(rejection: Rejection) -> Self {
        let answer = <Http as sealed::ResponseFormat<B>>::answer;
        if let Some(seen) = seen::refused(&rejection) {
            return answer(&rejection, &seen);
        }
        let mut seen = Seen::default();
        seen.note(&Err(rejection.clone()));
        let mut response = answer(&rejection, &seen);
        tell(response.headers_mut(), &seen, policy(&seen), false);
        response
    }
}

static POLICY: HeaderName = HeaderName::from_static(fields::POLICY);
static STATE: HeaderName = HeaderName::from_static(fields::STATE);

/// The value of `RateLimit-Policy` for the limits in `seen`; `None` where there are none.
pub(crate) fn policy(seen: &Seen) -> Option<HeaderValue> {
    value(fields::policy(seen))
}

/// Adds the fields that tell of the limits in `seen`, before those that are there. `policy` is the
/// value for these limits.
pub(crate) fn tell(
    headers: &mut HeaderMap,
    seen: &Seen,
    policy: Option<HeaderValue>,
    has_legacy_headers: bool,
) {
    if seen.len() == 0 {
        return;
    }
    let retry_after = number(headers, &RETRY_AFTER);
    add(headers, &POLICY, policy);
    add(headers, &STATE, value(fields::state(seen, retry_after)));
    let left = number(headers, &HeaderName::from_static(fields::OLDER[1]));
    if has_legacy_headers && let Some(values) = fields::older(seen, retry_after, left) {
        for (name, value) in fields::OLDER.into_iter().zip(values) {
            headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
        }
    }
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u32> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn value(text: String) -> Option<HeaderValue> {
    if text.is_empty() { None } else { HeaderValue::try_from(text).ok() }
}

fn add(headers: &mut HeaderMap, name: &HeaderName, ours: Option<HeaderValue>) {
    let Some(ours) = ours else { return };
    match headers.entry(name) {
        Entry::Vacant(entry) => {
            entry.insert(ours);
        }
        Entry::Occupied(mut entry) => {
            // Lines of a list are one list. A rejection that became a response elsewhere has told of itself.
            let theirs = entry.iter().map(HeaderValue::as_bytes);
            let theirs = theirs.filter(|line| !ours.as_bytes().ends_with(line));
            let lines: Vec<_> = iter::once(ours.as_bytes()).chain(theirs).collect();
            let all = HeaderValue::from_bytes(&lines.join(&b", "[..]));
            entry.insert(all.unwrap_or(ours));
        }
    }
}
