//! The client of a request, also behind proxies: its IPv4 address or its IPv6 network. `hops` parses the headers of
//! proxies, `setup` warns of proxies that are set up wrongly.
//!
//! A translator (NAT64) names its IPv4 clients to an IPv6 server by IPv4 addresses inside IPv6 addresses (RFC 6052).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::{Extensions, HeaderMap, HeaderValue, Request, request};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::hops::ProxyHeader;
use super::setup;
use crate::key::Client;
use crate::one_or_many::OneOrMany;
use crate::printing::error_of_text;

/// Identifies clients by their addresses.
///
/// Without trusted proxies, the client is the peer of the connection, and headers are not read. Behind [trusted
/// proxies](Self::behind_proxies), the client is the last hop that is not one of them. The client itself can have sent
/// the earlier hops in the header. `Clients` does not read these hops, so a client cannot choose its key. All ports of
/// one address share one key, and so do all addresses of one IPv6 network. An IPv4 client that a translator (NAT64)
/// brings to an IPv6 server is identified by its IPv4 address.
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
///
/// Give it to the middleware of the framework. Then [`Client::of`] and the extractor [`Client`] use it in key functions
/// and handlers.
///
/// # Wrong settings
///
/// If the settings do not fit the proxies, many clients share one key. A `tracing` event warns once per process of each
/// of these cases, and says what to write:
///
/// - The server does not provide the address of the peer.
/// - The peer has a private address, is not trusted, and sends a header of a proxy. Only the first 1,000 requests of
///   such peers are looked at.
/// - A trusted proxy sends a request without the header.
/// - A request has a header of a proxy, and [`Client::of`] or the extractor [`Client`] finds no `Clients`. They cannot
///   see the `Clients` of a key function. Only the first 1,000 requests without `Clients` are looked at.
#[derive(Clone, Debug)]
pub struct Clients {
    trusted: Arc<[IpNet]>,
    trusts_unix_sockets: bool,
    header: ProxyHeader,
    ipv6_prefix: u8,
    /// The prefixes of translators beside the well-known one.
    nat64_prefixes: Arc<[Ipv6Net]>,
}

/// The fewest leading bits of a network of proxies: those of `fc00::/7`, the widest private network.
const FEWEST_BITS: u8 = 7;

impl Clients {
    /// Identifies the client as the peer of the connection. Headers are not read.
    #[must_use]
    pub fn direct() -> Self {
        Self {
            trusted: Arc::default(),
            trusts_unix_sockets: false,
            header: ProxyHeader::XForwardedFor,
            ipv6_prefix: Client::IPV6_PREFIX,
            nat64_prefixes: Arc::default(),
        }
    }

    /// Trusts proxies with these addresses or in these networks, such as `192.0.2.1`, `10.0.0.0/8` or
    /// `2001:db8::/32`. Each proxy must add the address of its peer to `X-Forwarded-For`, or to [another
    /// header](Self::header).
    ///
    /// List only proxies, not networks with clients: a client in a trusted network can choose its key.
    ///
    /// # Errors
    ///
    /// [`ParseNetworkError`] if a text is neither an address nor a network, or a network of fewer than 7 bits, such as
    /// `0.0.0.0/0`: it contains clients.
    pub fn behind_proxies<N: AsRef<str>>(
        proxies: impl IntoIterator<Item = N>,
    ) -> Result<Self, ParseNetworkError> {
        let network = |text: &str| {
            let address = text.parse().map(|address: IpAddr| address.into());
            match address.or_else(|_| text.parse()).map(canonical) {
                Ok(network) if network.prefix_len() >= FEWEST_BITS => Ok(network),
                Ok(_) => Err(ParseNetworkError::new(text, HAS_CLIENTS)),
                Err(_) => Err(ParseNetworkError::new(text, IS_NO_NETWORK)),
            }
        };
        let trusted = proxies.into_iter().map(|proxy| network(proxy.as_ref()));
        Ok(Self { trusted: trusted.collect::<Result<_, _>>()?, ..Self::direct() })
    }

    /// Trusts connections without an address, such as those of a proxy through a Unix socket.
    ///
    /// Do not use it with a server that also listens on an address and does not provide the address of the peer: each
    /// client could then choose its key.
    #[must_use]
    pub fn behind_unix_socket(mut self) -> Self {
        self.trusts_unix_sockets = true;
        self
    }

    /// Sets the header that the proxies write; [`ProxyHeader::XForwardedFor`] unless set. No other header is read,
    /// because a proxy that writes one header forwards the others as the client sent them.
    #[must_use]
    pub fn header(mut self, mut header: ProxyHeader) -> Self {
        if let ProxyHeader::OneAddress(name) = &mut header {
            name.to_mut().make_ascii_lowercase();
        }
        self.header = header;
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

    /// Adds the prefix of a translator (NAT64) that brings IPv4 clients to this IPv6 server, such as
    /// `2001:db8:64::/96`. Its clients are then identified by their IPv4 addresses. Without it, all of them share the
    /// key of one IPv6 network. The prefix that all translators share, `64:ff9b::/96`, need not be added.
    ///
    /// The addresses of [trusted proxies](Self::behind_proxies) are compared before the translation.
    ///
    /// ```
    /// use http::Request;
    /// use ratelimit_runtime::web::Clients;
    /// use std::net::{Ipv6Addr, SocketAddr};
    ///
    /// let clients = Clients::direct().nat64_prefix("2001:db8:64::/96")?;
    ///
    /// let peer: Ipv6Addr = "2001:db8:64::203.0.113.7".parse()?;
    /// let request = Request::builder().extension(SocketAddr::from((peer, 4711))).body(()).unwrap();
    /// assert_eq!(clients.identify(&request).to_string(), "203.0.113.7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ParseNetworkError`] if the text is not an IPv6 network of 32, 40, 48, 56, 64 or 96 bits (RFC 6052).
    pub fn nat64_prefix(mut self, prefix: &str) -> Result<Self, ParseNetworkError> {
        let prefix =
            nat64_prefix(prefix).ok_or_else(|| ParseNetworkError::new(prefix, IS_NO_PREFIX))?;
        self.nat64_prefixes = self.nat64_prefixes.iter().copied().chain([prefix]).collect();
        Ok(self)
    }

    /// Returns the client of `request`. A [`Client`] is a key.
    ///
    /// If the server does not provide the address of the peer, all clients share one key. With axum, serve with
    /// `into_make_service_with_connect_info::<SocketAddr>()`; with hyper, add a `SocketAddr` to the extensions of the
    /// request; behind a Unix socket, see [`behind_unix_socket`](Self::behind_unix_socket).
    pub fn identify<R: IncomingRequest>(&self, request: &R) -> Client {
        self.identify_peer(request.peer(), |name| request.lines(name))
    }

    /// Returns the client of a request of any framework: `peer` is the address of its connection, and `lines` returns
    /// the lines of the header with this name, in lower case, in their order.
    ///
    /// ```
    /// use http::{HeaderMap, HeaderValue};
    /// use ratelimit_runtime::web::Clients;
    ///
    /// let clients = Clients::behind_proxies(["10.0.0.0/8"])?;
    ///
    /// let (peer, mut headers) = ([10, 0, 0, 1].into(), HeaderMap::new());
    /// headers.insert("x-forwarded-for", HeaderValue::from_static("203.0.113.7"));
    /// let lines = |name: &str| headers.get_all(name).iter().map(HeaderValue::as_bytes);
    /// assert_eq!(clients.identify_peer(Some(peer), lines).to_string(), "203.0.113.7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn identify_peer<'a, L>(&self, peer: Option<IpAddr>, lines: impl Fn(&str) -> L) -> Client
    where
        L: IntoIterator<Item = &'a [u8]>,
    {
        let peer = peer.map(|peer| peer.to_canonical());
        let address = self.address(peer, |name| lines(name).into_iter().collect());
        let address = address.map(|address| translated(address, &self.nat64_prefixes));
        Client::new(address, self.ipv6_prefix)
    }

    fn address<'a>(
        &self,
        peer: Option<IpAddr>,
        lines: impl Fn(&str) -> OneOrMany<&'a [u8]>,
    ) -> Option<IpAddr> {
        let has = |name: &str| !lines(name).is_empty();
        let is_trusted = peer.map_or(self.trusts_unix_sockets, |peer| self.trusts(peer));
        if !is_trusted {
            setup::check_untrusted_peer(peer, true, has);
            return peer;
        }
        let mut nearest = peer;
        for line in lines(self.header.name()).into_iter().rev() {
            for hop in self.header.hops(line) {
                // A proxy that hides its peer is the client.
                let Some(hop) = hop else { return nearest };
                nearest = Some(hop);
                if !self.trusts(hop) || matches!(self.header, ProxyHeader::OneAddress(_)) {
                    return nearest;
                }
            }
        }
        if nearest == peer {
            setup::check_missing_header(peer, &self.header, has);
        }
        nearest
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

impl Default for Clients {
    fn default() -> Self {
        Self::direct()
    }
}

impl Client {
    /// Returns the client of `request`, identified by the [`Clients`] of the application: those of the middleware that
    /// handles the request, with axum also those in a layer `Extension(clients)`, with actix-web also those in
    /// `web::Data`. If there are none, the client is the peer of the connection, as for [`Clients::direct`], and the
    /// first request with a header of a proxy causes a warning.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ratelimit_runtime::Limit;
    /// use ratelimit_runtime::web::{Client, Clients, RateLimitLayer};
    ///
    /// const ALL: Limit = Limit::sliding("all", 100, Duration::from_secs(60));
    ///
    /// let layer: RateLimitLayer = RateLimitLayer::new()
    ///     .clients(Clients::behind_proxies(["10.0.0.0/8"])?)
    ///     .limit(ALL, Client::of);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn of<R: IncomingRequest>(request: &R) -> Self {
        if let Some(clients) = request.clients() {
            return clients.identify(request);
        }
        let peer = request.peer().map(|peer| peer.to_canonical());
        setup::check_untrusted_peer(peer, false, |name| request.lines(name).next().is_some());
        Self::new(peer, Self::IPV6_PREFIX)
    }
}

/// The error of [`Clients::behind_proxies`] and [`Clients::nat64_prefix`] for a text that they do not accept.
#[derive(Clone, PartialEq, Eq)]
pub struct ParseNetworkError(String);

const IS_NO_NETWORK: &str =
    "is neither an address nor a network: write `192.0.2.1`, `10.0.0.0/8` or `2001:db8::/32`";
const HAS_CLIENTS: &str = "contains clients, so they could choose their keys: write the addresses or the networks of \
                           the proxies alone, such as `192.0.2.1`, `10.0.0.0/8` or `2001:db8::/32`";
const IS_NO_PREFIX: &str = "is not the prefix of a translator, which has 32, 40, 48, 56, 64 or 96 bits: write \
                            `2001:db8:64::/96`";

impl ParseNetworkError {
    fn new(text: &str, problem: &'static str) -> Self {
        Self(format!("`{text}` {problem}"))
    }
}

error_of_text!(ParseNetworkError);

/// A request whose client [`Clients`] can identify: a request of the `http` crate, actix-web or tonic. This trait is
/// sealed.
pub trait IncomingRequest: RequestAccess {}

impl<R: RequestAccess> IncomingRequest for R {}

#[allow(unreachable_pub, reason = "it seals a public trait")]
pub trait RequestAccess {
    /// Returns the address of the peer of the connection.
    fn peer(&self) -> Option<IpAddr>;

    /// Returns the lines of the header called `name`.
    fn lines<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> + use<'a, Self>;

    /// Returns a value in the extensions of the request.
    fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T>;

    /// Returns the `Clients` that the application has set for the request.
    fn clients(&self) -> Option<Clients> {
        self.extension()
    }
}

/// A request with the types of the `http` crate.
trait HttpRequest {
    fn fields(&self) -> (&HeaderMap, &Extensions);
}

impl HttpRequest for request::Parts {
    fn fields(&self) -> (&HeaderMap, &Extensions) {
        (&self.headers, &self.extensions)
    }
}

impl<B> HttpRequest for Request<B> {
    fn fields(&self) -> (&HeaderMap, &Extensions) {
        (self.headers(), self.extensions())
    }
}

#[cfg(feature = "tonic")]
impl<M> HttpRequest for tonic::Request<M> {
    fn fields(&self) -> (&HeaderMap, &Extensions) {
        (self.metadata().as_ref(), self.extensions())
    }
}

impl<R: HttpRequest> RequestAccess for R {
    fn peer(&self) -> Option<IpAddr> {
        peer(self.fields().1)
    }

    fn lines<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> + use<'a, R> {
        self.fields().0.get_all(name).iter().map(HeaderValue::as_bytes)
    }

    fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.fields().1.get().cloned()
    }
}

/// Returns the address of the peer, from the extension that the server of each framework adds.
fn peer(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(ip) = super::axum::peer(extensions) {
        return Some(ip);
    }
    #[cfg(feature = "tonic")]
    if let Some(ip) = super::tonic::peer(extensions) {
        return Some(ip);
    }
    extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

/// Parses the prefix of a translator; `None` if a translator cannot have it.
fn nat64_prefix(text: &str) -> Option<Ipv6Net> {
    let prefix: Ipv6Net = text.parse().ok()?;
    [32, 40, 48, 56, 64, 96].contains(&prefix.prefix_len()).then_some(prefix)
}

/// Returns the IPv4 address of a client that a translator with one of these prefixes brings, and any other address as
/// it is. [`Client`](super::Client) knows the prefix that all translators share.
fn translated(address: IpAddr, prefixes: &[Ipv6Net]) -> IpAddr {
    let IpAddr::V6(mapped) = address else { return address };
    let Some(prefix) = prefixes.iter().find(|prefix| prefix.contains(&mapped)) else {
        return address;
    };
    // The octet after the first 64 bits is never used.
    let octets = mapped.octets();
    let mut places = (usize::from(prefix.prefix_len()) / 8..).filter(|place| *place != 8);
    let mut plain = [0; 4];
    plain.fill_with(|| places.next().map_or(0, |place| octets[place]));
    Ipv4Addr::from(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 6052, section 2.4.
    #[test]
    fn finds_the_address_behind_a_prefix_of_each_length() {
        for (prefix, address) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ] {
            let prefix = nat64_prefix(prefix).expect("a prefix");
            let address: IpAddr = address.parse().expect("an address");
            assert_eq!(translated(address, &[prefix]).to_string(), "192.0.2.33", "{address}");
        }
    }

    #[test]
    fn rejects_what_a_translator_cannot_have() {
        for wrong in ["", "64:ff9b::", "2001:db8::/33", "2001:db8::/128", "10.0.0.0/8"] {
            assert_eq!(nat64_prefix(wrong), None, "{wrong}");
        }
    }
}
