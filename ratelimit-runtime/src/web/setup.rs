//! Warns of proxies that are set up wrongly, so that many clients share one key. Each event occurs once per process.
//! `has` tells whether a request has a header.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::hops::ProxyHeader;

/// The number of requests whose headers are looked at, for each event. A wrong setting shows in the first of them.
const LOOKED_AT: u32 = 1_000;

/// Warns if the peer is unknown, or can be a proxy that is not trusted. In an application that `has_clients`, a peer
/// with a public address is no proxy.
pub(super) fn check_untrusted_peer(
    peer: Option<IpAddr>,
    has_clients: bool,
    has: impl Fn(&str) -> bool,
) {
    static REQUESTS: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];
    let requests = &REQUESTS[usize::from(has_clients)];
    let Some(peer) = peer else { return report_unknown_peer() };
    if has_clients && !is_private(peer) {
        return;
    }
    // Not counted further, so that it cannot overflow.
    if requests.load(Ordering::Relaxed) >= LOOKED_AT {
        return;
    }
    requests.fetch_add(1, Ordering::Relaxed);
    let Some(header) = header_of(has) else { return };
    if requests.swap(LOOKED_AT + 1, Ordering::Relaxed) > LOOKED_AT {
        return;
    }
    let (name, clients) = (header.name(), clients(peer, &header));
    if has_clients {
        tracing::warn!(
            "a request with `{name}` came from {peer}, which is not a trusted proxy, so all clients behind it share \
             one key: if it is your proxy, and writes that header itself, write `{clients}`, or its network"
        );
    } else {
        tracing::warn!(
            "a request with `{name}` came from {peer}, and the layer has no `Clients`, so all clients behind {peer} \
             share one key: if it is your proxy, and writes that header itself, write `.clients({clients})` on the \
             layer, also if a key function calls `identify`; if clients connect directly, \
             `.clients(Clients::direct())`; without a layer, use `Extension(clients)` in axum, \
             `web::Data::new(clients)` in actix-web"
        );
    }
}

fn report_unknown_peer() {
    static REPORTED: OnceLock<()> = OnceLock::new();
    if REPORTED.set(()).is_ok() {
        tracing::warn!(
            "the server does not provide the address of the peer, so all clients share one key: with axum, serve \
             with `into_make_service_with_connect_info::<SocketAddr>()`; with hyper, add a `SocketAddr` to the \
             extensions of the request; in tests of actix-web, set `TestRequest::peer_addr`; for a proxy that \
             connects through a Unix socket, write `.clients(Clients::direct().behind_unix_socket())` on the layer"
        );
    }
}

/// Warns of a request of a trusted proxy without the header.
pub(super) fn check_missing_header(
    peer: Option<IpAddr>,
    expected: &ProxyHeader,
    has: impl Fn(&str) -> bool,
) {
    static MISSING: OnceLock<()> = OnceLock::new();
    if MISSING.get().is_some() || has(expected.name()) || MISSING.set(()).is_err() {
        return;
    }
    let peer = peer.map_or_else(|| "through a Unix socket".into(), |peer| format!("from {peer}"));
    let expected = expected.name();
    if let Some(other) = header_of(has) {
        let (name, choice) = (other.name(), choice(&other));
        tracing::warn!(
            "a request came {peer}, a trusted proxy, without `{expected}` but with `{name}`, so all clients behind it \
             share one key: if the proxy writes that header itself, and does not pass on what clients send, \
             write `{choice}`"
        );
    } else {
        tracing::warn!(
            "a request came {peer}, a trusted proxy, without `{expected}`, so all clients behind it share one key: \
             let the proxy add the header. If only probes of the proxy itself come without it, nothing is to be done"
        );
    }
}

/// Returns a header of a proxy that the request has.
fn header_of(has: impl Fn(&str) -> bool) -> Option<ProxyHeader> {
    ProxyHeader::KNOWN.into_iter().find(|header| has(header.name()))
}

/// Returns the `Clients` for a proxy that writes `header`.
fn clients(peer: IpAddr, header: &ProxyHeader) -> String {
    let choice = if *header == ProxyHeader::XForwardedFor { String::new() } else { choice(header) };
    format!("Clients::behind_proxies([\"{peer}\"])?{choice}")
}

/// Returns how to choose a header.
fn choice(header: &ProxyHeader) -> String {
    match header {
        ProxyHeader::OneAddress(name) => {
            format!(".header(ProxyHeader::OneAddress(\"{name}\".into()))")
        }
        header => format!(".header(ProxyHeader::{header:?})"),
    }
}

/// Returns whether an address belongs to a private network, as those of proxies often do.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            // Addresses that providers share among their customers (RFC 6598).
            let is_shared = address.to_bits() >> 22 == Ipv4Addr::new(100, 64, 0, 0).to_bits() >> 22;
            address.is_private() || address.is_loopback() || address.is_link_local() || is_shared
        }
        IpAddr::V6(address) => {
            address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local()
        }
    }
}
