//! tonic: annotated methods and the layer, as a tonic client sees them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::PathAndQuery;
use ratelimit_runtime::web::{Client, Clients, RateLimitLayer};
use ratelimit_runtime::{Limit, OnError, RateLimiter, rate_limit};
use tonic::body::Body;
use tonic::codegen::{Service, StdError};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;

use crate::{MINUTE, items, timed};

const ALL: Limit = Limit::fixed("all", 4, MINUTE);

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

struct Greeter {
    limiter: RateLimiter,
}

impl Greeter {
    #[rate_limit(
        period = "30s",
        threshold = 2,
        algo = "fixed",
        key = (Client::of(&request), request.get_ref()),
        cost = if request.get_ref() == "all" { 3 } else { 1 },
        name = "greet"
    )]
    async fn greet(&self, request: Request<String>) -> Result<Response<String>, Status> {
        Ok(Response::new(format!("hi {}", request.into_inner())))
    }
}

/// The code that tonic generates for a service, by hand.
#[derive(Clone)]
struct GreeterServer(Arc<Greeter>);

impl NamedService for GreeterServer {
    const NAME: &'static str = "test.Greeter";
}

impl<B> Service<http::Request<B>> for GreeterServer
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Later<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let method = Greet(Arc::clone(&self.0));
        let codec = ProstCodec::<String, String>::default();
        Box::pin(async move { Ok(Grpc::new(codec).unary(method, request).await) })
    }
}

struct Greet(Arc<Greeter>);

impl UnaryService<String> for Greet {
    type Response = String;
    type Future = Later<Result<Response<String>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let greeter = Arc::clone(&self.0);
        Box::pin(async move { greeter.limiter.clone().scope(greeter.greet(request)).await })
    }
}

async fn free_port() -> (tokio::net::TcpListener, SocketAddr) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// Starts a server with these settings, and returns a client of it.
async fn serve(
    layer: RateLimitLayer<ratelimit_runtime::web::Grpc>,
    limiter: RateLimiter,
) -> tonic::client::Grpc<Channel> {
    let (listener, address) = free_port().await;
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let service = GreeterServer(Arc::new(Greeter { limiter }));
    let server = Server::builder().layer(layer).add_service(service);
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = Channel::from_shared(format!("http://{address}")).expect("a URI");
    tonic::client::Grpc::new(channel.connect().await.expect("a connection"))
}

async fn greet(
    client: &mut tonic::client::Grpc<Channel>,
    name: &str,
    forwarded: &'static str,
) -> Result<Response<String>, Status> {
    let mut request = Request::new(name.to_owned());
    request.metadata_mut().insert("x-forwarded-for", forwarded.parse().expect("ASCII"));
    client.ready().await.expect("a connection");
    let path = PathAndQuery::from_static("/test.Greeter/Greet");
    client.unary(request, path, ProstCodec::<String, String>::default()).await
}

fn field<'a>(metadata: &'a tonic::metadata::MetadataMap, name: &str) -> &'a str {
    let field = metadata.get(name).expect(name).to_str().expect("ASCII");
    assert!(!items(field).is_empty());
    field
}

#[tokio::test]
async fn rejects_with_a_status_and_its_details() {
    let (limiter, clock) = timed();
    let layer = RateLimitLayer::grpc().limit(ALL, |_| ()).limiter(limiter.clone());
    let mut client = serve(layer, limiter).await;
    let first = greet(&mut client, "ann", "").await.expect("admitted");
    assert_eq!(first.get_ref(), "hi ann");
    let policy = r#""all";q=4;w=60, "greet";q=2;w=30"#;
    assert_eq!(field(first.metadata(), "ratelimit-policy"), policy);
    assert_eq!(field(first.metadata(), "ratelimit"), r#""all";r=3;t=60, "greet";r=1;t=30"#);
    assert!(greet(&mut client, "ann", "").await.is_ok());
    clock.advance(Duration::from_millis(8_500));

    // By the method.
    let rejected = greet(&mut client, "ann", "").await.expect_err("rejected");
    assert_eq!(rejected.code(), Code::ResourceExhausted);
    assert_eq!(rejected.message(), "too many requests, try again in 22 seconds");
    let retry = rejected.get_details_retry_info().expect("when to come back");
    assert_eq!(retry.retry_delay, Some(Duration::from_millis(21_500)));
    let quota = rejected.get_details_quota_failure().expect("which limit");
    assert_eq!((quota.violations.len(), &*quota.violations[0].subject), (1, "greet"));
    assert_eq!(quota.violations[0].description, rejected.message());
    assert_eq!(field(rejected.metadata(), "ratelimit"), r#""greet";r=0;t=22, "all";r=1;t=52"#);

    // The cost exceeds the capacity: no wait helps.
    let never = greet(&mut client, "all", "").await.expect_err("rejected");
    assert_eq!(never.code(), Code::ResourceExhausted);
    assert!(never.get_details_retry_info().is_none());
    assert!(never.get_details_quota_failure().is_some());

    // By the layer.
    let rejected = greet(&mut client, "bob", "").await.expect_err("rejected");
    assert_eq!(rejected.code(), Code::ResourceExhausted);
    let retry = rejected.get_details_retry_info().expect("when to come back");
    assert_eq!(retry.retry_delay, Some(Duration::from_millis(51_500)));
    let quota = rejected.get_details_quota_failure().expect("which limit");
    let violation = &quota.violations[0];
    assert_eq!(
        (&*violation.subject, &*violation.quota_id, violation.quota_value),
        ("all", "all", 4)
    );
    assert_eq!(field(rejected.metadata(), "ratelimit"), r#""all";r=0;t=52"#);
}

#[tokio::test]
async fn takes_clients_as_keys_of_methods_and_of_the_layer() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::grpc()
        .clients(Clients::behind_proxies(["127.0.0.1"]).expect("an address"))
        .limit(Limit::fixed("clients", 3, MINUTE), Client::of);
    let mut client = serve(layer.limiter(limiter.clone()), limiter).await;
    for (name, from, rejected_by) in [
        ("ann", "1.1.1.1", None),
        ("ann", "6.6.6.6, 1.1.1.1", None),
        ("ann", "1.1.1.1", Some("greet")),
        ("bob", "1.1.1.1", Some("clients")),
        ("ann", "2.2.2.2", None),
    ] {
        let answer = greet(&mut client, name, from).await;
        let rejected = answer.err().map(|status| {
            status.get_details_quota_failure().expect("a limit").violations[0].subject.clone()
        });
        assert_eq!(rejected.as_deref(), rejected_by, "{name} from {from}");
    }
}

#[tokio::test]
async fn responds_with_internal_if_the_program_has_a_mistake() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::grpc().limits(|_, limits| {
        limits.add(&ALL, (), 1);
        limits.add(&ALL.shadow(true), (), 1);
        Ok(())
    });
    let mut client = serve(layer.limiter(limiter.clone()), limiter).await;
    let status = greet(&mut client, "ann", "").await.expect_err("a mistake");
    assert_eq!((status.code(), status.details()), (Code::Internal, &[][..]));
}

#[tokio::test]
async fn responds_with_unavailable_if_the_store_cannot_decide() {
    let (limiter, _) = timed();
    let away = RateLimiter::builder().redis("redis://127.0.0.1:1").on_error(OnError::Deny);
    let away = away.deadline(Duration::from_secs(5)).build().expect("a URL");
    let layer = RateLimitLayer::grpc().limit(ALL, |_| ()).limiter(away);
    let mut client = serve(layer, limiter).await;
    let status = greet(&mut client, "ann", "").await.expect_err("not decided");
    assert_eq!((status.code(), status.details()), (Code::Unavailable, &[][..]));
}

#[tokio::test]
async fn no_status_shows_a_hidden_limit() {
    let (limiter, _) = timed();
    let secret = Limit::fixed("secret", 1, MINUTE).hidden(true);
    let layer = RateLimitLayer::grpc().limit(secret, |_| ()).limiter(limiter.clone());
    let mut client = serve(layer, limiter).await;
    assert!(greet(&mut client, "ann", "").await.is_ok());
    let rejected = greet(&mut client, "ann", "").await.expect_err("rejected");
    assert_eq!(rejected.code(), Code::ResourceExhausted);
    assert!(rejected.get_details_quota_failure().is_none());
    assert!(rejected.get_details_retry_info().is_some());
    assert!(!format!("{rejected:?}").contains("secret"), "{rejected:?}");
    assert!(rejected.metadata().get("ratelimit-policy").is_none());
}

/// gRPC and HTTP in one axum server: each request gets a response of its protocol.
#[test]
fn responds_over_grpc_beside_http() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::new().limit(Limit::fixed("beside", 1, MINUTE), |_| ());
    let router = axum::Router::new().fallback(async || ());
    let server = crate::serve(router.layer(layer.limiter(limiter.clone())), &limiter);
    let ask = |method, kind: &str| {
        support::http::request(
            server.address,
            method,
            "/",
            &[&format!("content-type: application/{kind}")],
            &[],
        )
    };
    assert_eq!(ask("POST", "grpc").status, 200);
    for kind in ["grpc", "grpc+proto", "grpc;x=y", "grpc-web", "grpc-web-text+proto"] {
        let rejected = ask("POST", kind);
        assert_eq!((rejected.status, rejected.header("grpc-status")), (200, Some("8")), "{kind}");
        assert_eq!(rejected.header("content-type"), Some("application/grpc"));
        assert_eq!(rejected.header("cache-control"), Some("no-store"));
    }
    // A request without a key gets a status.
    let refuse = RateLimitLayer::new().limits(|_, _| Err((401, "who are you?").into()));
    let refusing = crate::serve(axum::Router::new().layer(refuse), &limiter);
    let headers = ["content-type: application/grpc"];
    let refused = support::http::request(refusing.address, "POST", "/", &headers, &[]);
    assert_eq!((refused.status, refused.header("grpc-status")), (200, Some("16")));
    // A request that is not gRPC gets a 429.
    for (method, kind) in [("POST", "json"), ("POST", "grpcxyz"), ("GET", "grpc")] {
        assert_eq!(ask(method, kind).status, 429, "{method} {kind}");
    }
}

/// A method that fails has its status in the headers, and one that succeeds in the trailers, after the body.
#[tokio::test]
async fn counts_methods_that_fail() {
    let (limiter, _) = timed();
    let layer = RateLimitLayer::grpc().limit(ALL, |_| ()).limiter(limiter.clone());
    let layer = layer.count_if(|response| response.headers.contains_key("grpc-status"));
    let mut client = serve(layer, limiter.clone()).await;
    for (name, is_ok, remaining) in
        [("ann", true, 4), ("all", false, 3), ("bob", true, 3), ("all", false, 2)]
    {
        assert_eq!(greet(&mut client, name, "").await.is_ok(), is_ok, "{name}");
        let left = limiter.peek(&ALL, (), 1).await.expect("embedded").remaining;
        assert_eq!(left, remaining, "{name}");
    }
}
