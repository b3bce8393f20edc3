//! Support for tonic 0.14: [`Rejection`] is a status with the standard error details.
//!
//! ```
//! use std::time::Duration;
//!
//! use ratelimit_runtime::web::{Client, Clients, RateLimitLayer};
//! use ratelimit_runtime::{Limit, rate_limit};
//! use tonic::{Request, Response, Status};
//!
//! struct Greeter;
//!
//! impl Greeter {
//!     /// A method of a service that tonic generates.
//!     #[rate_limit(period = "30s", threshold = 2, key = Client::of(&request))]
//!     async fn greet(&self, request: Request<String>) -> Result<Response<String>, Status> {
//!         Ok(Response::new(format!("hi {}", request.into_inner())))
//!     }
//! }
//!
//! /// 100 requests per minute for each client, all methods together.
//! const ALL: Limit = Limit::sliding("all", 100, Duration::from_secs(60));
//!
//! let layer = RateLimitLayer::grpc()
//!     .clients(Clients::behind_proxies(["10.0.0.0/8"])?)
//!     .limit(ALL, Client::of);
//! let server = tonic::transport::Server::builder().layer(layer);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | rejection | code | details |
//! | --- | --- | --- |
//! | the limit is reached | `RESOURCE_EXHAUSTED` | `RetryInfo` with the wait, `QuotaFailure` |
//! | too many calls are in flight | `RESOURCE_EXHAUSTED` | `RetryInfo` with a second, `QuotaFailure` |
//! | the cost exceeds the capacity | `RESOURCE_EXHAUSTED` | `QuotaFailure` |
//! | the store could not decide | `UNAVAILABLE` | |
//! | the program has a mistake | `INTERNAL` | |
//!
//! The details are the `google.rpc` messages, in `grpc-status-details-bin`. In `QuotaFailure`, the subject and the
//! quota ID are the name of the limit, and the quota value is its threshold (for a cost that exceeds the capacity, the
//! capacity). The status of a [hidden](crate::Limit::hidden) limit has no `QuotaFailure`. With the layer, the metadata
//! of each response has `ratelimit-policy` and `ratelimit`, with the same content as over HTTP.

use std::net::{IpAddr, SocketAddr};

use http::header::CACHE_CONTROL;
use http::{Extensions, Response};
use tonic::metadata::MetadataMap;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Request, Status};
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

use super::headers::NO_STORE;
use super::rejected::{TextResponse, returned};
use crate::reply::Rejection;
use crate::report::request_log;

/// Converts a rejection to the status in the table of [this module](self).
impl From<Rejection> for Status {
    fn from(rejection: Rejection) -> Self {
        Self::from(&rejection)
    }
}

returned!([] Status);

impl From<&Rejection> for Status {
    fn from(rejection: &Rejection) -> Self {
        let text = rejection.to_string();
        let quota_value = match rejection {
            Rejection::Limited { quota, .. }
            | Rejection::Blocked { quota, .. }
            | Rejection::Busy { quota, .. } => quota.threshold(),
            Rejection::CostExceedsCapacity { capacity, .. } => *capacity,
            Rejection::Unavailable { .. } => return Self::new(Code::Unavailable, text),
            Rejection::Mistake { .. } => return Self::new(Code::Internal, text),
        };
        let mut details = ErrorDetails::new();
        if !rejection.is_hidden() {
            let name = rejection.name();
            details.set_quota_failure(vec![QuotaViolation {
                quota_id: name.to_owned(),
                quota_value: quota_value.cast_signed(),
                ..QuotaViolation::new(name, &*text)
            }]);
        }
        if let Some(wait) = request_log::wait(rejection) {
            details.set_retry_info(Some(wait));
        }
        Self::with_error_details(Code::ResourceExhausted, text, details)
    }
}

/// Builds the response of a request that is not handled, without the headers that report limits.
pub(super) fn response(status: Status) -> Response<String> {
    let mut response = status.into_http();
    response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    response
}

/// Builds the response to a request without a key.
pub(super) fn refuse(response: TextResponse) -> Response<String> {
    let code = match response.status.unwrap_or(400) {
        400 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        429 => Code::ResourceExhausted,
        503 => Code::Unavailable,
        _ => Code::Unknown,
    };
    self::response(Status::new(code, response.body))
}

/// Returns the address of the peer of the connection.
pub(super) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let plain = extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
    let plain = plain.or_else(|| extensions.get::<SocketAddr>().copied());
    // The extension of a TLS connection is a type that exists only with a TLS feature of tonic.
    let any = || Request::from_parts(MetadataMap::new(), extensions.clone(), ()).remote_addr();
    plain.or_else(any).map(|address| address.ip())
}
