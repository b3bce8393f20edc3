//! IPv4 addresses inside IPv6 addresses: how a translator (NAT64) names its IPv4 clients to an IPv6 server (RFC 6052).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::Ipv6Net;

/// The IPv6 prefix of a translator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nat64Prefix {
    bits: u128,
    length: u8,
}

impl Nat64Prefix {
    /// Parses a network; `None` if a translator cannot have it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let network: Ipv6Net = text.parse().ok()?;
        let length = network.prefix_len();
        let has_length = [32, 40, 48, 56, 64, 96].contains(&length);
        has_length.then(|| Self { bits: network.network().to_bits(), length })
    }

    /// Returns the IPv4 address in `address`; `None` if `address` does not have this prefix.
    fn find(&self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let mask = u128::MAX << (128 - u32::from(self.length));
        if address.to_bits() & mask != self.bits {
            return None;
        }
        // The octet after the first 64 bits is never used.
        let octets = address.octets();
        let places = (usize::from(self.length) / 8..).filter(|place| *place != 8);
        let mut plain = [0; 4];
        for (octet, place) in plain.iter_mut().zip(places) {
            *octet = octets[place];
        }
        Some(plain.into())
    }
}

/// Returns the IPv4 address of a client that a translator with one of these prefixes brings, and any other address as
/// it is. [`Client`](super::Client) knows the prefix that all translators share.
pub(super) fn translated(address: IpAddr, prefixes: &[Nat64Prefix]) -> IpAddr {
    let IpAddr::V6(mapped) = address else { return address };
    prefixes.iter().find_map(|prefix| prefix.find(mapped)).map_or(address, IpAddr::V4)
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
            let prefix = Nat64Prefix::parse(prefix).expect("a prefix");
            let address: IpAddr = address.parse().expect("an address");
            assert_eq!(translated(address, &[prefix]).to_string(), "192.0.2.33", "{address}");
        }
    }

    #[test]
    fn rejects_what_a_translator_cannot_have() {
        for wrong in ["", "64:ff9b::", "2001:db8::/33", "2001:db8::/128", "10.0.0.0/8"] {
            assert_eq!(Nat64Prefix::parse(wrong), None, "{wrong}");
        }
    }
}
