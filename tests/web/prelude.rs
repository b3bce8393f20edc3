//! The names that the tests of most frameworks use.

pub(crate) use std::convert::Infallible;
pub(crate) use std::net::SocketAddr;
pub(crate) use std::panic::AssertUnwindSafe;
pub(crate) use std::sync::{Arc, Mutex};
pub(crate) use std::time::Duration;

pub(crate) use actix_web::test::{TestRequest, init_service};
pub(crate) use actix_web::{App, web};
pub(crate) use axum::Router;
pub(crate) use axum::extract::Path;
pub(crate) use axum::response::IntoResponse;
pub(crate) use axum::routing::get as route_get;
pub(crate) use bytes::Bytes;
pub(crate) use futures::FutureExt;
pub(crate) use futures::future::poll_immediate;
pub(crate) use http::request::Parts;
pub(crate) use http::{Request, Response, StatusCode};
pub(crate) use ratelimit_runtime::web::actix::RateLimits;
pub(crate) use ratelimit_runtime::web::{
    Client, Clients, RateLimitLayer, RequestLimits, TextResponse,
};
pub(crate) use ratelimit_runtime::{
    Decision, Limit, OnError, RateLimiter, Rejection, Rule, VirtualClock, rate_limit,
};
pub(crate) use support::http::{get, post};
pub(crate) use support::limits::{MINUTE, SECOND, ruled};
pub(crate) use support::poll_once;
pub(crate) use support::server::Server;
pub(crate) use tower::{ServiceExt, service_fn};
pub(crate) use tower_layer::Layer;

pub(crate) use crate::{
    ALL, Running, items, left, limiters, listen, reported, serve, serve_actix, timed, without_redis,
};
