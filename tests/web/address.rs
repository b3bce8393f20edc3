//! The client of a request: only the network and the trusted proxies choose it.

use std::net::{IpAddr, Ipv4Addr};

use http::HeaderValue;
use proptest::prelude::*;
use proptest::string::bytes_regex;
use ratelimit_runtime::web::ProxyHeader;

use crate::prelude::*;

const PROXY: &str = "10.0.0.1";

/// The client of a request from `peer` with these header lines.
fn client(clients: &Clients, peer: &str, name: &'static str, lines: &[&[u8]]) -> String {
    let peer: IpAddr = peer.parse().expect("an address");
    let mut request = Request::builder().extension(SocketAddr::new(peer, 4711));
    for line in lines {
        request = request.header(name, HeaderValue::from_bytes(line).expect("a header value"));
    }
    clients.identify(&request.body(()).expect("a request")).to_string()
}

fn behind() -> Clients {
    Clients::behind_proxies(["10.0.0.0/8", "2001:db8:ffff::/48", "192.0.2.1"]).expect("networks")
}

#[test]
fn identifies_the_last_hop_that_is_not_trusted() {
    // `ignores_what_the_client_sends` has the plain cases.
    for (peer, lines, expected) in [
        (PROXY, &["1.1.1.1, 203.0.113.7", "10.9.8.7, 192.0.2.1"][..], "203.0.113.7"),
        ("2001:db8:ffff::1", &["2001:db8::1:2:3:4"], "2001:db8::/64"),
        ("::ffff:10.0.0.1", &["::ffff:203.0.113.7"], "203.0.113.7"),
        // All hops are trusted: the first hop. No hop: the proxy.
        (PROXY, &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        (PROXY, &[], PROXY),
        // A hop that is not an address: the proxy that added it.
        (PROXY, &["203.0.113.7, unknown, 10.0.0.2"], "10.0.0.2"),
        // The peer is not a proxy: its headers are not read.
        ("192.0.2.2", &["1.1.1.1", "10.0.0.1"], "192.0.2.2"),
        ("::1", &["1.1.1.1", "10.0.0.1"], "::/64"),
        // A hop that is translated. A stranger behind a translator is no proxy, whatever IPv4 address that writes.
        (PROXY, &["64:ff9b::203.0.113.7"], "203.0.113.7"),
        ("64:ff9b::10.0.0.1", &["1.1.1.1"], "10.0.0.1"),
    ] {
        let lines: Vec<_> = lines.iter().map(|line| line.as_bytes()).collect();
        assert_eq!(
            client(&behind(), peer, "x-forwarded-for", &lines),
            expected,
            "{peer} {lines:?}"
        );
    }
}

#[test]
fn reads_only_one_header() {
    let forwarded = behind().header(ProxyHeader::Forwarded);
    let line = br#"for=1.1.1.1;host="a, for=6.6.6.6", For="[2001:db8:1::5]:80";proto=https"#;
    assert_eq!(client(&forwarded, PROXY, "forwarded", &[line]), "2001:db8:1::/64");
    assert_eq!(client(&forwarded, PROXY, "x-forwarded-for", &[b"1.1.1.1"]), PROXY);
    assert_eq!(client(&behind(), PROXY, "forwarded", &[line]), PROXY);
    assert_eq!(client(&Clients::direct(), PROXY, "x-forwarded-for", &[b"1.1.1.1"]), PROXY);
}

#[test]
fn identifies_an_ipv6_network_of_the_size_that_is_set() {
    for (bits, network) in [
        (0, "::/0"),
        (48, "2001:db8:1::/48"),
        (64, "2001:db8:1:2::/64"),
        (128, "2001:db8:1:2:3:4:5:6/128"),
    ] {
        let clients = Clients::direct().ipv6_prefix(bits);
        assert_eq!(client(&clients, "2001:db8:1:2:3:4:5:6", "x", &[]), network);
    }
}

/// A translator (NAT64) writes the IPv4 address of its client into the last bits of an IPv6 address.
#[test]
fn counts_translated_ipv4_clients_by_their_ipv4_address() {
    let with_prefixes = Clients::direct().nat64_prefix("2001:db8:64::/96").expect("a prefix");
    let with_prefixes = with_prefixes.nat64_prefix("2001:db8:65::/48").expect("another prefix");
    for (clients, peer, counted) in [
        (&Clients::direct(), "64:ff9b::203.0.113.7", "203.0.113.7"),
        (&Clients::direct(), "64:ff9b::203.0.113.8", "203.0.113.8"),
        // Next to the prefix.
        (&Clients::direct(), "64:ff9b:0:0:0:1:cb00:7107", "64:ff9b::/64"),
        (&Clients::direct(), "64:ff9b:1::203.0.113.7", "64:ff9b:1::/64"),
        (&with_prefixes, "2001:db8:64::203.0.113.7", "203.0.113.7"),
        (&with_prefixes, "2001:db8:65:cb00:71:700::", "203.0.113.7"),
        (&with_prefixes, "64:ff9b::203.0.113.7", "203.0.113.7"),
    ] {
        assert_eq!(client(clients, peer, "x", &[]), counted, "{peer}");
    }
    let error = Clients::direct().nat64_prefix("2001:db8:64::/95").expect_err("95 bits");
    assert!(error.to_string().contains("64 or 96 bits"), "{error}");
}

/// A request of a framework of which the library knows nothing.
#[test]
fn identifies_clients_by_a_peer_and_lines() {
    let lines = |name: &str| match name {
        "x-forwarded-for" => vec![&b"1.1.1.1"[..], b"203.0.113.7, 10.0.0.2"],
        _ => Vec::new(),
    };
    let of = |clients: Clients, peer: Option<&str>| {
        clients.identify_peer(peer.map(|peer| peer.parse().expect("an address")), lines).to_string()
    };
    assert_eq!(of(behind(), Some(PROXY)), "203.0.113.7");
    assert_eq!(of(behind(), Some("203.0.113.9")), "203.0.113.9");
    assert_eq!(of(behind(), None), "unknown");
    assert_eq!(of(behind().header(ProxyHeader::Forwarded), Some(PROXY)), PROXY);
    // A proxy behind a Unix socket is trusted only if that is set.
    assert_eq!(behind().identify_peer(None, lines).address(), None);
    assert_eq!(of(behind().behind_unix_socket(), None), "203.0.113.7");
    assert_eq!(of(Clients::direct().behind_unix_socket(), None), "10.0.0.2");
}

#[test]
fn reads_headers_with_one_address() {
    let behind = behind().header(ProxyHeader::OneAddress("x-any-name".into()));
    // The proxy has replaced what the client sent: its address is the client's, also in a trusted network.
    for (peer, lines, expected) in [
        (PROXY, &[&b"203.0.113.7"[..]][..], "203.0.113.7"),
        (PROXY, &[b"1.1.1.1", b"10.0.0.9"], "10.0.0.9"),
        (PROXY, &[b"1.1.1.1", b"10.0.0.9", b"not an address"], PROXY),
        ("203.0.113.9", &[b"1.1.1.1"], "203.0.113.9"),
    ] {
        assert_eq!(client(&behind, peer, "x-any-name", lines), expected, "{lines:?}");
    }
}

/// The extension that tests of axum set.
#[test]
fn reads_a_mocked_peer() {
    let mock = axum::extract::connect_info::MockConnectInfo(SocketAddr::from(([10, 0, 0, 1], 1)));
    let request = Request::builder().extension(mock).body(()).expect("a request");
    assert_eq!(Clients::direct().identify(&request).to_string(), PROXY);
}

/// Each client in a network that is too wide could choose its key.
#[test]
fn rejects_networks_that_are_too_wide_for_proxies() {
    for wrong in ["", "10.0.0", "10.0.0.0/33", "example.org", "10.0.0.0/8 "] {
        let error = Clients::behind_proxies([wrong]).expect_err(wrong).to_string();
        assert!(error.contains("neither an address nor a network"), "{error}");
    }
    for wide in ["0.0.0.0/0", "::/0", "::ffff:0.0.0.0/96", "10.0.0.0/1", "2000::/3"] {
        let error = Clients::behind_proxies(["10.0.0.1", wide]).expect_err(wide).to_string();
        assert!(error.starts_with(&format!("`{wide}` contains clients")), "{error}");
        assert!(error.contains("so they could choose their keys: write"), "{error}");
    }
    for widest in ["10.0.0.0/8", "fc00::/7"] {
        assert!(Clients::behind_proxies([widest]).is_ok(), "{widest}");
    }
    // A mapped network is one of IPv4.
    let mapped = Clients::behind_proxies(["::ffff:10.0.0.0/104"]).expect("a network");
    for (peer, expected) in [(PROXY, "203.0.113.7"), ("11.0.0.1", "11.0.0.1")] {
        assert_eq!(client(&mapped, peer, "x-forwarded-for", &[b"203.0.113.7"]), expected);
    }
}

/// A proxy can hide the port of its peer, and not its address (RFC 7239, section 6).
#[test]
fn reads_addresses_with_a_hidden_port() {
    let of = |line: &str| {
        let forwarded = behind().header(ProxyHeader::Forwarded);
        client(&forwarded, PROXY, "forwarded", &[line.as_bytes()])
    };
    assert_eq!(of(r#"for=1.1.1.1, for="203.0.113.7:_abc""#), "203.0.113.7");
    assert_eq!(of(r#"for="[2001:db8:1::5]:_x.y-Z_9""#), "2001:db8:1::/64");
    assert_eq!(of(r#"for="10.0.0.2:_lb";by="_edge", for="10.0.0.3:_lb""#), "10.0.0.2");
    // Neither a port nor a hidden one.
    for wrong in ["203.0.113.7:_", "203.0.113.7:_a b", "203.0.113.7:abc", "_abc", "_abc:_x"] {
        assert_eq!(of(&format!(r#"for="{wrong}""#)), PROXY, "{wrong}");
    }
}

/// A header line of a client, with more special characters than random bytes have.
const LINE: &str = concat!(
    r#"(for=|for="|for=6\.6\.6\.6|6\.6\.6\.6|, |10\.0\.0\.1|"|\\"|"#,
    r#"[",;=\\\[\]:. _forFOR0-9]|[ -~]|(?-u:[\x80-\xff])){0,24}"#,
);

#[tokio::test]
async fn is_the_same_key_as_its_display_text() {
    let (limiter, limit) = (RateLimiter::embedded(), Limit::fixed("text", 1, MINUTE));
    for address in ["1.2.3.4", "0.0.0.0", "255.255.255.255", "100.20.3.0", "2001:db8::1"] {
        let peer = SocketAddr::new(address.parse().expect("an address"), 1);
        let request = Request::builder().extension(peer).body(()).expect("a request");
        let client = Clients::direct().identify(&request);
        assert!(limiter.check(&limit, client, 1).await.is_ok());
        assert!(limiter.check(&limit, client.to_string(), 1).await.is_err(), "{client}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// For any bytes that a client sends before the hops of the proxies, in one line or several.
    #[test]
    fn ignores_what_the_client_sends(
        sent in proptest::collection::vec(bytes_regex(LINE).expect("a regex"), 0..3),
        real: Ipv4Addr,
        port: Option<u16>,
        hops in 0..3_usize,
        joined: bool,
        quoted: bool,
    ) {
        prop_assume!(real.octets()[0] != 10 && real != Ipv4Addr::new(192, 0, 2, 1));
        let node = port.map_or(real.to_string(), |port| format!("{real}:{port}"));
        let quote = if quoted { "\"" } else { "" };
        let more = ["", ";proto=https;host=\"a,b\"", ";by=10.0.0.1"][hops];
        let forwarded = format!("for={quote}{node}{quote}{more}{}", ", for=10.0.0.2".repeat(hops));
        for (name, clients, added) in [
            ("x-forwarded-for", behind(), format!("{node}{}", ", 10.0.0.2".repeat(hops))),
            ("forwarded", behind().header(ProxyHeader::Forwarded), forwarded),
        ] {
            let client = |peer: &str, lines: &[Vec<u8>]| {
                let lines: Vec<_> = lines.iter().map(|line| &line[..]).collect();
                client(&clients, peer, name, &lines)
            };
            // A proxy that adds no hop, and a direct connection.
            client(PROXY, &sent);
            prop_assert_eq!(client(&real.to_string(), &sent), real.to_string());
            let mut lines = sent.clone();
            let before = if joined { lines.pop() } else { None };
            let before = before.map(|before| [before, b", ".to_vec()].concat()).unwrap_or_default();
            lines.push([&before, added.as_bytes()].concat());
            prop_assert_eq!(client(PROXY, &lines), real.to_string());
        }
    }
}
