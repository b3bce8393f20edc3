//! Connections to a server over TCP, TLS or a Unix socket.
//!
//! The streams are made here, and not by the client library, so that a [`Link`] sees what passes.

use std::io;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, RedisError};
use socket2::{SockRef, Socket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};

use super::address::Target;
use super::link::{Link, Pulse, Watched};
use super::primary::PrimaryAddress;

/// How long an attempt to connect may take. Longer than a decision: one that is slow to connect
/// runs into its deadline, the attempt goes on, and a later one finds the connection.
pub(super) const CONNECT: Duration = Duration::from_secs(1);

/// Logging in takes a round trip. Where that is longer, a command does not wait until the server has
/// acknowledged the one before. Where it is shorter, the wait is short, and commands share packets
/// (`cargo bench --bench all -- redis`).
const NEAR: Duration = Duration::from_millis(1);

/// Connects, logs in, and drives the connection in a task of this runtime. `primary` is what the
/// Sentinels call the server, if they were asked.
pub(super) async fn connect_to(
    target: &Target,
    primary: Option<PrimaryAddress>,
) -> Result<Link, RedisError> {
    timeout(CONNECT, open(target, primary))
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

async fn open(target: &Target, primary: Option<PrimaryAddress>) -> Result<Link, RedisError> {
    match target.address() {
        ConnectionAddr::Tcp(host, port) => {
            let (stream, socket) = tcp(host, *port).await?;
            log_in(target, stream, socket, primary).await
        }
        #[cfg(feature = "tls")]
        ConnectionAddr::TcpTls { host, port, .. } => {
            let (stream, socket) = tcp(host, *port).await?;
            let stream = target.encrypt(host, stream).await?;
            log_in(target, stream, socket, primary).await
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => {
            let stream = UnixStream::connect(path).await?;
            let socket = SockRef::from(&stream).try_clone()?;
            log_in(target, stream, socket, primary).await
        }
        _ => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<(TcpStream, Socket)> {
    let stream = TcpStream::connect((host, port)).await?;
    let socket = SockRef::from(&stream).try_clone()?;
    Ok((stream, socket))
}

async fn log_in(
    target: &Target,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    socket: Socket,
    primary: Option<PrimaryAddress>,
) -> Result<Link, RedisError> {
    let pulse = Pulse::new();
    let stream = Watched::new(stream, pulse.clone());
    // The deadline of a decision covers its reply; no second one here.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let began = Instant::now();
    let (connection, driver) =
        MultiplexedConnection::new_with_config(target.login(), stream, config).await?;
    if began.elapsed() > NEAR {
        // A Unix socket has no such option, and needs none.
        let _ = socket.set_tcp_nodelay(true);
    }
    Ok(Link::new(connection, driver, pulse, socket, primary))
}
