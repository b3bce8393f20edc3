//! The addresses that proxies add to a request, nearest first.
//!
//! A proxy appends to `X-Forwarded-For` and `Forwarded`, so they are parsed from their end. Text that the client sent
//! comes earlier and cannot change how later text is parsed, whatever quotes and commas it has.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::headers::split;

/// The header in which trusted proxies write the address of the client: see
/// [`Clients::header`](super::Clients::header).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyHeader {
    /// `X-Forwarded-For`: each proxy appends the address of its peer. Most proxies and load balancers write it.
    XForwardedFor,
    /// `Forwarded` (RFC 7239): each proxy appends an element with `for=`.
    Forwarded,
    /// A header that the proxy replaces with one address, with or without a port. Only for a proxy that always writes
    /// it: another one passes on what the client sent.
    ///
    /// | header | written by |
    /// | --- | --- |
    /// | `x-real-ip` | nginx with `proxy_set_header X-Real-IP $remote_addr` |
    /// | `cf-connecting-ip` | Cloudflare |
    /// | `true-client-ip` | Akamai and Cloudflare, where it is turned on |
    /// | `fly-client-ip` | Fly.io |
    /// | `cloudfront-viewer-address` | the CDN of AWS, with an origin request policy that adds it |
    /// | `x-envoy-external-address` | Envoy with `use_remote_address`, if it calls no client internal |
    ///
    /// All customers of a content delivery network share its addresses: only for a service that admits connections of
    /// your own sites alone.
    ///
    /// ```
    /// use ratelimit_runtime::web::{Clients, ProxyHeader};
    ///
    /// let fly = ProxyHeader::OneAddress("fly-client-ip".into());
    /// let clients = Clients::behind_proxies(["172.16.0.0/12"])?.header(fly);
    /// # let _ = clients;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    OneAddress(Cow<'static, str>),
}

/// A header whose address always has a port, also an IPv6 address, without brackets.
const CLOUDFRONT: &str = "cloudfront-viewer-address";

impl ProxyHeader {
    /// The headers that proxies write, to tell an application which one it has not set.
    pub(super) const KNOWN: [Self; 8] = [
        Self::XForwardedFor,
        Self::Forwarded,
        Self::OneAddress(Cow::Borrowed("x-real-ip")),
        Self::OneAddress(Cow::Borrowed("cf-connecting-ip")),
        Self::OneAddress(Cow::Borrowed("true-client-ip")),
        Self::OneAddress(Cow::Borrowed("fly-client-ip")),
        Self::OneAddress(Cow::Borrowed(CLOUDFRONT)),
        Self::OneAddress(Cow::Borrowed("x-envoy-external-address")),
    ];

    pub(super) fn name(&self) -> &str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
            Self::OneAddress(name) => name,
        }
    }

    /// Returns the hops of one line, the last first; `None` for a hop without an address.
    pub(super) fn hops<'a>(
        &self,
        line: &'a [u8],
    ) -> impl Iterator<Item = Option<IpAddr>> + use<'a> {
        let (is_quoted, has_port) =
            (*self == Self::Forwarded, self.name().eq_ignore_ascii_case(CLOUDFRONT));
        let mut rest = Some(line);
        let elements = std::iter::from_fn(move || {
            let (before, last) = split_last(rest?, is_quoted);
            rest = before;
            Some(last.trim_ascii())
        });
        // Empty elements of a list are ignored (RFC 9110, section 5.6.1).
        elements.filter(|element| !element.is_empty()).map(move |element| {
            if is_quoted {
                return node(element);
            }
            let text = std::str::from_utf8(element).ok()?;
            address(if has_port { text.rsplit_once(':')?.0 } else { text })
        })
    }
}

/// Splits `text` at the last comma: returns the text before it, if there is one, and the text after it. If strings can
/// be `quoted`, a comma in a string does not count.
fn split_last(text: &[u8], quoted: bool) -> (Option<&[u8]>, &[u8]) {
    let mut is_inside = false;
    for at in (0..text.len()).rev() {
        if quoted && text[at] == b'"' {
            let escapes = text[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
            // A quote is escaped only in a string; an opening quote follows `=`.
            is_inside ^= !is_inside || escapes.is_multiple_of(2);
        } else if !is_inside && text[at] == b',' {
            return (Some(&text[..at]), &text[at + 1..]);
        }
    }
    (None, text)
}

/// Returns the address of `for=` in an element of `Forwarded`; `None` unless there is exactly one.
fn node(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in split(element, b';') {
        let (name, value) = std::str::from_utf8(pair).ok()?.split_once('=')?;
        if name.eq_ignore_ascii_case("for") && found.replace(value).is_some() {
            return None;
        }
    }
    let value = found?;
    let bare = value.strip_prefix('"').map_or(Some(value), |value| value.strip_suffix('"'))?;
    address(bare)
}

/// Parses an address with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`,
/// `[2001:db8::1]:80`. A port can be hidden: `192.0.2.1:_a`. Names of hidden hops, such as `unknown` and `_a`, are not
/// addresses.
fn address(text: &str) -> Option<IpAddr> {
    let text = match text.rsplit_once(':') {
        Some((address, port)) if is_hidden(port) => address,
        _ => text,
    };
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    text.parse::<IpAddr>()
        .ok()
        .or_else(|| bracketed().map(IpAddr::V6))
        .or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
        .map(|address| address.to_canonical())
}

/// Returns whether a port is hidden (RFC 7239, section 6.3).
fn is_hidden(port: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    port.strip_prefix('_').is_some_and(|name| !name.is_empty() && name.bytes().all(is_plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(header: &ProxyHeader, line: &str) -> Vec<String> {
        let text = |hop: Option<IpAddr>| hop.map_or("?".to_owned(), |hop| hop.to_string());
        header.hops(line.as_bytes()).map(text).collect()
    }

    #[test]
    fn reads_x_forwarded_for_from_its_end() {
        let hops = |line| hops(&ProxyHeader::XForwardedFor, line).join(" ");
        assert_eq!(hops("203.0.113.7"), "203.0.113.7");
        assert_eq!(hops("a, 1.2.3.4 ,\t5.6.7.8:90"), "5.6.7.8 1.2.3.4 ?");
        assert_eq!(hops("2001:db8::1, [2001:db8::2], [2001:db8::3]:443"), {
            "2001:db8::3 2001:db8::2 2001:db8::1"
        });
        assert_eq!(hops("::ffff:1.2.3.4"), "1.2.3.4");
        assert_eq!(hops(",, 1.2.3.4,,"), "1.2.3.4");
        assert_eq!(hops("\"1.2.3.4\", 1.2.3, 01.2.3.4, fe80::1%eth0, 1.2.3.4:x"), "? ? ? ? ?");
        assert_eq!(hops(""), "");
    }

    #[test]
    fn reads_forwarded_from_its_end() {
        let hops = |line| hops(&ProxyHeader::Forwarded, line).join(" ");
        // The examples of RFC 7239, sections 4 and 6.
        assert_eq!(hops(r#"for="_gazonk""#), "?");
        assert_eq!(hops(r#"For="[2001:db8:cafe::17]:4711""#), "2001:db8:cafe::17");
        assert_eq!(hops("for=192.0.2.60;proto=http;by=203.0.113.43"), "192.0.2.60");
        assert_eq!(hops("for=192.0.2.43, for=198.51.100.17"), "198.51.100.17 192.0.2.43");
        assert_eq!(hops(r#"for="192.0.2.43:47011""#), "192.0.2.43");
        assert_eq!(hops("for=unknown, by=203.0.113.43"), "? ?");
        // `for` twice, or not a list of pairs.
        assert_eq!(hops("for=1.2.3.4;for=5.6.7.8, for, for=1.2.3.4;x"), "? ? ?");
        // A pair can be empty.
        assert_eq!(hops("for=1.2.3.4;, ;for=5.6.7.8, for=9.9.9.9;;proto=http"), {
            "9.9.9.9 5.6.7.8 1.2.3.4"
        });
        // Separators in a string do not count.
        assert_eq!(hops(r#"for=1.2.3.4;host="a,b;c\",d", for=5.6.7.8"#), "5.6.7.8 1.2.3.4");
    }

    #[test]
    fn an_address_of_cloudfront_has_a_port() {
        let header = ProxyHeader::OneAddress("CloudFront-Viewer-Address".into());
        let hop = |line| hops(&header, line).join(" ");
        assert_eq!(hop("203.0.113.7:46532"), "203.0.113.7");
        assert_eq!(hop("2001:db8:1:2:3:4:5:6:443"), "2001:db8:1:2:3:4:5:6");
        // With the port, it would be another address.
        assert_eq!(hop("2001:db8:1::5:6:7:1234"), "2001:db8:1::5:6:7");
        assert_eq!(hop("2001"), "?");
    }

    #[test]
    fn earlier_text_does_not_change_how_later_text_is_parsed() {
        for before in [r#"for=""#, r#"for="\"#, r#"for="x";for=6.6.6.6;a=""#, r"\", "\"\\\""] {
            for added in ["for=5.6.7.8", r#"for="5.6.7.8""#, r#"for="5.6.7.8";host="a,b""#] {
                let line = format!("{before}, {added}");
                assert_eq!(hops(&ProxyHeader::Forwarded, &line)[0], "5.6.7.8", "{line}");
            }
        }
    }
}
