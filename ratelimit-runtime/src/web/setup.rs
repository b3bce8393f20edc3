//! Warns of proxies that are set up wrongly, so that many clients share one key. Each event occurs once per process.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};

use super::address::IncomingRequest;
use super::hops::ProxyHeader;
use crate::sticky::StickyFlag;

/// The number of requests of private peers whose headers are looked at. A wrong setting shows in the first of them.
const LOOKED_AT: u32 = 1_000;

/// Warns if the peer is unknown, or seems to be a proxy.
pub(super) fn check_untrusted_peer<R: IncomingRequest>(peer: Option<IpAddr>, request: &R) {
    static NO_PEER: StickyFlag = StickyFlag::new();
    static UNTRUSTED: StickyFlag = StickyFlag::new();
    static REQUESTS: AtomicU32 = AtomicU32::new(0);
    let Some(peer) = peer else {
        if NO_PEER.set() {
            tracing::warn!(
                "the server does not provide the address of the peer, so all clients share one key: with axum, serve \
                 with `into_make_service_with_connect_info::<SocketAddr>()`; with hyper, add a `SocketAddr` to the \
                 extensions of the request; in tests of actix-web, set `TestRequest::peer_addr`; for a proxy that \
                 connects through a Unix socket, write `.behind_unix_socket()`"
            );
        }
        return;
    };
    if !is_private(peer) || REQUESTS.load(Ordering::Relaxed) >= LOOKED_AT {
        return;
    }
    REQUESTS.fetch_add(1, Ordering::Relaxed);
    if let Some(header) = header_of(request)
        && UNTRUSTED.set()
    {
        let name = header.name();
        let choice =
            if header == ProxyHeader::XForwardedFor { String::new() } else { choice(header) };
        tracing::warn!(
            "a request with `{name}` came from {peer}, which is not a trusted proxy, so all clients behind it share \
             one key: if it is your proxy, write `Clients::behind_proxies([\"{peer}\"])?{choice}`, or its network"
        );
    }
}

/// Warns of a request of a trusted proxy without the header.
pub(super) fn check_missing_header<R: IncomingRequest>(
    peer: Option<IpAddr>,
    expected: ProxyHeader,
    request: &R,
) {
    static MISSING: StickyFlag = StickyFlag::new();
    if MISSING.is_set() || request.lines(expected.name()).next().is_some() || !MISSING.set() {
        return;
    }
    let peer = peer.map_or_else(|| "through a Unix socket".into(), |peer| format!("from {peer}"));
    let expected = expected.name();
    if let Some(other) = header_of(request) {
        let (name, choice) = (other.name(), choice(other));
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
fn header_of<R: IncomingRequest>(request: &R) -> Option<ProxyHeader> {
    let mut headers = ProxyHeader::ALL.into_iter();
    headers.find(|header| request.lines(header.name()).next().is_some())
}

/// Returns how to choose a header.
fn choice(header: ProxyHeader) -> String {
    format!(".header(ProxyHeader::{header:?})")
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
