//! Web frameworks: refusals as their responses, limits as their middleware, clients as keys, and the
//! fields that tell clients of their limits.
//!
//! | framework | feature | refusals of annotated handlers | middleware |
//! | --- | --- | --- | --- |
//! | axum 0.8 | `axum` | `Result<_, Rejection>`, `impl IntoResponse`: [`axum`] | [`RateLimitLayer`] |
//! | actix-web 4 | `actix` | `Result<_, Rejection>`, `actix_web::Result`: [`actix`] | [`actix::RateLimits`] |
//! | tonic 0.14 | `tonic` | `Result<_, Status>`: [`tonic`] | [`RateLimitLayer::grpc`] |
//! | hyper, other tower services | `tower` | `Result<_, http::Response<_>>` | [`RateLimitLayer`] |
//!
//! In all of them, [`Clients`] tells clients apart, for the middleware and as the key of annotated
//! handlers.
//!
//! # Among other layers
//!
//! Put what answers preflight requests, such as `CorsLayer`, outside of the limits, so that these requests
//! are not counted and refusals can be read by scripts; and expose `RateLimit`, `RateLimit-Policy` and
//! `Retry-After` to them. `Router::layer` puts the layer that comes last outside; `ServiceBuilder` the one
//! that comes first. Compression may stand on either side: the fields are the same.

mod accept;
mod address;
mod headers;
mod hops;
#[cfg(feature = "tower")]
mod layer;
mod middleware;
mod rejected;
#[cfg(feature = "tower")]
mod response;

#[cfg(feature = "actix")]
#[cfg_attr(docsrs, doc(cfg(feature = "actix")))]
pub mod actix;
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub mod axum;
#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
pub mod tonic;

pub use self::address::{Client, Clients, IncomingRequest, InvalidNetwork};
#[cfg(feature = "tower")]
pub use self::layer::{RateLimitLayer, RateLimitService, ResponseFuture};
pub use self::rejected::RejectedRequest;
#[cfg(feature = "tonic")]
pub use self::response::Grpc;
#[cfg(feature = "tower")]
pub use self::response::{Http, ResponseFormat};
