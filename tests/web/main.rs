//! Web frameworks, each over a real socket.

mod actix;
mod address;
mod axum;
mod choices;
mod counting;
mod holding;
mod obeying;
mod outbound;
mod prelude;
mod resets;
mod retry_after;
mod routes;
mod tonic;
mod undecided;
mod uploads;

use ::axum::extract::Request;
use ::axum::middleware::{Next, from_fn};
use actix_web::HttpServer;
use actix_web::dev::Service as _;
use actix_web::middleware::{Condition, NormalizePath};
use actix_web::web::ServiceConfig;
use sfv::{BareItem, List, ListEntry, Parser};
use support::clocks::embedded_on;
use support::http::Response;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::prelude::*;

const ALL: Limit = Limit::fixed("all", 4, MINUTE);

struct Running {
    address: SocketAddr,
    runtime: Runtime,
}

/// Serves `router`, whose layers and annotated handlers use `limiter`.
fn serve(router: Router, limiter: &RateLimiter) -> Running {
    let limiter = limiter.clone();
    let scoped = from_fn(move |request: Request, next: Next| {
        let limiter = limiter.clone();
        async move { limiter.scope(next.run(request)).await }
    });
    let runtime = Runtime::new().expect("a runtime");
    Running { address: runtime.block_on(listen(router.layer(scoped))), runtime }
}

/// Serves `router` on the current runtime.
async fn listen(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { ::axum::serve(listener, service).await });
    address
}

/// Serves the routes that `configure` adds behind `limits`, whose handlers use `limiter`, with actix-web. If `trims`, a
/// middleware outside of `limits` removes slashes at the end of a path.
fn serve_actix(
    configure: impl Fn(&mut ServiceConfig) + Clone + Send + 'static,
    limits: RateLimits,
    limiter: &RateLimiter,
    trims: bool,
) -> SocketAddr {
    let (tell, address) = std::sync::mpsc::channel();
    let limiter = limiter.clone();
    std::thread::spawn(move || {
        let server = HttpServer::new(move || {
            let limiter = limiter.clone();
            App::new()
                .configure(configure.clone())
                .wrap(limits.clone())
                .wrap_fn(move |request, service| limiter.scope(service.call(request)))
                .wrap(Condition::new(trims, NormalizePath::trim()))
        });
        let server = server.workers(1).disable_signals().bind("127.0.0.1:0").expect("a free port");
        tell.send(server.addrs()[0]).expect("the test waits for it");
        actix_web::rt::System::new().block_on(server.run()).expect("it is served");
    });
    address.recv().expect("an address")
}

/// A limiter whose Redis is away: no server listens on port 1.
fn without_redis(on_error: OnError) -> RateLimiter {
    let builder = RateLimiter::builder().redis("redis://127.0.0.1:1").on_error(on_error);
    builder.deadline(MINUTE).build().expect("a URL")
}

/// A limiter on virtual time, which only the test advances.
fn timed() -> (RateLimiter, VirtualClock) {
    let clock = VirtualClock::new();
    (embedded_on(&clock), clock)
}

fn limiters(server: &Server) -> [(RateLimiter, VirtualClock); 2] {
    let clock = VirtualClock::new();
    [timed(), (server.limiter_on(&clock), clock)]
}

/// Returns the units of `limit` that are left, once all charges are settled.
async fn left(limiter: &RateLimiter, limit: &Limit) -> u64 {
    limiter.flush().await.expect("settled");
    limiter.peek(limit, (), 1).await.expect("decided").remaining
}

/// An item of `RateLimit` or `RateLimit-Policy`: its name, and its parameters in their order.
type Item = (String, Vec<(String, i64)>);

fn items(field: &str) -> Vec<Item> {
    let list: List = Parser::new(field).parse().expect("a list of structured items");
    let item = |entry: ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("an inner list in {field}") };
        let BareItem::String(name) = item.bare_item else { panic!("not a string in {field}") };
        let parameters = item.params.into_iter().map(|(key, value)| match value {
            BareItem::Integer(number) => (String::from(key), i64::from(number)),
            other => panic!("not an integer in {field}: {other:?}"),
        });
        (String::from(name), parameters.collect())
    };
    list.into_iter().map(item).collect()
}

/// The values of `RateLimit-Policy` and `RateLimit`, which must be valid. A 429 must have `Retry-After`, which is the
/// `t` of the first item and not earlier than any `t`, and must not be cached.
fn reported(answer: &Response) -> (&str, &str) {
    fn parameters(item: &Item) -> Vec<(&str, i64)> {
        item.1.iter().map(|(key, value)| (&**key, *value)).collect()
    }
    let [policy, state] = ["ratelimit-policy", "ratelimit"]
        .map(|name| answer.header(name).unwrap_or_else(|| panic!("one {name} in {answer:?}")));
    let (policies, states) = (items(policy), items(state));
    let wait = (answer.status == 429)
        .then(|| answer.header("retry-after").and_then(|wait| wait.parse().ok()).expect("seconds"));
    for item in &policies {
        assert!(matches!(parameters(item)[..], [("q", 1..), ("w", 1..)]), "{item:?}");
    }
    for item in &states {
        assert!(policies.iter().any(|(known, _)| *known == item.0), "{item:?} in {policy}");
        match parameters(item)[..] {
            [("r", 0..), ("t", reset @ 0..)] => {
                assert!(wait.is_none_or(|wait: i64| wait >= reset.max(1)));
            }
            [("r", 0..)] if wait.is_some() => {}
            _ => panic!("{item:?} in {state}"),
        }
    }
    if let Some(wait) = wait {
        // The limit that rejected comes first.
        assert_eq!(states[0].1[1].1.max(1), wait, "{state}");
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    (policy, state)
}
