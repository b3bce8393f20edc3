//! tonic: annotated methods and the layer, as a tonic client sees them.

use http::uri::PathAndQuery;
use ratelimit_runtime::web::Grpc;
use tonic::service::Routes;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;

use crate::holding::wait_for_in_flight;
use crate::prelude::*;

const METHOD: &str = "/test.Greeter/Greet";

type Codec = ProstCodec<String, String>;
type GrpcClient = tonic::client::Grpc<Channel>;

#[rate_limit(
    period = "30s",
    threshold = 2,
    algo = "fixed",
    key = (Client::of(&request), request.get_ref()),
    cost = if request.get_ref() == "all" { 3 } else { 1 },
    name = "greet"
)]
async fn respond(request: Request<String>) -> Result<Response<String>, Status> {
    Ok(Response::new(format!("hi {}", request.into_inner())))
}

async fn serve(layer: RateLimitLayer<Grpc>, limiter: RateLimiter) -> GrpcClient {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    let method = async move |request: axum::extract::Request| {
        let method = service_fn(move |request| limiter.scope(respond(request)));
        tonic::server::Grpc::new(Codec::default()).unary(method, request).await
    };
    let router = axum::Router::new().route(METHOD, axum::routing::post(method));
    let server = Server::builder().layer(layer).add_routes(Routes::from(router));
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = Channel::from_shared(format!("http://{address}")).expect("a URI");
    tonic::client::Grpc::new(channel.connect().await.expect("a connection"))
}

async fn greet(
    client: &mut GrpcClient,
    name: &str,
    forwarded: &'static str,
) -> Result<Response<String>, Status> {
    let mut request = Request::new(name.to_owned());
    request.metadata_mut().insert("x-forwarded-for", forwarded.parse().expect("ASCII"));
    client.ready().await.expect("a connection");
    client.unary(request, PathAndQuery::from_static(METHOD), Codec::default()).await
}

fn field<'a>(metadata: &'a tonic::metadata::MetadataMap, name: &str) -> &'a str {
    let field = metadata.get(name).expect(name).to_str().expect("ASCII");
    assert!(!items(field).is_empty());
    field
}

/// Returns the wait after a status, and the limit with its quota.
fn exhausted(status: &Status) -> (Option<Duration>, Option<(String, i64)>) {
    assert_eq!(status.code(), Code::ResourceExhausted);
    let wait = status.get_details_retry_info().and_then(|it| it.retry_delay);
    let quota = status.get_details_quota_failure().map(|it| {
        let [violation] = &it.violations[..] else { panic!("{it:?}") };
        assert_eq!(violation.description, status.message());
        assert_eq!(violation.quota_id, violation.subject);
        (violation.subject.clone(), violation.quota_value)
    });
    (wait, quota)
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
    let too_many = "too many requests, try again in 22 seconds";
    let large = "this request is too large: it needs 3 units, and at most 2 are allowed at once";
    for (name, wait, quota, message, states) in [
        ("ann", Some(21_500), ("greet", 2), too_many, r#""greet";r=0;t=22, "all";r=1;t=52"#),
        // The cost exceeds the capacity: no wait helps.
        ("all", None, ("greet", 2), large, r#""all";r=0;t=52"#),
        ("bob", Some(51_500), ("all", 4), &too_many.replace("22", "52"), r#""all";r=0;t=52"#),
    ] {
        let rejected = greet(&mut client, name, "").await.expect_err("rejected");
        assert_eq!(rejected.message(), message);
        let quota = (quota.0.to_owned(), quota.1);
        assert_eq!(exhausted(&rejected), (wait.map(Duration::from_millis), Some(quota)), "{name}");
        assert_eq!(field(rejected.metadata(), "ratelimit"), states, "{name}");
    }
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
        let rejected = greet(&mut client, name, from).await.err();
        let rejected = rejected.map(|status| exhausted(&status).1.expect("a limit").0);
        assert_eq!(rejected.as_deref(), rejected_by, "{name} from {from}");
    }
}

#[tokio::test]
async fn a_mistake_and_an_outage_have_codes_without_details() {
    let (limiter, _) = timed();
    let mixed = RateLimitLayer::grpc().limits(|_, limits| {
        limits.add(&ALL, (), 1);
        limits.add(&ALL.shadow(true), (), 1);
        Ok(())
    });
    let away = RateLimitLayer::grpc().limit(ALL, |_| ()).limiter(without_redis(OnError::Deny));
    for (layer, code) in
        [(mixed.limiter(limiter.clone()), Code::Internal), (away, Code::Unavailable)]
    {
        let mut client = serve(layer, limiter.clone()).await;
        let status = greet(&mut client, "ann", "").await.expect_err("not decided");
        assert_eq!((status.code(), status.details()), (code, &[][..]));
    }
}

#[tokio::test]
async fn no_status_shows_a_hidden_limit() {
    let (limiter, _) = timed();
    let secret = Limit::fixed("secret", 1, MINUTE).hidden(true);
    let layer = RateLimitLayer::grpc().limit(secret, |_| ()).limiter(limiter.clone());
    let mut client = serve(layer, limiter).await;
    assert!(greet(&mut client, "ann", "").await.is_ok());
    let rejected = greet(&mut client, "ann", "").await.expect_err("rejected");
    assert_eq!(exhausted(&rejected), (Some(MINUTE), None));
    assert!(!format!("{rejected:?}").contains("secret"), "{rejected:?}");
    assert!(rejected.metadata().get("ratelimit-policy").is_none());
}

/// gRPC and HTTP in one axum server: each request gets a response of its protocol.
#[test]
fn responds_over_grpc_beside_http() {
    let layer = RateLimitLayer::new().limit(Limit::fixed("beside", 1, MINUTE), |_| ());
    let server = crate::serve(Router::new().fallback(async || ()).layer(layer), &timed().0);
    let ask = |method, kind: &str| {
        let kind = format!("content-type: application/{kind}");
        support::http::request(server.address, method, "/", &[&kind], &[])
    };
    assert_eq!(ask("POST", "grpc").status, 200);
    for kind in ["grpc", "grpc+proto", "grpc;x=y", "grpc-web", "grpc-web-text+proto"] {
        let rejected = ask("POST", kind);
        assert_eq!((rejected.status, rejected.header("grpc-status")), (200, Some("8")), "{kind}");
        assert_eq!(rejected.header("content-type"), Some("application/grpc"));
        assert_eq!(rejected.header("cache-control"), Some("no-store"));
    }
    let refuse = RateLimitLayer::new().limits(|_, _| Err((401, "who are you?").into()));
    let refusing = crate::serve(Router::new().layer(refuse), &timed().0);
    let refused = post(refusing.address, "/", &["content-type: application/grpc"], &[]);
    assert_eq!((refused.status, refused.header("grpc-status")), (200, Some("16")));
    for (method, kind) in [("POST", "json"), ("POST", "grpcxyz"), ("GET", "grpc")] {
        assert_eq!(ask(method, kind).status, 429, "{method} {kind}");
    }
}

/// The body of a response holds the slot until its trailers, as any other body.
#[tokio::test]
async fn a_busy_limit_has_a_status_and_its_details() -> Result<(), Rejection> {
    let (limiter, two) = (RateLimiter::embedded(), Limit::in_flight("two", 2));
    let layer = RateLimitLayer::grpc().limit(two, |_| ()).limiter(limiter.clone());
    let mut client = serve(layer, limiter.clone()).await;
    let _running = limiter.acquire(&two, (), 1).await?;
    assert!(greet(&mut client, "ann", "").await.is_ok());
    wait_for_in_flight(&limiter, &two, 1).await;
    let _other = limiter.acquire(&two, (), 1).await?;
    let busy = greet(&mut client, "bob", "").await.expect_err("both are taken");
    assert_eq!(exhausted(&busy), (Some(SECOND), Some(("two".into(), 2))));
    Ok(())
}
