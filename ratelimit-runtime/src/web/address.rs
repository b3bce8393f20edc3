//! The client of a request, also behind proxies: its IPv4 address or its IPv6 network. `hops` parses the headers of
//! proxies.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Once};

use ipnet::{IpNet, Ipv4Net};

use super::hops::ForwardingHeader;
use crate::key::{Key, KeyWriter};

/// Identifies clients by their addresses.
///
/// Without trusted proxies, the client is the peer of the connection, and headers are not read. Behind [trusted
/// proxies](Self::behind_proxies), the client is the last hop that is not one of them. The client itself can have sent
/// the earlier hops in the header. `Clients` does not read these hops, so a client cannot choose its key. All ports of
/// one address share one key, and so do all addresses of one IPv6 network.
///
/// ```
/// use http::Request;
/// use ratelimit_runtime::web::Clients;
/// use std::net::SocketAddr;
///
/// let clients = Clients::behind_proxies(["10.0.0.0/8", "2001:db8:ffff::/48"])?;
///
/// let request = Request::builder()
///     .extension(SocketAddr::from(([10, 0, 0, 1], 4711))) // the peer, a proxy
///     .header("x-forwarded-for", "1.1.1.1, 203.0.113.7, 10.0.0.2") // the first hop is forged
///     .body(())
///     .unwrap();
/// assert_eq!(clients.identify(&request).to_string(), "203.0.113.7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Clients {
    trusted: Arc<[IpNet]>,
    header: ForwardingHeader,
    ipv6_prefix: u8,
}

impl Clients {
    /// Identifies the client as the peer of the connection. Headers are not read.
    #[must_use]
    pub fn direct() -> Self {
        Self { trusted: Arc::default(), header: ForwardingHeader::XForwardedFor, ipv6_prefix: 64 }
    }

    /// Trusts proxies with these addresses or in these networks, such as `192.0.2.1`, `10.0.0.0/8` or
    /// `2001:db8::/32`. Each proxy must add the address of its peer to `X-Forwarded-For`.
    ///
    /// List only proxies, not networks with clients: a client in a trusted network can choose its key.
    ///
    /// # Errors
    ///
    /// [`InvalidNetwork`] if a text is neither an address nor a network.
    pub fn behind_proxies<N: AsRef<str>>(
        proxies: impl IntoIterator<Item = N>,
    ) -> Result<Self, InvalidNetwork> {
        let network = |text: &str| match text.parse::<IpAddr>() {
            Ok(address) => Ok(IpNet::from(address.to_canonical())),
            Err(_) => text.parse().map(canonical).map_err(|_| InvalidNetwork(text.to_owned())),
        };
        let trusted = proxies.into_iter().map(|proxy| network(proxy.as_ref()));
        Ok(Self { trusted: trusted.collect::<Result<_, _>>()?, ..Self::direct() })
    }

    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`. Only one of the two headers is read, because a proxy
    /// that writes one header forwards the other header as the client sent it.
    #[must_use]
    pub fn forwarded_header(mut self) -> Self {
        self.header = ForwardingHeader::Forwarded;
        self
    }

    /// Sets the number of leading bits of an IPv6 address that identify a client; 64 unless set: this is the network of
    /// a household or a machine. Use 56 or 48 if one customer has several such networks.
    ///
    /// # Panics
    ///
    /// If `bits` is above 128.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        assert!(bits <= 128, "an IPv6 address has 128 bits");
        self.ipv6_prefix = bits;
        self
    }

    /// Returns the client of `request`. A [`Client`] is a key.
    ///
    /// If the server does not provide the address of the peer, all clients share one key, and a `tracing`
    /// event warns once per process. With axum, serve with `into_make_service_with_connect_info::<SocketAddr>()`; with
    /// hyper, add a `SocketAddr` to the extensions of the request.
    pub fn identify<R: IncomingRequest>(&self, request: &R) -> Client {
        Client { address: self.address(request), ipv6_prefix: self.ipv6_prefix }
    }

    fn address<R: IncomingRequest>(&self, request: &R) -> Option<IpAddr> {
        let Some(peer) = request.peer() else {
            warn_of_no_peer();
            return None;
        };
        let mut nearest = peer.to_canonical();
        if !self.trusts(nearest) {
            return Some(nearest);
        }
        for line in request.lines(self.header.name()).rev() {
            for hop in self.header.hops(line) {
                // A proxy that hides its peer is the client.
                let Some(hop) = hop else { return Some(nearest) };
                nearest = hop;
                if !self.trusts(hop) {
                    return Some(nearest);
                }
            }
        }
        Some(nearest)
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&address))
    }
}

/// Converts a network of IPv4-mapped IPv6 addresses to IPv4, as `IpAddr::to_canonical` does for an address.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else { return network };
    let plain = mapped.addr().to_ipv4_mapped().zip(mapped.prefix_len().checked_sub(96));
    let plain = plain.and_then(|(address, bits)| Ipv4Net::new(address, bits).ok());
    plain.map_or(network, IpNet::V4)
}

fn warn_of_no_peer() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "the server does not provide the address of the peer, so all clients share one key: with \
             axum, serve with `into_make_service_with_connect_info::<SocketAddr>()`; with hyper, add a \
             `SocketAddr` to the extensions of the request"
        );
    });
}

impl Default for Clients {
    fn default() -> Self {
        Self::direct()
    }
}

/// A client, identified by [`Clients`].
///
/// Its text is also the text of its key. It is an IPv4 address such as `203.0.113.7`, or the network of an IPv6
/// address, such as `2001:db8:1:2::/64`. It is `unknown` if the server does not provide the address of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    address: Option<IpAddr>,
    ipv6_prefix: u8,
}

impl Client {
    /// Returns the full address; `None` if the server does not provide it.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            None => f.write_str("unknown"),
            Some(IpAddr::V4(address)) => address.fmt(f),
            Some(IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.ipv6_prefix)).unwrap_or(0);
                let network = Ipv6Addr::from_bits(address.to_bits() & mask);
                write!(f, "{network}/{}", self.ipv6_prefix)
            }
        }
    }
}

impl Key for Client {
    fn write(&self, out: &mut KeyWriter<'_>) {
        // The same text as `Display`, without its formatting: most addresses are IPv4.
        let Some(IpAddr::V4(address)) = self.address else { return out.display(self) };
        let (mut text, mut length) = ([0; 15], 0);
        for (index, octet) in address.octets().into_iter().enumerate() {
            if index > 0 {
                text[length] = b'.';
                length += 1;
            }
            let mut digits = itoa::Buffer::new();
            let digits = digits.format(octet).as_bytes();
            text[length..length + digits.len()].copy_from_slice(digits);
            length += digits.len();
        }
        out.bytes(&text[..length]);
    }
}

/// The error of [`Clients::behind_proxies`] for a text that is neither an address nor a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidNetwork(String);

impl fmt::Display for InvalidNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is neither an address nor a network: write `192.0.2.1`, `10.0.0.0/8` or \
             `2001:db8::/32`",
            self.0
        )
    }
}

impl std::error::Error for InvalidNetwork {}

/// A request whose client [`Clients`] can identify: a request of the `http` crate, actix-web or tonic. This trait is
/// sealed.
pub trait IncomingRequest: sealed::RequestAccess {}

impl<R: sealed::RequestAccess> IncomingRequest for R {}

pub(super) mod sealed {
    use std::net::IpAddr;

    #[allow(unreachable_pub, reason = "it seals a public trait")]
    pub trait RequestAccess {
        /// Returns the address of the peer of the connection.
        fn peer(&self) -> Option<IpAddr>;

        /// Returns the lines of the header called `name`.
        fn lines(&self, name: &'static str) -> impl DoubleEndedIterator<Item = &[u8]>;
    }
}

#[cfg(feature = "tower")]
mod requests {
    use std::net::{IpAddr, SocketAddr};

    use http::request::Parts;
    use http::{Extensions, HeaderMap, HeaderValue, Request};

    use super::sealed::RequestAccess;

    impl RequestAccess for Parts {
        fn peer(&self) -> Option<IpAddr> {
            peer(&self.extensions)
        }

        fn lines(&self, name: &'static str) -> impl DoubleEndedIterator<Item = &[u8]> {
            lines(&self.headers, name)
        }
    }

    impl<B> RequestAccess for Request<B> {
        fn peer(&self) -> Option<IpAddr> {
            peer(self.extensions())
        }

        fn lines(&self, name: &'static str) -> impl DoubleEndedIterator<Item = &[u8]> {
            lines(self.headers(), name)
        }
    }

    fn lines<'a>(
        headers: &'a HeaderMap,
        name: &'static str,
    ) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        headers.get_all(name).iter().map(HeaderValue::as_bytes)
    }

    /// Returns the address of the peer, from the extension that the server of each framework adds.
    fn peer(extensions: &Extensions) -> Option<IpAddr> {
        #[cfg(feature = "axum")]
        if let Some(ip) = crate::web::axum::peer(extensions) {
            return Some(ip);
        }
        #[cfg(feature = "tonic")]
        if let Some(ip) = crate::web::tonic::peer(extensions) {
            return Some(ip);
        }
        extensions.get::<SocketAddr>().map(SocketAddr::ip)
    }
}
