//! The examples that serve HTTP, called as their `curl` lines do.

use futures::{SinkExt, StreamExt};
use http::uri::PathAndQuery;
use support::http::{Response, get, post};
use support::server::Server;
use support::wait::wait_for;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt;

use crate::{ExampleServer, REDIS, example, with};

/// Asserts that a response is a rejection whose `Retry-After` is at most `seconds`.
fn assert_rejected(response: &Response, seconds: u64) {
    assert_eq!(response.status, 429, "{response:?}");
    let wait: u64 = response.header("retry-after").expect("a wait").parse().expect("seconds");
    assert!((1..=seconds).contains(&wait), "{wait}");
    assert_eq!(response.header("cache-control"), Some("no-store"));
}

#[test]
fn axum_responds_as_its_curl_lines_say() {
    let server = ExampleServer::start(example("axum"));
    let call = |path: &str| get(server.address, path, &[]);
    for left in ["r=1", "r=0"] {
        let greeting = call("/hi/7");
        assert_eq!((greeting.status, &*greeting.body), (200, "hi 7, from 127.0.0.1\n"));
        let fields = greeting.header("ratelimit").expect("the remaining units");
        assert!(fields.contains(r#""all";r="#) && fields.contains(left), "{fields}");
    }
    let rejected = call("/hi/7");
    assert_rejected(&rejected, 30);
    assert_eq!(rejected.header("content-type"), Some("application/json"));
    let body: serde_json::Value = serde_json::from_str(&rejected.body).expect("JSON");
    assert_eq!(body["retry_after"].to_string(), rejected.header("retry-after").expect("a wait"));
    let error = body["error"].as_str().expect("a text");
    assert!(error.starts_with("too many requests, try again in"), "{error}");
    assert_eq!(call("/hi/8").status, 200);

    let search = |key: &str, pages: u64| {
        let path = format!("/search?pages={pages}");
        get(server.address, &path, &[&format!("x-api-key: {key}")]).status
    };
    assert_eq!(search("secret", 4), 200);
    assert_eq!(search("secret", 4), 429);
    assert_eq!(search("secret", 6), 413);
    assert_eq!(search("other", 4), 200);
    assert_eq!(search("invented", 1), 401);

    let metrics = call("/metrics");
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4"));
    let count = |limit: &str, outcome: &str| {
        let labels = [format!("limit=\"{limit}\""), format!("outcome=\"{outcome}\"")];
        let has_labels = |line: &&str| labels.iter().all(|label| line.contains(label));
        let lines =
            metrics.body.lines().filter_map(|it| it.strip_prefix("ratelimit_decisions_total{"));
        let counts = lines.filter(has_labels).filter_map(|line| line.rsplit_once(' '));
        counts.map(|(_, count)| count.parse::<u64>().expect("a number")).sum::<u64>()
    };
    assert_eq!((count("axum::hi", "allowed"), count("axum::hi", "limited")), (3, 1));
    assert_eq!((count("axum::search", "allowed"), count("axum::search", "limited")), (2, 1));
    assert_eq!(count("axum::search", "cost_exceeds_capacity"), 1);
    assert_eq!(count("all", "allowed"), 9);
    assert!(metrics.body.contains("ratelimit_decision_duration_seconds_bucket{"));
    assert_eq!(server.rejections(), ["axum::hi", "axum::search"]);
}

#[test]
fn actix_responds_as_its_curl_lines_say() {
    let server = ExampleServer::start(example("actix"));
    let call = |path: &str| get(server.address, path, &[]);
    for _ in 0..2 {
        let greeting = call("/hi/7");
        assert_eq!((greeting.status, &*greeting.body), (200, "hi 7, from 127.0.0.1\n"));
        let fields = greeting.header("ratelimit").expect("the remaining units");
        assert!(fields.contains(r#""all";r="#) && fields.contains(r#""actix::hi";r="#), "{fields}");
    }
    let rejected = call("/hi/7");
    assert_rejected(&rejected, 30);
    assert!(rejected.body.starts_with("too many requests, try again in"), "{}", rejected.body);
    let problem = get(server.address, "/hi/7", &["accept: application/json"]);
    assert_rejected(&problem, 30);
    assert_eq!(problem.header("content-type"), Some("application/problem+json"));

    let note = |bytes| post(server.address, "/notes", &[], &vec![0; bytes]);
    assert_eq!(note(6000).body, "6000 bytes kept for 127.0.0.1\n");
    assert_rejected(&note(6000), 60);
    assert_eq!(note(11_000).status, 413);
    let health = call("/health");
    assert_eq!((health.status, health.header("ratelimit")), (200, None));
    assert_eq!(server.rejections(), ["actix::hi", "actix::hi", "actix::notes"]);
}

#[test]
fn tower_layer_distinguishes_clients_behind_trusted_proxies() {
    let behind = with("tower_layer", "TRUSTED_PROXIES", "127.0.0.0/8, 10.0.0.0/8");
    let server = ExampleServer::start(behind);
    let call = |by: &str| get(server.address, "/", &[&format!("x-forwarded-for: {by}")]);
    for _ in 0..3 {
        let greeting = call("203.0.113.7");
        assert_eq!((greeting.status, &*greeting.body), (200, "hi 203.0.113.7\n"));
    }
    assert_rejected(&call("203.0.113.7"), 10);
    assert_rejected(&call("1.1.1.1, 203.0.113.7, 10.0.0.9"), 10);
    assert_eq!(call("203.0.113.8").status, 200);
    assert_eq!(server.rejections(), ["client", "client"]);

    // Without trusted proxies, the header is ignored.
    let server = ExampleServer::start(example("tower_layer"));
    let call = |by: u8| get(server.address, "/", &[&format!("x-forwarded-for: 203.0.113.{by}")]);
    assert!((0..3).all(|by| call(by).body == "hi 127.0.0.1\n"));
    assert_rejected(&call(3), 10);
}

fn log_in(server: &ExampleServer, user: &str, password: &str) -> Response {
    let form = "content-type: application/x-www-form-urlencoded";
    let body = format!("user={user}&password={password}");
    post(server.address, "/login", &[form], body.as_bytes())
}

#[test]
fn login_counts_only_failed_attempts() {
    let server = ExampleServer::start(example("login"));
    // Successful logins are not limited: there are more than a client may fail.
    for _ in 0..21 {
        let greeting = log_in(&server, "ann", "opensesame");
        assert_eq!((greeting.status, &*greeting.body), (200, "hi ann\n"));
    }
    // A login forgets four failures of the user from this client, and none of the client.
    let guess = |guess: u8| log_in(&server, "ann", &guess.to_string()).status;
    assert!((0..4).all(|it| guess(it) == 401));
    assert_eq!(log_in(&server, "ann", "opensesame").status, 200);
    assert!((0..5).all(|it| guess(it) == 401));
    assert_rejected(&log_in(&server, "ann", "5"), 900);
    assert_rejected(&log_in(&server, "ann", "opensesame"), 900);
    assert_eq!(log_in(&server, "bob", "letmein").status, 200);
    // The nine failures count, the rejected attempts do not: the client has eleven attempts left.
    assert!((0..11).all(|user| log_in(&server, &format!("user-{user}"), "x").status == 401));
    assert_rejected(&log_in(&server, "bob", "letmein"), 60);
    assert_eq!(server.rejections(), ["login.guesses", "login.guesses", "login.client"]);
}

#[test]
fn poem_responds_as_its_curl_lines_say() {
    let server = ExampleServer::start(example("poem"));
    let call = |path: &str, headers: &[&str]| get(server.address, path, headers);
    for _ in 0..2 {
        let greeting = call("/hi/7", &["x-forwarded-for: 203.0.113.7"]);
        assert_eq!((greeting.status, &*greeting.body), (200, "hi 7, from 127.0.0.1\n"));
    }
    assert_rejected(&call("/hi/7", &["x-forwarded-for: 203.0.113.8"]), 30);
    assert_eq!(call("/hi/8", &[]).status, 200);
}

// The gRPC example, called by a tonic client.

async fn call(
    client: &mut tonic::client::Grpc<Channel>,
    method: &'static str,
    name: &str,
) -> Result<tonic::Response<String>, Status> {
    client.ready().await.expect("a connection");
    let request = tonic::Request::new(name.to_owned());
    let codec = ProstCodec::<String, String>::default();
    client.unary(request, PathAndQuery::from_static(method), codec).await
}

#[tokio::test]
async fn tonic_responds_as_its_grpcurl_lines_say() {
    let server = ExampleServer::start(example("tonic"));
    let channel = Channel::from_shared(format!("http://{}", server.address)).expect("a URI");
    let mut client = tonic::client::Grpc::new(channel.connect().await.expect("a connection"));
    let method = "/hello.Greeter/Greet";
    for _ in 0..2 {
        let greeting = call(&mut client, method, "ann").await.expect("admitted");
        assert_eq!(greeting.get_ref(), "hi ann");
        assert!(greeting.metadata().get("ratelimit").is_some());
    }
    let rejected = call(&mut client, method, "ann").await.expect_err("rejected");
    assert_eq!(rejected.code(), Code::ResourceExhausted);
    let wait = rejected.get_details_retry_info().expect("the wait until a retry").retry_delay;
    assert!(wait.is_some_and(|wait| (1..=30).contains(&wait.as_secs())), "{wait:?}");
    let quota = rejected.get_details_quota_failure().expect("the name of the limit");
    assert_eq!(quota.violations[0].subject, "tonic::greet");

    assert!(call(&mut client, method, "bob").await.is_ok());
    let unknown = call(&mut client, "/hello.Greeter/Leave", "bob").await.expect_err("unknown");
    assert_eq!(unknown.code(), Code::Unimplemented);
    // That was the fifth call of this client, so its bucket of five is empty.
    let rejected = call(&mut client, method, "bob").await.expect_err("rejected");
    let quota = rejected.get_details_quota_failure().expect("the name of the limit");
    assert_eq!(quota.violations[0].subject, "all");
    assert_eq!(server.rejections(), ["tonic::greet", "all"]);
}

// The example `websocket`, with a real client.

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Opens a socket, and lets the server echo a text. The error has the response of the server.
async fn open(server: &ExampleServer, token: &str) -> Result<Socket, Error> {
    let url = format!("ws://{}/socket?token={token}", server.address);
    let (mut socket, _) = connect_async(url).await?;
    socket.send(Message::text("hello")).await?;
    assert_eq!(socket.next().await.expect("an echo")?, Message::text("hello"));
    Ok(socket)
}

async fn rejected(server: &ExampleServer, token: &str) -> (u16, Option<String>) {
    let Err(Error::Http(response)) = open(server, token).await else { panic!("a socket") };
    let wait = response.headers().get("retry-after");
    let wait = wait.map(|wait| wait.to_str().expect("ASCII").to_owned());
    (response.status().as_u16(), wait)
}

/// Opens a socket as soon as the server has noticed that another one is closed.
async fn open_again(server: &ExampleServer, token: &str) -> Socket {
    wait_for(async || open(server, token).await.ok()).await
}

#[tokio::test]
async fn a_user_has_three_sockets_on_all_servers_together() {
    let redis = Server::start();
    let servers = [(); 2].map(|()| ExampleServer::start(with("websocket", REDIS, &redis.url)));
    let mut first = open(&servers[0], "a1b2").await.expect("a socket");
    let second = open(&servers[1], "a1b2").await.expect("a socket");
    let third = open(&servers[0], "a1b2").await.expect("a socket");
    for server in &servers {
        assert_eq!(rejected(server, "a1b2").await, (429, Some("1".to_owned())));
        assert_eq!(rejected(server, "e5f6").await.0, 401);
        drop(open(server, "c3d4").await.expect("a place of another user"));
    }

    // One is blocked, and one is torn down without a word.
    first.close(None).await.expect("closed");
    let first = open_again(&servers[1], "a1b2").await;
    assert_eq!(rejected(&servers[0], "a1b2").await.0, 429);
    drop(second);
    let second = open_again(&servers[0], "a1b2").await;
    assert_eq!(rejected(&servers[1], "a1b2").await.0, 429);

    // A request that is not one for a WebSocket gets an error, and holds no place.
    drop((first, second, third));
    for _ in 0..5 {
        drop(open_again(&servers[0], "a1b2").await);
        let plain = get(servers[0].address, "/socket?token=c3d4", &[]);
        assert_eq!(plain.status, 400, "{plain:?}");
    }
    redis.assert_all_keys_expire();
}
