//! tonic: a layer for all methods of a gRPC server, and an annotated method. A rejection is a status with
//! `RetryInfo` and `QuotaFailure`. The service is written by hand, as `tonic-build` would generate it, so that
//! the example needs no `protoc`.
//!
//! ```sh
//! PORT=50051 cargo run --example tonic
//! ```
//!
//! In another terminal:
//!
//! ```sh
//! cat >greeter.proto <<PROTO
//! syntax = "proto3";
//! package hello;
//! import "google/protobuf/wrappers.proto";
//! service Greeter { rpc Greet(google.protobuf.StringValue) returns (google.protobuf.StringValue); }
//! PROTO
//! # One name is greeted twice in 30 seconds. The third call gets RESOURCE_EXHAUSTED.
//! for i in 1 2 3; do
//!   grpcurl -v -plaintext -proto greeter.proto -d '"ann"' 127.0.0.1:50051 hello.Greeter/Greet
//! done
//! ```
//!
//! If `RATELIMIT_REDIS_URL` is set, all servers that use that Redis share the counts.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Cx, Poll};
use std::time::Duration;

use anyhow::Context;
use ratelimit_runtime::web::{Client, Clients, RateLimitLayer};
use ratelimit_runtime::{Limit, rate_limit};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Counted for each client, over all methods together.
const ALL: Limit = Limit::token_bucket("all", 5, Duration::from_secs(60));

struct Greeter;

impl Greeter {
    /// Counts for each name. The client chooses the name, so the layer limits the client.
    #[rate_limit(period = "30s", threshold = 2, key = request.get_ref())]
    async fn greet(&self, request: Request<String>) -> Result<Response<String>, Status> {
        Ok(Response::new(format!("hi {}", request.into_inner())))
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // At DEBUG, each rejection is an event with the limit, a hash of the key, and the wait.
    let shown =
        Targets::new().with_default(Level::INFO).with_target("ratelimit_runtime", Level::DEBUG);
    tracing_subscriber::registry().with(tracing_subscriber::fmt::layer()).with(shown).init();
    // Reads RATELIMIT_REDIS_URL now: a wrong URL ends the program, and does not fail the first request.
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;

    // Behind proxies, use `Clients::behind_proxies([..])`.
    let limits = RateLimitLayer::grpc().clients(Clients::direct()).limit(ALL, Client::of);
    let address = address()?;
    let listener = tokio::net::TcpListener::bind(&address)
        .await
        .with_context(|| format!("cannot listen on {}:{}", address.0, address.1))?;
    println!("listening on http://{}", listener.local_addr()?);
    let server = Server::builder().layer(limits).add_service(GreeterServer(Arc::new(Greeter)));
    Ok(server.serve_with_incoming(TcpIncoming::from(listener)).await?)
}

/// HOST and PORT. The default is a free port on 127.0.0.1.
fn address() -> anyhow::Result<(String, u16)> {
    let host = std::env::var("HOST").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let port = std::env::var("PORT").unwrap_or_else(|_| "0".to_owned());
    let number = port.parse().with_context(|| format!("PORT is `{port}`, not a port"))?;
    Ok((host, number))
}

/// The rest is what `tonic-build` would generate for the service.
#[derive(Clone)]
struct GreeterServer(Arc<Greeter>);

struct Greet(Arc<Greeter>);

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl NamedService for GreeterServer {
    const NAME: &'static str = "hello.Greeter";
}

impl Service<http::Request<Body>> for GreeterServer {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Later<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Cx<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = Greet(Arc::clone(&self.0));
        if request.uri().path() != "/hello.Greeter/Greet" {
            return Box::pin(async { Ok(Status::unimplemented("").into_http()) });
        }
        let codec = ProstCodec::<String, String>::default();
        Box::pin(async move { Ok(Grpc::new(codec).unary(method, request).await) })
    }
}

impl UnaryService<String> for Greet {
    type Response = String;
    type Future = Later<Result<Response<String>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let greeter = Arc::clone(&self.0);
        Box::pin(async move { greeter.greet(request).await })
    }
}
