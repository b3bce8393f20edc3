//! Wrong settings of proxies: each is reported once per process, with what to write. So this is the only test of its
//! process.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures::FutureExt;
use http::Request;
use ratelimit_runtime::web::{Client, Clients, ProxyHeader, RateLimitLayer};
use ratelimit_runtime::{Limit, RateLimiter};
use support::limits::MINUTE;
use support::log::Log;
use tower::ServiceExt;

fn request(peer: Option<&str>, header: Option<&str>) -> Request<Body> {
    let mut request = Request::builder();
    if let Some(peer) = peer {
        request = request.extension(SocketAddr::new(peer.parse().expect("an address"), 4711));
    }
    if let Some(name) = header {
        request = request.header(name, "203.0.113.7");
    }
    request.body(Body::empty()).expect("a request")
}

fn events_of(mut work: impl FnMut()) -> Vec<String> {
    let log = Log::default();
    let format = tracing_subscriber::fmt().with_ansi(false).with_writer(log.writer());
    tracing::subscriber::with_default(format.finish(), || (0..2).for_each(|_| work()));
    log.text().lines().map(ToOwned::to_owned).collect()
}

fn events(clients: &Clients, peer: Option<&str>, header: Option<&str>) -> Vec<String> {
    let request = request(peer, header);
    events_of(|| _ = clients.identify(&request))
}

/// Handles a request by a handler that extracts the client, behind `layer`. Returns the events.
fn events_behind(layer: &RateLimitLayer, peer: &str, header: Option<&str>) -> Vec<String> {
    let app = Router::new().route("/", get(async |client: Client| client.to_string()));
    let app = app.layer(layer.clone());
    events_of(|| {
        let response = app.clone().oneshot(request(Some(peer), header)).now_or_never();
        assert_eq!(response.expect("at once").expect("infallible").status(), 200);
    })
}

#[test]
fn wrong_settings_are_reported_once_with_what_to_write() {
    let direct = Clients::direct();
    let behind = Clients::behind_proxies(["10.0.0.0/8"]).expect("a network");

    // Right settings, and clients that send headers themselves.
    for (clients, peer, header) in [
        (&direct, "203.0.113.9", Some("x-forwarded-for")),
        (&direct, "192.168.0.1", None),
        (&behind, "203.0.113.9", Some("x-forwarded-for")),
        (&behind, "10.0.0.1", Some("x-forwarded-for")),
    ] {
        assert_eq!(events(clients, Some(peer), header), [""; 0], "{peer} with {header:?}");
    }

    let assert_warns = |all: &[String], advice: &str| {
        assert!(all.len() == 1 && all[0].contains("WARN") && all[0].contains(advice), "{all:#?}");
    };
    let once = |clients: &Clients, peer, header, advice: &str| {
        assert_warns(&events(clients, peer, header), advice);
        assert_eq!(events(clients, peer, header), [""; 0]);
    };
    once(&direct, None, None, "`into_make_service_with_connect_info::<SocketAddr>()`");
    let advice =
        r#"write `Clients::behind_proxies(["192.168.0.1"])?.header(ProxyHeader::Forwarded)`"#;
    once(&direct, Some("192.168.0.1"), Some("forwarded"), advice);
    let advice = "write `.header(ProxyHeader::XForwardedFor)`";
    let cloudflare = behind.clone().header(ProxyHeader::OneAddress("cf-connecting-ip".into()));
    once(&cloudflare, Some("10.0.0.1"), Some("x-forwarded-for"), advice);

    // The key function knows the proxies, and the handler does not.
    let key = behind.clone();
    let layer = RateLimitLayer::new().limiter(RateLimiter::embedded());
    let layer = layer.limit(Limit::fixed("all", 100, MINUTE), move |it| key.identify(it));
    let forwarded = Some("x-forwarded-for");
    assert_eq!(events_behind(&layer, "10.0.0.1", None), [""; 0]);
    assert_eq!(events_behind(&layer.clone().clients(behind), "10.0.0.1", forwarded), [""; 0]);
    assert_eq!(events_behind(&layer.clone().clients(direct), "203.0.113.9", forwarded), [""; 0]);
    // The proxy can have a public address.
    let advice = r#"`.clients(Clients::behind_proxies(["203.0.113.9"])?)`"#;
    assert_warns(&events_behind(&layer, "203.0.113.9", forwarded), advice);
    assert_eq!(events_behind(&layer, "10.0.0.1", forwarded), [""; 0]);
}
