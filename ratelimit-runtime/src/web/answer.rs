//! Refusals and fields as responses of the `http` crate: what the layer sends, and what [`Rejection`]
//! is where a framework turns it into a response.

use std::fmt;

use http::header::Entry;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use super::fields;
use super::refusal::{MakeBody, Refusal};
use super::seen::Seen;
use crate::rejection::Rejection;

/// Answers refused requests in HTTP: with a text, or with a problem in JSON for who asks for it. With
/// feature `tonic`, a gRPC request is answered as by [`Grpc`].
#[derive(Clone, Copy, Debug)]
pub struct Http;

/// Answers refused requests in gRPC, with a status.
#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
#[derive(Clone, Copy, Debug)]
pub struct Grpc;

/// How a layer answers refused requests, in responses with the body `B`: [`Http`] or `Grpc`. It is
/// sealed.
pub trait Answers<B>: sealed::Answers<B> {}

impl<A: sealed::Answers<B>, B> Answers<B> for A {}

mod sealed {
    use super::{Asked, MakeBody, Rejection, Response};

    #[allow(unreachable_pub, private_interfaces, reason = "it seals a public trait")]
    pub trait Answers<B> {
        fn answer(rejection: &Rejection, asked: &Asked, body: Option<&MakeBody>) -> Response<B>;
    }
}

#[allow(private_interfaces, reason = "it seals a public trait")]
impl<B: From<String>> sealed::Answers<B> for Http {
    fn answer(rejection: &Rejection, asked: &Asked, body: Option<&MakeBody>) -> Response<B> {
        #[cfg(feature = "tonic")]
        if asked.is_grpc {
            return super::tonic::response::<()>(rejection).map(|()| B::from(String::new()));
        }
        let accept = asked.accept.as_ref().map(HeaderValue::as_bytes);
        response(&Refusal::new(rejection, accept), body).map(B::from)
    }
}

#[cfg(feature = "tonic")]
#[allow(private_interfaces, reason = "it seals a public trait")]
impl<B: Default> sealed::Answers<B> for Grpc {
    fn answer(rejection: &Rejection, _: &Asked, _: Option<&MakeBody>) -> Response<B> {
        super::tonic::response(rejection)
    }
}

/// What is remembered of a request, to answer it.
pub(crate) struct Asked {
    accept: Option<HeaderValue>,
    #[cfg(feature = "tonic")]
    is_grpc: bool,
}

impl Asked {
    pub(crate) fn new(headers: &HeaderMap) -> Self {
        let mut lines = headers.get_all(ACCEPT).iter();
        // Most programs accept anything, which asks for nothing.
        let mut accept = lines.next().filter(|accept| *accept != "*/*").cloned();
        if lines.next().is_some() {
            // Lines of a list are one list.
            let lines = headers.get_all(ACCEPT).iter().map(HeaderValue::as_bytes);
            accept = HeaderValue::from_bytes(&lines.collect::<Vec<_>>().join(&b',')).ok();
        }
        Self {
            accept,
            #[cfg(feature = "tonic")]
            is_grpc: headers
                .get(CONTENT_TYPE)
                .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")),
        }
    }
}

/// Marks the response that a [`Rejection`] became where nobody knew the request: the layer, which does,
/// may answer better.
#[derive(Clone, Debug)]
pub(crate) struct Unasked(pub(crate) Rejection);

/// The answer to a refused request, without the fields that tell of limits.
fn response(refusal: &Refusal<'_>, body: Option<&MakeBody>) -> Response<String> {
    let (kind, text) = refusal.body(body);
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

/// The response that a rejection is by itself: in plain text, with the fields of its limit. A
/// [`RateLimitLayer`](super::RateLimitLayer) makes it a problem in JSON for clients that ask for that.
impl<B: From<String>> From<Rejection> for Response<B> {
    fn from(rejection: Rejection) -> Self {
        let mut response = response(&Refusal::new(&rejection, None), None);
        let mut seen = Seen::default();
        seen.note(&Err(rejection.clone()));
        tell(response.headers_mut(), &seen, policy(&seen), false);
        response.extensions_mut().insert(Unasked(rejection));
        response.map(B::from)
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
    has_older_fields: bool,
) {
    if seen.len() == 0 {
        return;
    }
    add(headers, &POLICY, policy);
    add(headers, &STATE, value(fields::state(seen)));
    if let Some(values) = fields::older(seen).filter(|_| has_older_fields) {
        for (name, value) in fields::OLDER.into_iter().zip(values) {
            headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
        }
    }
}

/// Takes away what [`tell`] has added.
pub(crate) fn untell(headers: &mut HeaderMap) {
    headers.remove(&POLICY);
    headers.remove(&STATE);
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
            let both = [ours.as_bytes(), b", ", entry.get().as_bytes()].concat();
            entry.insert(HeaderValue::from_bytes(&both).unwrap_or(ours));
        }
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}
