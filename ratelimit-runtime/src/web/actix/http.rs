//! What the middleware reads of requests and writes to the headers of responses, in the types of actix-web.

use std::net::IpAddr;
use std::sync::Arc;

use actix_web::dev::{Extensions, ResponseHead, ServiceRequest};
use actix_web::http::header::{
    ACCEPT, CACHE_CONTROL, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
};
use actix_web::http::{Method, StatusCode, Uri};
use actix_web::{HttpMessage, HttpRequest, web};

use crate::web::address::Clients;
use crate::web::address::sealed::RequestAccess;
use crate::web::headers::{HeaderField, ListPlace, ResponseHeaders, joined};
use crate::web::middleware::{MiddlewareRequest, RequestExtensions};
use crate::web::rejected::{CACHE_CONTROL_VALUE, RequestHead};

struct ActixHead {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl RequestHead for ActixHead {
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

impl MiddlewareRequest for ServiceRequest {
    type Headers = HeaderMap;
    type ResponseHead = ResponseHead;

    fn complete(head: &mut ResponseHead, retry_after: u64) {
        if head.status == StatusCode::TOO_MANY_REQUESTS {
            let no_store = HeaderValue::from_static(CACHE_CONTROL_VALUE);
            for (name, value) in [(RETRY_AFTER, retry_after.into()), (CACHE_CONTROL, no_store)] {
                if !head.headers.contains_key(&name) {
                    head.headers.insert(name, value);
                }
            }
        }
    }

    fn headers(head: &mut ResponseHead) -> &mut HeaderMap {
        &mut head.headers
    }

    fn head(&self) -> Arc<dyn RequestHead> {
        let (method, uri) = (self.method().clone(), self.uri().clone());
        Arc::new(ActixHead { method, uri, headers: self.headers().clone() })
    }

    fn accept(&self) -> impl Iterator<Item = &[u8]> {
        self.headers().get_all(ACCEPT).map(HeaderValue::as_bytes)
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
        self.get_all(field.as_str()).map(HeaderValue::as_bytes)
    }

    fn number(&self, field: HeaderField) -> Option<u64> {
        self.get(field.as_str())?.to_str().ok()?.parse().ok()
    }

    fn set_number(&mut self, field: HeaderField, number: u64) {
        self.insert(HeaderName::from_static(field.as_str()), HeaderValue::from(number));
    }

    fn join(&mut self, field: HeaderField, value: HeaderValue, place: ListPlace) {
        let name = HeaderName::from_static(field.as_str());
        let line = if self.contains_key(&name) {
            let lines = self.get_all(&name).map(HeaderValue::as_bytes);
            HeaderValue::from_bytes(&joined(value.as_bytes(), lines, place)).unwrap_or(value)
        } else {
            value
        };
        self.insert(name, line);
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
