//! Converts between the types of actix-web and those of the `http` crate, which all other frameworks have.

use std::net::IpAddr;

use actix_web::dev::{ResponseHead, ServiceRequest};
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};
use http::response::Parts;

use crate::web::address::Clients;
use crate::web::address::sealed::RequestAccess;
use crate::web::headers::WRITTEN;
use crate::web::middleware::ServerRequest;
use crate::web::rejected::RequestHead;

/// Returns the head of a response.
pub(super) fn head(head: &ResponseHead) -> Parts {
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = http::StatusCode::from_u16(head.status.as_u16()).unwrap_or_default();
    parts.headers = headers(&head.headers);
    parts
}

/// Copies the headers that a middleware has written.
pub(super) fn write(from: &http::HeaderMap, to: &mut HeaderMap) {
    for name in WRITTEN {
        let values = || from.get_all(name).into_iter().map(http::HeaderValue::as_bytes);
        let name = HeaderName::from_static(name.as_str());
        if values().eq(to.get_all(&name).map(HeaderValue::as_bytes)) {
            continue;
        }
        to.remove(&name);
        for value in values().filter_map(|value| HeaderValue::from_bytes(value).ok()) {
            to.append(name.clone(), value);
        }
    }
}

/// Converts the response of a rejected request.
pub(super) fn response(response: http::Response<String>) -> HttpResponse {
    let (head, body) = response.into_parts();
    let mut response = HttpResponse::build(status_code(head.status.as_u16()));
    for (name, value) in &head.headers {
        response.append_header((name.as_str(), value.as_bytes()));
    }
    response.body(body)
}

pub(super) fn status_code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
}

fn headers(headers: &HeaderMap) -> http::HeaderMap {
    let convert = |(name, value): (&HeaderName, &HeaderValue)| {
        let name = http::HeaderName::from_bytes(name.as_str().as_bytes()).ok()?;
        Some((name, http::HeaderValue::from_bytes(value.as_bytes()).ok()?))
    };
    headers.iter().filter_map(convert).collect()
}

impl ServerRequest for ServiceRequest {
    fn head(&self) -> RequestHead {
        RequestHead {
            method: self.method().as_str().parse().unwrap_or_default(),
            uri: self.uri().to_string().parse().unwrap_or_default(),
            headers: headers(self.headers()),
        }
    }
}

impl RequestAccess for HttpRequest {
    fn peer(&self) -> Option<IpAddr> {
        self.peer_addr().map(|address| address.ip())
    }

    fn lines(&self, name: &str) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.headers().get_all(name).map(HeaderValue::as_bytes)
    }

    fn with_clients<T>(&self, work: impl FnOnce(Option<&Clients>) -> T) -> T {
        let extensions = self.extensions();
        let of_application = || self.app_data::<web::Data<Clients>>().map(|clients| &***clients);
        work(extensions.get().or_else(of_application))
    }
}

impl RequestAccess for ServiceRequest {
    fn peer(&self) -> Option<IpAddr> {
        self.request().peer()
    }

    fn lines(&self, name: &str) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.request().lines(name)
    }

    fn with_clients<T>(&self, work: impl FnOnce(Option<&Clients>) -> T) -> T {
        self.request().with_clients(work)
    }
}
