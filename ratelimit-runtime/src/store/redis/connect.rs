//! Connections to a server over TCP, TLS or a Unix socket.
//!
//! This file opens the streams, instead of the client library, so that a [`Connection`] can record what they
//! send and receive.

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
use super::connection::{Activity, Connection, RecordedStream};
use super::primary::PrimaryAddress;

/// How long an attempt to connect may take. It may outlast the deadline of a decision: the decision then
/// times out, the attempt continues, and a later decision uses the connection.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A login takes at least one round trip. If it takes longer than this, `TCP_NODELAY` is set: a command is
/// sent before the server has acknowledged the command before it. On a shorter round trip that wait is short,
/// and saves packets, because commands share them (`benches/all -- redis`).
const NEARBY_ROUND_TRIP: Duration = Duration::from_millis(1);

/// Connects, logs in, and drives the connection in a task of this runtime. `primary` is the address of the
/// server if the Sentinels reported it.
pub(super) async fn connect_to(
    target: &Target,
    primary: Option<PrimaryAddress>,
) -> Result<Connection, RedisError> {
    timeout(CONNECT_TIMEOUT, open(target, primary))
        .await
        .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

async fn open(target: &Target, primary: Option<PrimaryAddress>) -> Result<Connection, RedisError> {
    match target.address() {
        ConnectionAddr::Tcp(host, port) => {
            let (stream, socket) = connect_tcp(host, *port).await?;
            log_in(target, stream, socket, primary).await
        }
        #[cfg(feature = "tls")]
        ConnectionAddr::TcpTls { host, port, .. } => {
            let (stream, socket) = connect_tcp(host, *port).await?;
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

async fn connect_tcp(host: &str, port: u16) -> io::Result<(TcpStream, Socket)> {
    let stream = TcpStream::connect((host, port)).await?;
    let socket = SockRef::from(&stream).try_clone()?;
    Ok((stream, socket))
}

async fn log_in(
    target: &Target,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    socket: Socket,
    primary: Option<PrimaryAddress>,
) -> Result<Connection, RedisError> {
    let activity = Activity::new();
    let stream = RecordedStream::new(stream, activity.clone());
    // The caller limits the wait for a reply by its own deadline.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let start = Instant::now();
    let (client, driver) =
        MultiplexedConnection::new_with_config(target.login(), stream, config).await?;
    if start.elapsed() > NEARBY_ROUND_TRIP {
        // Fails for a Unix socket, which does not need the option.
        let _ = socket.set_tcp_nodelay(true);
    }
    Ok(Connection::new(client, driver, activity, socket, primary))
}
