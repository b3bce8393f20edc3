//! A network between a limiter and its server, which can be told to fail.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// What the network does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Network {
    /// Everything passes.
    Up,
    /// Open connections break, and no new one is made.
    Cut,
    /// What is sent arrives; what comes back is lost.
    Deaf,
    /// Nothing passes, and nobody is told.
    Silent,
}

/// Stands before a server, on a free port.
pub struct Proxy {
    /// The port it listens on.
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    /// How long bytes take, in each direction.
    latency: Duration,
    network: AtomicU8,
    connections: AtomicU32,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Stands before the server at a port of this machine. The first bytes of each connection are
    /// kept back for `delay`.
    ///
    /// # Panics
    ///
    /// When no port is free.
    #[must_use]
    pub fn start(server: u16, delay: Duration) -> Self {
        Self::new(server, delay, Duration::ZERO)
    }

    /// Stands before a server that is far away: a round trip takes that long.
    ///
    /// # Panics
    ///
    /// When no port is free.
    #[must_use]
    pub fn far(server: u16, round_trip: Duration) -> Self {
        Self::new(server, Duration::ZERO, round_trip / 2)
    }

    fn new(server: u16, delay: Duration, latency: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let shared = Arc::new(Shared {
            latency,
            network: AtomicU8::new(Network::Up as u8),
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

    /// How many connections were made.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Changes what the network does. What was lost stays lost.
    pub fn set(&self, network: Network) {
        self.shared.network.store(network as u8, Ordering::SeqCst);
        if network == Network::Cut {
            let mut open = self.shared.open.lock().unwrap_or_else(PoisonError::into_inner);
            for stream in open.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Shared {
    fn network(&self) -> Network {
        match self.network.load(Ordering::SeqCst) {
            0 => Network::Up,
            1 => Network::Cut,
            2 => Network::Deaf,
            _ => Network::Silent,
        }
    }

    fn connect(self: &Arc<Self>, client: TcpStream, port: u16) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { return };
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a socket");
        }
        let clone = |stream: &TcpStream| stream.try_clone().expect("a socket");
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.extend([clone(&client), clone(&server)]);
        drop(open);
        let back = (clone(&server), clone(&client));
        let shared = Arc::clone(self);
        spawn(move || shared.copy(back.0, &back.1, &[Network::Up]));
        self.copy(client, &server, &[Network::Up, Network::Deaf]);
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
        // What a connection missed it misses for good: from then on it leads nowhere.
        let mut lost = false;
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            lost |= !passes.contains(&self.network());
            if !lost {
                // The thread that writes ends after this one.
                let _ = sender.send((Instant::now() + self.latency, bytes[..length].to_vec()));
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
