//! Support for axum 0.8: [`Rejection`] is a response, [`Client`] an extractor, [`route`] a key.
//!
//! ```
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use axum::Router;
//! use axum::extract::Path;
//! use axum::routing::get;
//! use ratelimit_runtime::web::axum::route;
//! use ratelimit_runtime::web::{Client, Clients, RateLimitLayer};
//! use ratelimit_runtime::{Limit, Rejection, rate_limit};
//!
//! /// 100 requests per minute for each client on each route.
//! const ALL: Limit = Limit::sliding("all", 100, Duration::from_secs(60));
//!
//! /// 2 greetings per 30 seconds for each client and user.
//! #[rate_limit(period = "30s", threshold = 2, key = (client, id))]
//! async fn hi(client: Client, Path(id): Path<u64>) -> Result<String, Rejection> {
//!     Ok(format!("hi {id}"))
//! }
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let limits = RateLimitLayer::new()
//!     .clients(Clients::behind_proxies(["10.0.0.0/8"])?)
//!     .limit(ALL, |request| (route(request), Client::of(request)));
//! let router = Router::new().route("/hi/{id}", get(hi)).layer(limits);
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! // Provides the address of the peer.
//! axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! `hi` uses the same limiter as the layer, and the response headers report the limits of both. Without the
//! layer, a [`Rejection`] becomes plain text with the headers of its limit, because the `Accept` header of the
//! request is not known.
//!
//! Add the layer with `Router::layer` or `Router::route_layer`, not around the router: the route is known
//! only inside the router. To send another response, return an error type of your own that implements
//! `From<Rejection>` and `IntoResponse`. The layer adds the headers that report limits, and to a 429 also `Retry-After`
//! and `Cache-Control`. To keep these two with another status or without the layer, change the response of
//! `rejection.into_response()`.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};

use axum::extract::connect_info::MockConnectInfo;
use axum::extract::{ConnectInfo, FromRequestParts, MatchedPath};
use axum_core::response::{IntoResponse, Response};
use http::request::Parts;
use http::{Extensions, StatusCode};

use super::slots::NO_LAYER_HOLDS;
use super::{Client, RequestSlots};
use crate::reply::Rejection;

/// Responds with 429 and `Retry-After` if the limit is reached, with 413 for a cost that can never be admitted, and
/// with 503 if the store could not decide, with 500 if the program has a mistake. Behind a [`RateLimitLayer`], the body
/// is plain text or problem details in JSON, as the client prefers. Elsewhere, the body is plain text, and the response
/// has the headers of the limit that rejected the request.
///
/// [`RateLimitLayer`]: super::RateLimitLayer
impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        self.into()
    }
}

/// Extracts the client, as [`Client::of`] identifies it.
impl<S: Sync> FromRequestParts<S> for Client {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(parts))
    }
}

/// Extracts the slots that the layers around the handler hold for the request.
impl<S: Sync> FromRequestParts<S> for RequestSlots {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let slots = parts.extensions.get().cloned();
        slots.ok_or((StatusCode::INTERNAL_SERVER_ERROR, NO_LAYER_HOLDS))
    }
}

/// Returns the route of `request` as a key: the template that matches the path, such as `/users/{id}`. The parameters
/// in the path are not part of it. All requests without a route share the empty key.
#[must_use]
pub fn route(request: &Parts) -> String {
    let template = request.extensions.get::<MatchedPath>();
    template.map_or_else(String::new, |template| template.as_str().to_owned())
}

/// Returns the address of the peer of the connection.
pub(super) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let real = extensions.get().map(|ConnectInfo::<SocketAddr>(address)| address.ip());
    let mock = || extensions.get().map(|MockConnectInfo::<SocketAddr>(address)| address.ip());
    real.or_else(mock)
}
