//! For axum 0.8: a [`Rejection`] is a response, a client an extractor, a route a key.
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
//! /// Of each client 100 a minute, on each route.
//! const ALL: Limit = Limit::sliding("all", 100, Duration::from_secs(60));
//!
//! /// And of each client two greetings of one user.
//! #[rate_limit(period = "30s", threshold = 2, key = (client, id))]
//! async fn hi(client: Client, Path(id): Path<u64>) -> Result<String, Rejection> {
//!     Ok(format!("hi {id}"))
//! }
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let clients = Clients::behind_proxies(["10.0.0.0/8"])?;
//! let layer_clients = clients.clone();
//! let limits = RateLimitLayer::new().limit(ALL, move |request| (route(request), layer_clients.identify(request)));
//! let router = Router::new().route("/hi/{id}", get(hi)).layer(limits).with_state(clients);
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! // So that it is known who the peer is.
//! axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! `hi` uses the same limiter as the layer, and what it decides is in the fields of the response. By
//! itself, without the layer, a [`Rejection`] is a plain text with the fields of its limit: it does not
//! know what the client accepts.
//!
//! Add the layer with `Router::layer` or `Router::route_layer`, not around the router: routes are known
//! within. To say more than a text or a problem, return an error type of your own that is
//! `From<Rejection>` and `IntoResponse`; the fields are added to what it is.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};

use axum::extract::connect_info::MockConnectInfo;
use axum::extract::{ConnectInfo, FromRef, FromRequestParts, MatchedPath};
use axum_core::response::{IntoResponse, Response};
use http::Extensions;
use http::request::Parts;

use super::address::{Client, Clients};
use crate::key::{Key, KeyWriter};
use crate::rejection::Rejection;

/// 429 with `Retry-After`, 413 for a cost that can never be admitted, 503 when the store could not
/// decide. Behind a [`RateLimitLayer`] it is a text or a problem, as the client asks for; else a text
/// with the fields of the limit.
///
/// [`RateLimitLayer`]: super::RateLimitLayer
impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        self.into()
    }
}

/// The client, by the [`Clients`] that are the state, or a part of it by [`FromRef`].
impl<S> FromRequestParts<S> for Client
where
    S: Send + Sync,
    Clients: FromRef<S>,
{
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        Ok(Clients::from_ref(state).identify(parts))
    }
}

/// The route of a request: the template that matched, `/users/{id}`. Requests that match none are one.
#[derive(Clone, Debug)]
pub struct Route(Option<MatchedPath>);

/// The route of `request`, as a key: what a client puts into the path makes no other one.
#[must_use]
pub fn route(request: &Parts) -> Route {
    Route(request.extensions.get().cloned())
}

impl Key for Route {
    fn write(&self, out: &mut KeyWriter<'_>) {
        out.bytes(self.0.as_ref().map_or("", MatchedPath::as_str).as_bytes());
    }
}

/// Who holds the other end of the connection.
pub(super) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let real = extensions.get().map(|ConnectInfo::<SocketAddr>(address)| address.ip());
    let mock = || extensions.get().map(|MockConnectInfo::<SocketAddr>(address)| address.ip());
    real.or_else(mock)
}
