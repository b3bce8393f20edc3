//! A network between a limiter and its server, which can be told to fail.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{sleep, spawn};
use std::time::Duration;

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
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let shared = Arc::new(Shared {
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
        let clone = |stream: &TcpStream| stream.try_clone().expect("a socket");
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.extend([clone(&client), clone(&server)]);
        drop(open);
        let back = (clone(&server), clone(&client));
        let shared = Arc::clone(self);
        spawn(move || shared.copy(back.0, back.1, &[Network::Up]));
        self.copy(client, server, &[Network::Up, Network::Deaf]);
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, passes: &[Network]) {
        let mut bytes = [0; 16_384];
        // What a connection missed it misses for good: from then on it leads nowhere.
        let mut lost = false;
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            lost |= !passes.contains(&self.network());
            if !lost && to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
