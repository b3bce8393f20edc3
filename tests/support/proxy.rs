//! A TCP proxy between a limiter and its server. A test makes it fail as a network fails.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use ratelimit_runtime::{Builder, RateLimiter};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Up,
    /// Breaks open connections, and accepts no new ones.
    Cut,
    /// Delivers requests, and drops replies. Connections stay open.
    RepliesLost,
    /// Delivers requests, and breaks a connection instead of delivering a reply.
    RepliesCut,
    /// Drops requests and replies. Connections stay open.
    Blackhole,
}

/// A proxy of one server, on a free port.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    latency: Duration,
    network: Mutex<Network>,
    connections: AtomicU32,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Starts a proxy of the server at a port of this machine. Each new connection starts to deliver after
    /// `delay`.
    pub fn start(server: u16, delay: Duration) -> Self {
        Self::new(server, delay, Duration::ZERO)
    }

    /// Starts a proxy through which a round trip takes `round_trip`, as to a distant server.
    pub fn with_latency(server: u16, round_trip: Duration) -> Self {
        Self::new(server, Duration::ZERO, round_trip / 2)
    }

    fn new(server: u16, delay: Duration, latency: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let shared = Arc::new(Shared {
            latency,
            network: Mutex::new(Network::Up),
            connections: AtomicU32::new(0),
            open: Mutex::default(),
        });
        let inner = Arc::clone(&shared);
        spawn(move || {
            for client in listener.incoming().flatten() {
                if inner.network() == Network::Cut {
                    continue;
                }
                inner.connections.fetch_add(1, Ordering::Relaxed);
                let shared = Arc::clone(&inner);
                spawn(move || {
                    sleep(delay);
                    shared.connect(client, server);
                });
            }
        });
        Self { port, shared }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn builder(&self) -> Builder {
        RateLimiter::builder().redis(self.url())
    }

    pub fn connections(&self) -> u32 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Changes what the network does. A connection that has lost bytes delivers nothing from then on.
    pub fn set(&self, network: Network) {
        *self.shared.network.lock().unwrap_or_else(PoisonError::into_inner) = network;
        if network == Network::Cut {
            let mut open = self.shared.open.lock().unwrap_or_else(PoisonError::into_inner);
            for stream in open.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

/// Starts a proxy of a server, and returns its port. For each connection, `requests` copies from the client to the
/// server, and `replies` back. A function that returns ends its connection.
pub fn relay(
    server: u16,
    requests: impl Fn(TcpStream, TcpStream) + Clone + Send + 'static,
    replies: impl Fn(TcpStream, TcpStream) + Clone + Send + 'static,
) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let connect = move |client: TcpStream| {
        let server = TcpStream::connect(("127.0.0.1", server))?;
        let (back, closed) = ((server.try_clone()?, client.try_clone()?), server.try_clone()?);
        let (requests, replies) = (requests.clone(), replies.clone());
        spawn(move || replies(back.0, back.1));
        spawn(move || {
            requests(client, server);
            closed.shutdown(Shutdown::Both)
        });
        std::io::Result::Ok(())
    };
    spawn(move || listener.incoming().flatten().try_for_each(connect));
    port
}

impl Shared {
    fn network(&self) -> Network {
        *self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(self: &Arc<Self>, client: TcpStream, port: u16) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { return };
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a socket");
        }
        let clone = |stream: &TcpStream| stream.try_clone().expect("a socket");
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // A socket that is shut down and kept uses up a file descriptor.
        open.retain(|stream| stream.peer_addr().is_ok());
        open.extend([clone(&client), clone(&server)]);
        drop(open);
        let back = (clone(&server), clone(&client));
        let shared = Arc::clone(self);
        spawn(move || shared.copy(back.0, &back.1, &[Network::Up]));
        self.copy(client, &server, &[Network::Up, Network::RepliesLost, Network::RepliesCut]);
    }

    fn copy(self: &Arc<Self>, mut from: TcpStream, to: &TcpStream, passes: &[Network]) {
        let (sender, receiver) = channel::<(Instant, Vec<u8>)>();
        let mut out = to.try_clone().expect("a socket");
        spawn(move || {
            for (due, bytes) in receiver {
                sleep(due.saturating_duration_since(Instant::now()));
                if out.write_all(&bytes).is_err() {
                    let _ = out.shutdown(Shutdown::Both);
                }
            }
        });
        let mut bytes = [0; 16_384];
        // A TCP stream has no gaps: after the first lost bytes, the connection delivers nothing.
        let mut lost = false;
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            let network = self.network();
            lost |= !passes.contains(&network);
            if lost && network == Network::RepliesCut {
                break;
            }
            if !lost {
                // The writing thread ends after this one, so the channel is open.
                let _ = sender.send((Instant::now() + self.latency, bytes[..length].to_vec()));
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
