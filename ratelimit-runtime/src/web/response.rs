//! Responses of the `http` crate: of the tower layer, and of a [`Rejection`] that axum or another server
//! turns into a response.

use http::header::{ACCEPT, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::accept::prefers_json;
use super::middleware::{self, ServerRequest};
use super::rejected::{self, returned, status_code};
use crate::reply::Rejection;
use crate::report::request_log;

/// Responds to rejected requests over HTTP: with plain text, or with problem details in JSON (RFC 9457) if
/// the client prefers JSON. With feature `tonic`, a gRPC request gets the response of [`Grpc`].
#[derive(Clone, Copy, Debug)]
pub struct Http;

/// Responds to rejected requests over gRPC, with a status.
#[cfg(feature = "tonic")]
#[derive(Clone, Copy, Debug)]
pub struct Grpc;

/// The format in which a layer responds to rejected requests, with bodies of type `B`: [`Http`] or `Grpc`. This
/// trait is sealed.
pub trait ResponseFormat<B>: BuildResponse<B> {}

impl<F: BuildResponse<B>, B> ResponseFormat<B> for F {}

#[allow(unreachable_pub, reason = "it seals a public trait")]
pub trait BuildResponse<B> {
    /// Returns whether the response to `request` is one of gRPC.
    fn is_grpc(request: &Parts) -> bool;

    /// Returns the body with this text. Over gRPC, the text is empty: the status is in the headers.
    fn body(text: String) -> B;
}

impl<B: From<String>> BuildResponse<B> for Http {
    /// Of a gRPC or gRPC-Web request, by its method and content type.
    fn is_grpc(request: &Parts) -> bool {
        if !cfg!(feature = "tonic") || request.method != Method::POST {
            return false;
        }
        let kind = request.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
        rest.is_some_and(|rest| matches!(rest, [] | [b'+' | b';', ..]) || rest.starts_with(b"-web"))
    }

    fn body(text: String) -> B {
        text.into()
    }
}

#[cfg(feature = "tonic")]
impl<B: Default> BuildResponse<B> for Grpc {
    fn is_grpc(_: &Parts) -> bool {
        true
    }

    fn body(_: String) -> B {
        B::default()
    }
}

/// Converts a rejection to its response. In a handler behind a [`RateLimitLayer`](super::RateLimitLayer), the response
/// has the format that the client prefers, and the layer adds the headers that report limits. Elsewhere, for instance
/// in a spawned task, the body is plain text, and the response has the headers of the limit that rejected the call.
impl<B: From<String>> From<Rejection> for Response<B> {
    fn from(rejection: Rejection) -> Self {
        middleware::respond(&rejection).map(B::from)
    }
}

/// Converts a rejection to its status: 429, 413 or 503. In a handler behind a
/// [`RateLimitLayer`](super::RateLimitLayer), the layer adds the headers of the rejection, with `Retry-After` and
/// `Cache-Control`. Elsewhere, the response has none of them.
impl From<Rejection> for StatusCode {
    fn from(rejection: Rejection) -> Self {
        // For the layer that adds the headers.
        request_log::with_current(|log| log.reject(&rejection));
        status_code(rejected::status(&rejection))
    }
}

/// Converts a rejection to its status, as [`StatusCode`] does, and its text.
impl From<Rejection> for (StatusCode, String) {
    fn from(rejection: Rejection) -> Self {
        let text = rejection.to_string();
        (rejection.into(), text)
    }
}

// An annotated function can return them.
returned!([B: From<String>] Response<B>, [] StatusCode, [] (StatusCode, String));

impl ServerRequest for Parts {
    fn head(&self) -> Request<()> {
        let mut head = Request::from_parts(self.clone(), ());
        head.extensions_mut().clear();
        head
    }

    fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.extensions.insert(value);
    }

    // Its own, because a name that is a constant is not parsed (`benches/all -- layer`).
    fn prefers_json(&self) -> bool {
        prefers_json(self.headers.get_all(ACCEPT).iter().map(HeaderValue::as_bytes))
    }
}
