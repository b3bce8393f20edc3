//! Wrong settings of proxies: each is reported once per process, with what to write. So this is the only test of its
//! process.

use std::net::{IpAddr, SocketAddr};

use http::Request;
use ratelimit_runtime::web::{Clients, ProxyHeader};
use support::log::Log;

/// Identifies the client of a request from `peer` with one header, twice. Returns the events.
fn events(clients: &Clients, peer: Option<&str>, header: Option<&str>) -> Vec<String> {
    let mut request = Request::builder();
    if let Some(peer) = peer {
        let peer: IpAddr = peer.parse().expect("an address");
        request = request.extension(SocketAddr::new(peer, 4711));
    }
    if let Some(name) = header {
        request = request.header(name, "203.0.113.7");
    }
    let request = request.body(()).expect("a request");
    let log = Log::default();
    let format =
        tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(log.writer());
    tracing::subscriber::with_default(format.finish(), || {
        for _ in 0..2 {
            clients.identify(&request);
        }
    });
    let text = log.text();
    text.lines().map(ToOwned::to_owned).collect()
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
        let events = events(clients, Some(peer), header);
        assert!(events.is_empty(), "{peer} with {header:?}: {events:?}");
    }

    let once = |clients, peer, header, advice: &str| {
        let all = events(clients, peer, header);
        assert!(all.len() == 1 && all[0].contains("WARN") && all[0].contains(advice), "{all:#?}");
        let again = events(clients, peer, header);
        assert!(again.is_empty(), "{again:?}");
    };
    once(&direct, None, None, "`into_make_service_with_connect_info::<SocketAddr>()`");
    let advice =
        r#"write `Clients::behind_proxies(["192.168.0.1"])?.header(ProxyHeader::Forwarded)`"#;
    once(&direct, Some("192.168.0.1"), Some("forwarded"), advice);
    let advice = "write `.header(ProxyHeader::XForwardedFor)`";
    let cloudflare = behind.clone().header(ProxyHeader::CfConnectingIp);
    once(&cloudflare, Some("10.0.0.1"), Some("x-forwarded-for"), advice);
}
