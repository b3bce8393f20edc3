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
mod address;
mod headers;
mod held_body;
mod hops;
mod host;
mod layer;
mod limit_sources;
mod middleware;
mod nat64;
mod outbound;
mod rejected;
mod request_limits;
mod response;
mod retry_after;
#[cfg(any(feature = "axum", feature = "actix"))]
mod route;
mod service;
mod settings;
mod setup;
mod slots;
mod text_response;
mod unread;

#[cfg(feature = "actix")]
#[cfg_attr(docsrs, doc(cfg(feature = "actix")))]
pub mod actix;
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub mod axum;
#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
pub mod tonic;

pub use self::address::{Clients, IncomingRequest, ParseNetworkError};
pub use self::held_body::HeldBody;
pub use self::hops::ProxyHeader;
pub use self::host::host_key;
pub use self::layer::RateLimitLayer;
pub use self::outbound::{OutboundLayer, OutboundService};
pub use self::rejected::RejectedRequest;
pub use self::request_limits::RequestLimits;
#[cfg(feature = "tonic")]
pub use self::response::Grpc;
pub use self::response::{Http, ResponseFormat};
pub use self::retry_after::retry_after;
#[cfg(any(feature = "axum", feature = "actix"))]
pub use self::route::Route;
pub use self::service::{RateLimitService, ResponseFuture};
pub use self::slots::RequestSlots;
pub use self::text_response::TextResponse;
pub use crate::key::Client;
