//! Web frameworks: middleware with limits, responses of rejected requests, clients as keys, and response
//! headers that report limits.
//!
//! | framework | feature | return type of annotated handlers | middleware |
//! | --- | --- | --- | --- |
//! | axum 0.8 | `axum` | `Result<_, Rejection>`, `impl IntoResponse`: [`axum`] | [`RateLimitLayer`] |
//! | actix-web 4 | `actix` | `Result<_, Rejection>`, `HttpResponse` and others: [`actix`] | [`actix::RateLimits`] |
//! | tonic 0.14 | `tonic` | `Result<_, Status>`: [`tonic`] | [`RateLimitLayer::grpc`] |
//! | hyper, other tower services | `tower` | `Result<_, http::Response<_>>` | [`RateLimitLayer`] |
//! | clients: reqwest, hyper-util | `tower` | | [`RateLimitLayer::outbound`] |
//!
//! In each framework, [`Clients`] identifies the [`Client`] of a request. The client is a key, for the middleware and
//! for annotated handlers.
//!
//! # Requests in flight
//!
//! A layer of a server also takes limits of calls [in flight](crate::Limit::in_flight): a request holds its slot until
//! the body of its response has ended. A handler whose work goes on after its response takes the slot from the request:
//! [`RequestSlots`].
//!
//! # The order of layers
//!
//! - Put a layer that responds to preflight requests, such as `CorsLayer`, outside of the layer with the limits.
//!   Preflight requests are then not counted, and scripts in browsers can read the responses of rejected
//!   requests. Expose the headers `RateLimit`, `RateLimit-Policy` and `Retry-After` to these scripts.
//! - A compression layer can be inside or outside: the headers that report limits are the same.
//!
//! With `Router::layer` of axum and `App::wrap` of actix-web, the last layer is the outermost; with `ServiceBuilder`
//! and tonic's `Server::layer`, the first is.

mod accept;
#[cfg(feature = "actix")]
pub mod actix;
mod address;
#[cfg(feature = "axum")]
pub mod axum;
mod config;
mod headers;
mod hops;
mod layer;
mod middleware;
mod obey;
mod outbound;
mod rejected;
mod response;
mod service_limits;
mod settings;
mod setup;
mod slots;
#[cfg(feature = "tonic")]
pub mod tonic;
mod unread;

pub use self::address::{Clients, IncomingRequest, ParseNetworkError};
pub use self::config::RequestLimits;
pub use self::hops::ProxyHeader;
pub use self::layer::{RateLimitLayer, RateLimitService, ResponseFuture};
pub use self::outbound::{Obeyed, OutboundLayer, OutboundService, ReadResponse, Unread, host_key};
pub use self::rejected::{RejectedRequest, TextResponse};
#[cfg(feature = "tonic")]
pub use self::response::Grpc;
pub use self::response::{Http, ResponseFormat};
pub use self::service_limits::{RemainingRequests, ServiceLimits, retry_after};
pub use self::slots::{HeldBody, RequestSlots};
pub use crate::key::Client;
