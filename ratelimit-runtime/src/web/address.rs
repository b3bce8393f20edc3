//! Who sent a request: the client's address, also behind proxies, cut to the network that one client
//! has.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Once};

use ipnet::{IpNet, Ipv4Net};

use super::hops::Field;
use crate::key::{Key, KeyWriter};

/// Tells clients apart by their addresses.
///
/// Without proxies, or behind unknown ones, the client is the peer of the connection, whatever headers
/// say. Behind [proxies that are trusted](Self::behind_proxies), it is the last hop that is not one of them: what
/// stands before it in the header is the client's own word, and is not read. So a client cannot choose
/// its key, and neither ports nor the many addresses of one IPv6 network make new ones.
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
///     .header("x-forwarded-for", "1.1.1.1, 203.0.113.7, 10.0.0.2") // the first one is forged
///     .body(())
///     .unwrap();
/// assert_eq!(clients.identify(&request).to_string(), "203.0.113.7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Clients {
    trusted: Arc<[IpNet]>,
    field: Field,
    ipv6_prefix: u8,
}

impl Clients {
    /// The client is the peer of the connection. Headers are not read.
    #[must_use]
    pub fn direct() -> Self {
        Self { trusted: Arc::default(), field: Field::XForwardedFor, ipv6_prefix: 64 }
    }

    /// Requests come through proxies in these networks, which add the address of their peer to
    /// `X-Forwarded-For`: `10.0.0.0/8`, `192.0.2.1`, `2001:db8::/32`.
    ///
    /// Name the proxies only, not the networks that clients are in: who is trusted is believed.
    ///
    /// # Errors
    ///
    /// [`InvalidNetwork`] for what is neither an address nor a network.
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

    /// The proxies write `Forwarded` (RFC 7239) instead. Only the field that they write is read: they
    /// pass the other one on as the client has sent it.
    #[must_use]
    pub fn forwarded_header(mut self) -> Self {
        self.field = Field::Forwarded;
        self
    }

    /// How many bits of an IPv6 address tell clients apart; 64 unless set, as a home or a machine has a
    /// network of that size, and 56 or 48 where a customer has many of these.
    ///
    /// # Panics
    ///
    /// Above 128.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        assert!(bits <= 128, "an IPv6 address has 128 bits");
        self.ipv6_prefix = bits;
        self
    }

    /// The client that sent `request`: a key.
    ///
    /// Where the server does not say who the peer is, all clients are one, and a `tracing` event warns of
    /// it once. With axum, serve with
    /// `into_make_service_with_connect_info::<SocketAddr>()`; with hyper, add a `SocketAddr` to the
    /// extensions of the request.
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
        for line in request.lines(self.field.name()).rev() {
            for hop in self.field.hops(line) {
                // A proxy that hides who sent it speaks for them.
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

/// A network of IPv4 addresses written as IPv6 is one of IPv4, as such an address is.
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
            "the server does not say who the peer of a connection is, so all clients are one: with axum, \
             serve with `into_make_service_with_connect_info::<SocketAddr>()`; with hyper, add a \
             `SocketAddr` to the extensions of the request"
        );
    });
}

impl Default for Clients {
    fn default() -> Self {
        Self::direct()
    }
}

/// A client, told apart by [`Clients`].
///
/// As a key it is what its `Display` says: `203.0.113.7`, or the network of an IPv6 address:
/// `2001:db8:1:2::/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    address: Option<IpAddr>,
    ipv6_prefix: u8,
}

impl Client {
    /// The address as it is, not cut to a network; `None` where the server does not say.
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
        // As `Display` says it, and quicker: most clients are of this kind.
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

/// What is neither an address nor a network.
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

/// A request that came over a connection: of the `http` crate, of actix, of tonic. It is sealed.
pub trait IncomingRequest: sealed::IncomingRequest {}

impl<R: sealed::IncomingRequest> IncomingRequest for R {}

pub(super) mod sealed {
    use std::net::IpAddr;

    #[allow(unreachable_pub, reason = "it seals a public trait")]
    pub trait IncomingRequest {
        /// Who holds the other end of the connection.
        fn peer(&self) -> Option<IpAddr>;

        /// The lines of the header called `name`.
        fn lines(&self, name: &'static str) -> impl DoubleEndedIterator<Item = &[u8]>;
    }
}

#[cfg(feature = "tower")]
mod requests {
    use std::net::{IpAddr, SocketAddr};

    use http::request::Parts;
    use http::{Extensions, HeaderMap, HeaderValue, Request};

    use super::sealed::IncomingRequest;

    impl IncomingRequest for Parts {
        fn peer(&self) -> Option<IpAddr> {
            peer(&self.extensions)
        }

        fn lines(&self, name: &'static str) -> impl DoubleEndedIterator<Item = &[u8]> {
            lines(&self.headers, name)
        }
    }

    impl<B> IncomingRequest for Request<B> {
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

    /// As the server of each framework says it.
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
