//! Free ports for the servers of a test.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that operating systems choose for connections and for servers without a port of their own.
/// The bus of a cluster node is 10,000 ports higher, also below them.
const FIRST: u16 = 10_000;

const PORTS: u16 = 10_000;

/// Returns a port on which nothing listens, neither over IPv4 nor over IPv6.
///
/// A port that the operating system chooses can be the port of a connection before the server listens on it, or
/// while the server restarts. A port of this function cannot, and each call returns another one.
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test programs that run at the same time begin at different ports.
    let start = std::process::id().wrapping_mul(127);
    (0..PORTS)
        .map(|_| {
            let step = start.wrapping_add(u32::from(NEXT.fetch_add(1, Ordering::Relaxed)));
            FIRST + (step % u32::from(PORTS)) as u16
        })
        .find(|port| is_free(*port))
        .expect("a free port")
}

fn is_free(port: u16) -> bool {
    // The port 0 tells whether there is IPv6 at all.
    let has_ipv6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
        && (!has_ipv6 || TcpListener::bind((Ipv6Addr::LOCALHOST, port)).is_ok())
}
