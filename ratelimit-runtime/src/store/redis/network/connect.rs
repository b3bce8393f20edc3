//! Connections to a server over TCP, TLS or a Unix socket.
//!
//! This file opens the streams, instead of the client library, so that a [`Connection`] can record what they
//! send and receive.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, RedisError};
use socket2::{SockRef, Socket};
use tokio::io::{AsyncRead, AsyncWrite};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::address::Target;
use super::connection::{Activity, Connection, RecordedStream};
use super::primary::PrimaryAddress;

/// How long an attempt to connect may take. It may outlast the deadline of a decision: the decision then
/// times out, the attempt continues, and a later decision uses the connection.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an attempt to connect lasts before the next address of the host is tried beside it.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// A login takes at least one round trip. If it takes longer than this, `TCP_NODELAY` is set: a command is
/// sent before the server has acknowledged the command before it. On a shorter round trip that wait is short,
/// and saves packets, because commands share them (`benches/all -- redis`).
const NEARBY_ROUND_TRIP: Duration = Duration::from_millis(1);

/// Connects, logs in, and drives the connection in a task of this runtime. `primary` is the address of the
/// server if the Sentinels reported it.
pub(crate) async fn connect_to(
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
    let stream = connect_to_any(in_order(lookup_host((host, port)).await?)).await?;
    let socket = SockRef::from(&stream).try_clone()?;
    Ok((stream, socket))
}

/// Returns the addresses of a host in the order in which all processes try them. A resolver returns them in another
/// order each time. If they belong to several servers, the processes then still count on the same one.
fn in_order(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses: Vec<_> = addresses.collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Connects to the first of these addresses that accepts. Starts with the next address when an attempt fails, and while
/// one takes long, because an address can drop packets. The other attempts end here, before they send anything.
async fn connect_to_any(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let (mut addresses, mut attempts) = (addresses.into_iter(), JoinSet::new());
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    loop {
        if let Some(address) = addresses.next() {
            attempts.spawn(TcpStream::connect(address));
        }
        let is_last = addresses.len() == 0;
        let patience = if is_last { CONNECT_TIMEOUT } else { NEXT_ADDRESS_AFTER };
        match timeout(patience, attempts.join_next()).await {
            Ok(Some(Ok(Ok(stream)))) => return Ok(stream),
            Ok(Some(Ok(Err(failed)))) => error = failed,
            Ok(Some(Err(ended))) => error = io::Error::other(ended),
            Ok(None) => return Err(error),
            Err(_) => {}
        }
    }
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

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    fn local() -> SocketAddr {
        ([127, 0, 0, 1], 0).into()
    }

    /// Returns a listener that does not reply to further attempts to connect, and what fills its queue.
    fn silent() -> (Socket, SocketAddr, Vec<Socket>) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        listener.bind(&local().into()).expect("bound");
        listener.listen(0).expect("listening");
        let address = listener.local_addr().expect("bound");
        let fill = || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            socket.set_nonblocking(true).expect("set");
            // It is not connected yet, or waits in the queue.
            let _ = socket.connect(&address);
            socket
        };
        let queue = (0..4).map(|_| fill()).collect();
        (listener, address.as_socket().expect("IPv4"), queue)
    }

    #[tokio::test]
    async fn an_address_that_drops_packets_is_not_the_only_one_tried() {
        let (listener, silent, queue) = silent();
        let server = TcpListener::bind(local()).await.expect("bound");
        let there = server.local_addr().expect("bound");
        let stream = timeout(CONNECT_TIMEOUT, connect_to_any(vec![silent, there])).await;
        let stream = stream.expect("in time").expect("connected");
        assert_eq!(stream.peer_addr().expect("connected"), there);
        // The lost attempt sends nothing, whatever becomes of it.
        drop(queue);
        listener.set_nonblocking(true).expect("set");
        let listener = TcpListener::from_std(listener.into()).expect("a listener");
        while let Ok(accepted) = timeout(2 * CONNECT_TIMEOUT, listener.accept()).await {
            let mut sent = Vec::new();
            let _ = accepted.expect("accepted").0.read_to_end(&mut sent).await;
            assert!(sent.is_empty(), "{sent:?}");
        }
    }

    #[tokio::test]
    async fn an_address_that_refuses_is_followed_by_the_next_at_once() {
        let refused = TcpListener::bind(local()).await.expect("bound").local_addr().expect("bound");
        let server = TcpListener::bind(local()).await.expect("bound");
        let there = server.local_addr().expect("bound");
        let stream = connect_to_any(vec![refused, there]).await.expect("connected");
        assert_eq!(stream.peer_addr().expect("connected"), there);
        let error = connect_to_any(vec![refused]).await.expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(connect_to_any(Vec::new()).await.is_err());
    }

    #[test]
    fn all_processes_try_the_addresses_in_one_order() {
        let addresses = ["10.0.0.2:1", "[::1]:1", "10.0.0.1:1", "10.0.0.2:1"];
        let addresses = addresses.map(|address| address.parse().expect("an address"));
        let order = in_order(addresses.into_iter());
        assert_eq!(order, in_order(addresses.into_iter().rev()));
        assert_eq!(order, [addresses[2], addresses[0], addresses[1]]);
    }
}
