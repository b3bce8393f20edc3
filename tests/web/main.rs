//! Web frameworks, each over a real socket.

mod actix;
mod address;
mod axum;
mod choices;
mod counting;
mod crowd;
mod fields;
mod holding;
mod hyper;
mod mistakes;
mod outbound;
mod rejections;
mod resets;
mod retry_after;
mod routes;
mod ruled;
mod settings;
mod tonic;
mod undecided;
mod uploads;
mod workers;

use std::net::SocketAddr;

use ::axum::Router;
use ::axum::extract::Request;
use ::axum::middleware::{Next, from_fn};
use ratelimit_runtime::{RateLimiter, VirtualClock};
use sfv::{BareItem, List, ListEntry, Parser};
use support::clocks::embedded_on;
use support::http::Response;
use support::limits::MINUTE;
use support::server::Server;
use tokio::runtime::Runtime;

/// A server that runs until it is dropped.
struct Running {
    address: SocketAddr,
    runtime: Runtime,
}

/// Serves `router`, whose annotated handlers use `limiter`.
fn serve(router: Router, limiter: &RateLimiter) -> Running {
    let limiter = limiter.clone();
    let scoped = from_fn(move |request: Request, next: Next| {
        let limiter = limiter.clone();
        async move { limiter.scope(next.run(request)).await }
    });
    let service = router.layer(scoped).into_make_service_with_connect_info::<SocketAddr>();
    let runtime = Runtime::new().expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("a free port");
    let address = listener.local_addr().expect("bound");
    runtime.spawn(async move { ::axum::serve(listener, service).await });
    Running { address, runtime }
}

/// A limiter on virtual time, which only the test advances.
fn timed() -> (RateLimiter, VirtualClock) {
    let clock = VirtualClock::new();
    (embedded_on(&clock), clock)
}

/// A limiter on the embedded store, and one on Redis, both on virtual time.
fn limiters(server: &Server) -> [(RateLimiter, VirtualClock); 2] {
    let clock = VirtualClock::new();
    let builder = server.builder().clock(ratelimit_runtime::Clock::Virtual(clock.clone()));
    [timed(), (builder.build().expect("valid settings"), clock)]
}

/// A cost that is not a constant.
fn three() -> u64 {
    3
}

/// The headers of responses as queries, and whether a layer reports limits beside them.
const CACHED: [(&str, bool); 14] = [
    ("cache-control:public", false),
    ("cache-control:max-age=60,Public", false),
    ("cache-control:s-maxage=60", false),
    ("cache-control:max-age=60", false),
    ("cache-control:no-transform&cache-control:PUBLIC", false),
    ("cache-control:private=a,max-age=60", false),
    ("cache-control:private&cdn-cache-control:max-age=60", false),
    ("cache-control:private", true),
    ("cache-control:private,max-age=60", true),
    ("cache-control:max-age=60&cache-control:private", true),
    ("cache-control:no-store,public", true),
    ("cache-control:max-age=0,must-revalidate", true),
    ("cache-control:no-cache", true),
    ("x-cache-control:public", true),
];

/// An item of `RateLimit` or `RateLimit-Policy`: its name, and its parameters in their order.
type Item = (String, Vec<(String, i64)>);

/// The items of a header, parsed by another library.
fn items(field: &str) -> Vec<Item> {
    let list: List = Parser::new(field).parse().expect("a list of structured items");
    let item = |entry: ListEntry| {
        let ListEntry::Item(item) = entry else { panic!("an inner list in {field}") };
        let BareItem::String(name) = item.bare_item else { panic!("not a string in {field}") };
        let number = |value: BareItem| match value {
            BareItem::Integer(number) => i64::from(number),
            other => panic!("not an integer in {field}: {other:?}"),
        };
        let parameters = item.params.into_iter();
        let parameters = parameters.map(|(key, value)| (String::from(key), number(value)));
        (String::from(name), parameters.collect())
    };
    list.into_iter().map(item).collect()
}

/// The values of `RateLimit-Policy` and `RateLimit`, which must be valid. A 429 must have `Retry-After`, which is the
/// `t` of the first item and not earlier than any `t`, and must not be cached.
fn reported(answer: &Response) -> (&str, &str) {
    let [policy, state] = ["ratelimit-policy", "ratelimit"].map(|name| {
        let field = answer.header(name);
        field.unwrap_or_else(|| panic!("one {name} in {answer:?}"))
    });
    let (policies, states) = (items(policy), items(state));
    let wait = (answer.status == 429).then(|| {
        let wait = answer.header("retry-after").expect("when to come back");
        wait.parse::<i64>().expect("seconds")
    });
    for (name, parameters) in &policies {
        let parameters: Vec<_> = parameters.iter().map(|(key, value)| (&**key, *value)).collect();
        assert!(matches!(parameters[..], [("q", 1..), ("w", 1..)]), "{name} in {policy}");
    }
    for (name, parameters) in &states {
        let parameters: Vec<_> = parameters.iter().map(|(key, value)| (&**key, *value)).collect();
        assert!(policies.iter().any(|(known, _)| known == name), "{name} in {policy}");
        match parameters[..] {
            [("r", 0..), ("t", reset @ 0..)] => {
                assert!(wait.is_none_or(|wait| wait >= reset.max(1)));
            }
            [("r", 0..)] if wait.is_some() => {}
            _ => panic!("{name} in {state}"),
        }
    }
    if let Some(wait) = wait {
        // The limit that rejected comes first.
        assert_eq!(states[0].1[1].1.max(1), wait, "{state}");
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    (policy, state)
}
