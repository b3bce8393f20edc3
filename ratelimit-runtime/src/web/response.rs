//! Responses of the `http` crate: of the tower layer, and of a [`Rejection`] that axum or another server
//! turns into a response. Twin of `actix::http` and of the responses in `actix`.

use std::sync::Arc;

use http::header::Entry;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri};

use super::headers::{HeaderField, ListPlace, ResponseHeaders, joined};
use super::middleware::{self, MiddlewareRequest, RequestExtensions};
use super::rejected::{self, CACHE_CONTROL_VALUE, RejectedRequest, RejectionResponse, RequestHead};
use super::text_response::{PLAIN_TEXT, TextResponse};
use crate::reply::{FromRejection, Rejection};

/// Responds to rejected requests over HTTP: with plain text, or with problem details in JSON (RFC 9457) if
/// the client prefers JSON. With feature `tonic`, a gRPC request gets the response of [`Grpc`].
#[derive(Clone, Copy, Debug)]
pub struct Http;

/// Responds to rejected requests over gRPC, with a status.
#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
#[derive(Clone, Copy, Debug)]
pub struct Grpc;

/// The format in which a layer responds to rejected requests, with bodies of type `B`: [`Http`] or `Grpc`. This
/// trait is sealed.
pub trait ResponseFormat<B>: sealed::BuildResponse<B> {}

impl<F: sealed::BuildResponse<B>, B> ResponseFormat<B> for F {}

mod sealed {
    use super::{RejectedRequest, Response, TextResponse};

    #[allow(unreachable_pub, reason = "it seals a public trait")]
    pub trait BuildResponse<B> {
        /// Builds the response, without the headers that report limits.
        fn build(rejected: &RejectedRequest<'_>) -> Response<B>;

        /// Builds the response to a request without a key.
        fn refuse(response: TextResponse, is_grpc: bool) -> Response<B>;
    }
}

impl<B: From<String>> sealed::BuildResponse<B> for Http {
    fn build(rejected: &RejectedRequest<'_>) -> Response<B> {
        #[cfg(feature = "tonic")]
        if rejected.is_grpc() {
            let response = super::tonic::response::<()>(rejected.rejection());
            return response.map(|()| B::from(String::new()));
        }
        over_http(rejected.response())
    }

    #[cfg_attr(not(feature = "tonic"), allow(unused_variables, reason = "gRPC is of tonic"))]
    fn refuse(response: TextResponse, is_grpc: bool) -> Response<B> {
        #[cfg(feature = "tonic")]
        if is_grpc {
            return super::tonic::refuse::<()>(response).map(|()| B::from(String::new()));
        }
        over_http(response.into())
    }
}

fn over_http<B: From<String>>(plain: RejectionResponse) -> Response<B> {
    let mut response = Response::new(B::from(plain.body));
    *response.status_mut() =
        StatusCode::from_u16(plain.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let headers = response.headers_mut();
    let content_type = HeaderValue::from_str(plain.content_type);
    let content_type = content_type.unwrap_or(HeaderValue::from_static(PLAIN_TEXT));
    headers.insert(CONTENT_TYPE, content_type);
    for (name, value) in plain.headers {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::try_from(value))
        {
            headers.append(name, value);
        }
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(CACHE_CONTROL_VALUE));
    if let Some(seconds) = plain.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

#[cfg(feature = "tonic")]
impl<B: Default> sealed::BuildResponse<B> for Grpc {
    fn build(rejected: &RejectedRequest<'_>) -> Response<B> {
        super::tonic::response(rejected.rejection())
    }

    fn refuse(response: TextResponse, _: bool) -> Response<B> {
        super::tonic::refuse(response)
    }
}

/// Converts a rejection to its response. In a handler behind a [`RateLimitLayer`](super::RateLimitLayer), the response
/// has the format that the client prefers, and the layer adds the headers that report limits. Elsewhere, for instance
/// in a spawned task, the body is plain text, and the response has the headers of the limit that rejected the call.
impl<B: From<String>> From<Rejection> for Response<B> {
    fn from(rejection: Rejection) -> Self {
        let build = <Http as sealed::BuildResponse<B>>::build;
        middleware::respond(&rejection, build, Response::headers_mut)
    }
}

struct HttpHead {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl RequestHead for HttpHead {
    fn method(&self) -> &str {
        self.method.as_str()
    }

    fn path(&self) -> &str {
        self.uri.path()
    }

    fn query(&self) -> Option<&str> {
        self.uri.query()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// An annotated function can return a response: the rejected call returns the response of its rejection.
#[diagnostic::do_not_recommend]
impl<B: From<String>> FromRejection for Response<B> {
    fn from_rejection(rejection: Rejection) -> Self {
        rejection.into()
    }
}

/// Converts a rejection to its status: 429, 413 or 503. In a handler behind a
/// [`RateLimitLayer`](super::RateLimitLayer), the layer adds the headers of the rejection, with `Retry-After` and
/// `Cache-Control`. Elsewhere, the response has none of them.
impl From<Rejection> for StatusCode {
    fn from(rejection: Rejection) -> Self {
        middleware::note(&rejection);
        Self::from_u16(rejected::status(&rejection)).unwrap_or(Self::SERVICE_UNAVAILABLE)
    }
}

/// Converts a rejection to its status, as [`StatusCode`] does, and its text.
impl From<Rejection> for (StatusCode, String) {
    fn from(rejection: Rejection) -> Self {
        let text = rejection.to_string();
        (rejection.into(), text)
    }
}

/// An annotated function can return a status code.
#[diagnostic::do_not_recommend]
impl FromRejection for StatusCode {
    fn from_rejection(rejection: Rejection) -> Self {
        rejection.into()
    }
}

/// An annotated function can return a status code and a text.
#[diagnostic::do_not_recommend]
impl FromRejection for (StatusCode, String) {
    fn from_rejection(rejection: Rejection) -> Self {
        rejection.into()
    }
}

impl MiddlewareRequest for Parts {
    type Headers = HeaderMap;
    type ResponseHead = http::response::Parts;

    fn complete(head: &mut Self::ResponseHead, retry_after: u64) {
        if head.status == StatusCode::TOO_MANY_REQUESTS {
            head.headers.entry(RETRY_AFTER).or_insert_with(|| HeaderValue::from(retry_after));
            let no_store = HeaderValue::from_static(CACHE_CONTROL_VALUE);
            head.headers.entry(CACHE_CONTROL).or_insert(no_store);
        }
    }

    fn headers(head: &mut Self::ResponseHead) -> &mut HeaderMap {
        &mut head.headers
    }

    fn head(&self) -> Arc<dyn RequestHead> {
        let (method, uri) = (self.method.clone(), self.uri.clone());
        Arc::new(HttpHead { method, uri, headers: self.headers.clone() })
    }

    fn accept(&self) -> impl Iterator<Item = &[u8]> {
        self.headers.get_all(ACCEPT).iter().map(HeaderValue::as_bytes)
    }

    #[cfg(feature = "tonic")]
    fn is_grpc(&self) -> bool {
        super::tonic::is_grpc(self)
    }
}

impl RequestExtensions for Extensions {
    fn put<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.insert(value);
    }

    fn find<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.get()
    }
}

impl ResponseHeaders for HeaderMap {
    type Value = HeaderValue;

    fn value(text: &str) -> Option<HeaderValue> {
        HeaderValue::from_str(text).ok()
    }

    fn lines(&self, field: HeaderField) -> impl Iterator<Item = &[u8]> {
        self.get_all(name(field)).iter().map(HeaderValue::as_bytes)
    }

    fn number(&self, field: HeaderField) -> Option<u64> {
        self.get(name(field))?.to_str().ok()?.parse().ok()
    }

    fn set_number(&mut self, field: HeaderField, number: u64) {
        self.insert(name(field), HeaderValue::from(number));
    }

    fn join(&mut self, field: HeaderField, value: HeaderValue, place: ListPlace) {
        match self.entry(name(field)) {
            Entry::Vacant(entry) => {
                entry.insert(value);
            }
            Entry::Occupied(mut entry) => {
                let lines = entry.iter().map(HeaderValue::as_bytes);
                let line = HeaderValue::from_bytes(&joined(value.as_bytes(), lines, place));
                entry.insert(line.unwrap_or(value));
            }
        }
    }
}

/// The name of `field`. Statics, so that no call checks and copies the name (`benches/all -- layer`).
fn name(field: HeaderField) -> &'static HeaderName {
    macro_rules! names {
        ($($field:ident),*) => {
            match field {
                $(HeaderField::$field => {
                    static NAME: HeaderName = HeaderName::from_static(HeaderField::$field.as_str());
                    &NAME
                })*
            }
        };
    }
    names!(
        RetryAfter,
        Policy,
        State,
        LegacyLimit,
        LegacyRemaining,
        LegacyReset,
        CacheControl,
        CdnCacheControl
    )
}
