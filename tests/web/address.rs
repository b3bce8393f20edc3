//! The client of a request: only the network and the trusted proxies choose it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::{HeaderValue, Request};
use proptest::prelude::*;
use ratelimit_runtime::web::{Clients, ProxyHeader};
use ratelimit_runtime::{Limit, RateLimiter};

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
    let of = |peer, lines: &[&str]| {
        let lines: Vec<_> = lines.iter().map(|line| line.as_bytes()).collect();
        client(&behind(), peer, "x-forwarded-for", &lines)
    };
    assert_eq!(of(PROXY, &["203.0.113.7"]), "203.0.113.7");
    assert_eq!(of(PROXY, &["1.1.1.1, 203.0.113.7:9999"]), "203.0.113.7");
    assert_eq!(of(PROXY, &["1.1.1.1, 203.0.113.7, 10.9.8.7, 192.0.2.1"]), "203.0.113.7");
    assert_eq!(of(PROXY, &["1.1.1.1", "203.0.113.7", "10.9.8.7"]), "203.0.113.7");
    assert_eq!(of("2001:db8:ffff::1", &["2001:db8::1:2:3:4"]), "2001:db8::/64");
    assert_eq!(of("::ffff:10.0.0.1", &["::ffff:203.0.113.7"]), "203.0.113.7");
    // All hops are trusted: the first hop. No hop: the proxy.
    assert_eq!(of(PROXY, &["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
    assert_eq!(of(PROXY, &[]), PROXY);
    // A hop that is not an address: the proxy that added it.
    assert_eq!(of(PROXY, &["203.0.113.7, unknown, 10.0.0.2"]), "10.0.0.2");
    // The peer is not a proxy: its headers are not read.
    for peer in ["203.0.113.9", "192.0.2.2", "::1"] {
        let cut = if peer == "::1" { "::/64" } else { peer };
        assert_eq!(of(peer, &["1.1.1.1", "10.0.0.1"]), cut);
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
    let of = |bits| {
        let clients = Clients::direct().ipv6_prefix(bits);
        client(&clients, "2001:db8:1:2:3:4:5:6", "x", &[])
    };
    assert_eq!(of(0), "::/0");
    assert_eq!(of(48), "2001:db8:1::/48");
    assert_eq!(of(64), "2001:db8:1:2::/64");
    assert_eq!(of(128), "2001:db8:1:2:3:4:5:6/128");
}

/// A translator (NAT64) writes the IPv4 address of its client into the last bits of an IPv6 address.
#[test]
fn counts_translated_ipv4_clients_by_their_ipv4_address() {
    let direct = |peer| client(&Clients::direct(), peer, "x", &[]);
    assert_eq!(direct("64:ff9b::203.0.113.7"), "203.0.113.7");
    assert_eq!(direct("64:ff9b::203.0.113.8"), "203.0.113.8");
    // Next to the prefix.
    assert_eq!(direct("64:ff9b:0:0:0:1:cb00:7107"), "64:ff9b::/64");
    assert_eq!(direct("64:ff9b:1::203.0.113.7"), "64:ff9b:1::/64");
    let hop = client(&behind(), PROXY, "x-forwarded-for", &[b"64:ff9b::203.0.113.7"]);
    assert_eq!(hop, "203.0.113.7");

    let clients = Clients::direct().nat64_prefix("2001:db8:64::/96").expect("a prefix");
    let clients = clients.nat64_prefix("2001:db8:65::/48").expect("another prefix");
    let of = |peer| client(&clients, peer, "x", &[]);
    assert_eq!(of("2001:db8:64::203.0.113.7"), "203.0.113.7");
    assert_eq!(of("2001:db8:65:cb00:71:700::"), "203.0.113.7");
    assert_eq!(of("64:ff9b::203.0.113.7"), "203.0.113.7");
    let error = Clients::direct().nat64_prefix("2001:db8:64::/95").expect_err("95 bits");
    assert!(error.to_string().contains("64 or 96 bits"), "{error}");
}

/// A stranger behind a translator is no proxy, whatever IPv4 address the translator writes.
#[test]
fn a_translated_address_is_not_a_trusted_proxy() {
    let of = |peer| client(&behind(), peer, "x-forwarded-for", &[b"1.1.1.1"]);
    assert_eq!(of("64:ff9b::10.0.0.1"), "10.0.0.1");
    assert_eq!(of(PROXY), "1.1.1.1");
}

/// A request of a framework of which the library knows nothing.
#[test]
fn identifies_clients_by_a_peer_and_lines() {
    let lines = |name: &str| match name {
        "x-forwarded-for" => vec![&b"1.1.1.1"[..], b"203.0.113.7, 10.0.0.2"],
        _ => Vec::new(),
    };
    let of = |clients: Clients, peer: Option<&str>| {
        let peer = peer.map(|peer| peer.parse().expect("an address"));
        clients.identify_peer(peer, lines).to_string()
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
    for name in ["x-real-ip", "fly-client-ip", "x-any-name"] {
        let behind = || behind().header(ProxyHeader::OneAddress(name.to_owned().into()));
        let of = |lines: &[&[u8]]| client(&behind(), PROXY, name, lines);
        assert_eq!(of(&[b"203.0.113.7"]), "203.0.113.7");
        // The proxy has replaced what the client sent: its address is the client's, also in a trusted network.
        assert_eq!(of(&[b"1.1.1.1", b"10.0.0.9"]), "10.0.0.9");
        assert_eq!(of(&[b"1.1.1.1", b"10.0.0.9", b"not an address"]), PROXY);
        assert_eq!(client(&behind(), "203.0.113.9", name, &[b"1.1.1.1"]), "203.0.113.9");
    }
}

/// The extension that tests of axum set.
#[test]
fn reads_a_mocked_peer() {
    let peer = SocketAddr::from(([10, 0, 0, 1], 1));
    let mock = axum::extract::connect_info::MockConnectInfo(peer);
    let request = Request::builder().extension(mock).body(()).expect("a request");
    assert_eq!(Clients::direct().identify(&request).to_string(), PROXY);
}

#[test]
fn rejects_what_is_neither_an_address_nor_a_network() {
    for wrong in ["", "10.0.0", "10.0.0.0/33", "example.org", "10.0.0.0/8 "] {
        let error = Clients::behind_proxies([wrong]).expect_err(wrong).to_string();
        assert!(error.contains("neither an address nor a network"), "{error}");
    }
}

/// Each client in such a network could choose its key.
#[test]
fn rejects_networks_that_are_too_wide_for_proxies() {
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
    let of = |peer| client(&mapped, peer, "x-forwarded-for", &[b"203.0.113.7"]);
    assert_eq!((of(PROXY).as_str(), of("11.0.0.1").as_str()), ("203.0.113.7", "11.0.0.1"));
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

const WORDS: [&str; 8] =
    ["for=", "for=\"", "for=6.6.6.6", "6.6.6.6", ", ", "10.0.0.1", "\"", "\\\""];

/// A header line of a client, with more special characters than random bytes have.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        8 => prop::sample::select(&b"\",;=\\[]:. _forFOR0123456789"[..]),
        1 => 0x20..=0x7e_u8,
        1 => 0x80..=0xff_u8,
    ];
    let word = prop::sample::select(&WORDS[..]);
    let part = prop_oneof![proptest::collection::vec(byte, 0..4), word.prop_map(Into::into)];
    proptest::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

fn address() -> impl Strategy<Value = Ipv4Addr> {
    any::<u32>()
        .prop_map(Ipv4Addr::from)
        .prop_filter("a client", |ip| ip.octets()[0] != 10 && *ip != Ipv4Addr::new(192, 0, 2, 1))
}

#[tokio::test]
async fn is_the_same_key_as_its_display_text() {
    const LIMIT: Limit = Limit::fixed("text", 1, Duration::from_secs(60));
    let limiter = RateLimiter::embedded();
    for address in ["1.2.3.4", "0.0.0.0", "255.255.255.255", "100.20.3.0", "2001:db8::1"] {
        let peer = SocketAddr::new(address.parse().expect("an address"), 1);
        let request = Request::builder().extension(peer).body(()).expect("a request");
        let client = Clients::direct().identify(&request);
        assert!(limiter.check(&LIMIT, client, 1).await.is_ok());
        assert!(limiter.check(&LIMIT, client.to_string(), 1).await.is_err(), "{client}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// For any bytes that a client sends before the hops of the proxies, in one line or several.
    #[test]
    fn ignores_what_the_client_sends(
        sent in proptest::collection::vec(line(), 0..3),
        real in address(),
        port in any::<Option<u16>>(),
        hops in 0..3_usize,
        joined in any::<bool>(),
        quoted in any::<bool>(),
    ) {
        let node = port.map_or(real.to_string(), |port| format!("{real}:{port}"));
        let quote = if quoted { "\"" } else { "" };
        let more = ["", ";proto=https;host=\"a,b\"", ";by=10.0.0.1"][hops];
        let added = [
            ("x-forwarded-for", behind(), node.clone(), ", 10.0.0.2".repeat(hops)),
            (
                "forwarded",
                behind().header(ProxyHeader::Forwarded),
                format!("for={quote}{node}{quote}{more}"),
                ", for=10.0.0.2".repeat(hops),
            ),
        ];
        for (name, clients, added, hops) in added {
            // A proxy that adds no hop, and a direct connection.
            let only: Vec<_> = sent.iter().map(|line| &line[..]).collect();
            client(&clients, PROXY, name, &only);
            prop_assert_eq!(client(&clients, &real.to_string(), name, &only), real.to_string());
            let mut lines = sent.clone();
            let mut last = format!("{added}{hops}").into_bytes();
            if joined && let Some(before) = lines.pop() {
                last = [&before[..], b", ", &last].concat();
            }
            lines.push(last);
            let lines: Vec<_> = lines.iter().map(|line| &line[..]).collect();
            prop_assert_eq!(client(&clients, PROXY, name, &lines), real.to_string());
        }
    }
}
