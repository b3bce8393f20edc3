//! [`Client`]: a key for the address of a client.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Key, KeyWriter};

/// The prefix with which all translators (NAT64) name their IPv4 clients: `64:ff9b::/96` (RFC 6052).
const NAT64: u128 = 0x0064_ff9b << 96;

/// A client, identified by its IPv4 address or by its IPv6 network. All addresses of one network are one key, because
/// one client has all of them.
///
/// Its text is also the text of its key. It is an IPv4 address such as `203.0.113.7`, or the network of an IPv6
/// address, such as `2001:db8:1:2::/64`. On the web, `web::Clients` identifies the client of a request, also behind
/// proxies; the text is `unknown` if the server does not provide the address of the peer.
///
/// ```
/// use std::net::IpAddr;
/// use ratelimit_runtime::Client;
///
/// let client = |address: &str| Client::from(address.parse::<IpAddr>().expect("an address"));
/// assert_eq!(client("203.0.113.7").to_string(), "203.0.113.7");
/// assert_eq!(client("2001:db8:1:2:3:4:5:6").to_string(), "2001:db8:1:2::/64");
/// // An IPv4 client of an IPv6 server.
/// assert_eq!(client("::ffff:203.0.113.7"), client("203.0.113.7"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    address: Option<IpAddr>,
    ipv6_prefix: u8,
}

impl Client {
    /// The bits of the network of a household or a machine.
    pub(crate) const IPV6_PREFIX: u8 = 64;

    pub(crate) fn new(address: Option<IpAddr>, ipv6_prefix: u8) -> Self {
        Self { address: address.map(canonical), ipv6_prefix }
    }

    /// Returns the full address, of a translated client its IPv4 address; `None` if the server does not provide it.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }
}

impl From<IpAddr> for Client {
    /// Identifies an IPv6 client by its network of 64 bits.
    fn from(address: IpAddr) -> Self {
        Self::new(Some(address), Self::IPV6_PREFIX)
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
        // The same text in one value, without the machinery of `Display`: most addresses are IPv4 (`benches/all --
        // layer`).
        let Some(IpAddr::V4(address)) = self.address else { return out.display(self) };
        let (mut text, mut length) = ([b'.'; 16], 0);
        for octet in address.octets() {
            for (least, unit) in [(100, 100), (10, 10), (0, 1)] {
                if octet >= least {
                    text[length] = b'0' + octet / unit % 10;
                    length += 1;
                }
            }
            length += 1;
        }
        out.bytes(&text[..length - 1]);
    }
}

/// Returns the IPv4 address of a client whose IPv6 address contains one, and any other address as it is.
fn canonical(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if address.to_bits() >> 32 == NAT64 >> 32 => {
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() as u32))
        }
        address => address,
    }
}
