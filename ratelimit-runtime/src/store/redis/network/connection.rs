//! A connection that records when it sends and receives bytes. So a node knows whether the server has closed the
//! connection, and for how long a request has been unanswered.
//!
//! Callers cannot measure this: a caller can drop its future before the deadline, and its runtime can be
//! blocked.
//!
//! This file opens the streams, over TCP, TLS or a Unix socket, instead of the client library, so that a [`Connection`]
//! can record what they send and receive.

use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use once_cell::sync::Lazy;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, Pipeline, ProtocolVersion, RedisConnectionInfo,
    RedisError, Value,
};
use socket2::{SockRef, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::Tls;
use super::credentials::{Credentials, Provider};
use crate::clock::before;

/// A connection that has received nothing for this many microseconds, with no pending request, is checked
/// before it is used. Servers close idle connections after a second at the earliest.
const IDLE_US: u64 = 100_000;

/// The number of times that a caller yields, so that the driver can read the bytes that an idle connection has
/// received.
const YIELDS: usize = 3;

/// A server to connect to.
#[derive(Clone)]
pub(crate) struct Target {
    /// A host and a port, or a Unix socket.
    pub(crate) address: ConnectionAddr,
    /// The user, the password, the database and the protocol.
    pub(crate) login: RedisConnectionInfo,
    pub(crate) tls: Option<Tls>,
    /// In place of the password.
    pub(crate) provider: Option<Provider>,
}

/// The host and the port of a server.
pub(crate) type ServerAddress = (String, u16);

pub(crate) const DEFAULT_PORT: u16 = 6379;

impl Target {
    /// Returns the same user, database and certificates at another address.
    pub(crate) fn with_address(&self, host: &str, port: u16) -> Self {
        Self { address: ConnectionAddr::Tcp(host.to_owned(), port), ..self.clone() }
    }

    /// Returns the credentials of a login; `None` if the server needs none. `has_refused` says whether it has refused
    /// those before.
    async fn credentials(&self, has_refused: bool) -> Result<Option<Credentials>, RedisError> {
        let provided = match (&self.provider, self.login.password()) {
            (Some(provider), _) => provider.credentials(has_refused).await?,
            (None, Some(password)) => Credentials::password(password),
            (None, None) => return Ok(None),
        };
        let user = provided.user.clone().or_else(|| self.login.username().map(Into::into));
        Ok(Some(Credentials { user, ..provided }))
    }

    pub(crate) fn host_and_port(&self) -> (&str, u16) {
        match &self.address {
            ConnectionAddr::Tcp(host, port) => (host, *port),
            _ => ("", DEFAULT_PORT),
        }
    }
}

/// A connection that belongs to one runtime. It closes when this is dropped.
pub(crate) struct Connection {
    client: MultiplexedConnection,
    activity: Arc<Activity>,
    /// The socket of the connection, to peek at without the runtime that drives it. It closes with the driver.
    socket: Weak<Socket>,
    /// The task that drives the connection, which ends with this.
    _driver: JoinSet<()>,
    /// The host and the port to which this connection was opened.
    pub(crate) address: ServerAddress,
    /// Whether the connection has authenticated.
    is_authenticated: bool,
}

impl Connection {
    /// Sends one command and returns its reply. With `asking`, sends `ASKING` first: a node of a cluster then
    /// accepts a command for a slot that is migrating to it.
    pub(crate) async fn send(&self, command: &Cmd, asking: bool) -> Result<Value, RedisError> {
        let mut client = self.client.clone();
        let reply = if asking {
            let mut both = redis::pipe();
            both.cmd("ASKING").add_command(command.clone());
            let replies = client.send_packed_commands(&both, 1, 1).await;
            replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
        } else {
            client.send_packed_command(command).await
        };
        reply.and_then(Value::extract_error)
    }

    /// Returns whether the server replies that the connection has not authenticated, although it has: some servers ask
    /// for that again.
    pub(crate) fn was_logged_out(&self, reply: &Result<Value, RedisError>) -> bool {
        let error = reply.as_ref().err();
        self.is_authenticated && error.is_some_and(|error| error.code() == Some("NOAUTH"))
    }

    /// Returns whether the connection has ended, also with its runtime, as far as its driver knows.
    pub(crate) fn has_ended(&self) -> bool {
        self.socket.strong_count() == 0
    }

    /// Returns whether the connection is alive: whether this machine has not received the end of its stream.
    pub(crate) async fn is_alive(&self) -> bool {
        let Activity { unanswered_since, last_received } = &*self.activity;
        let is_idle = unanswered_since.load(Ordering::Relaxed) == 0
            && now().saturating_sub(last_received.load(Ordering::Relaxed)) > IDLE_US;
        if is_idle && self.is_readable() {
            // An idle connection is readable when the server has closed it. With TLS, a close message comes before
            // the end. It is also readable when a late reply has come while its runtime was not polled.
            for _ in 0..YIELDS {
                tokio::task::yield_now().await;
            }
            return !self.is_readable();
        }
        !self.has_ended()
    }

    /// Returns whether a request has been unanswered for longer than `limit`, and no bytes are waiting to be
    /// read by this runtime.
    pub(crate) fn is_unresponsive(&self, limit: Duration) -> bool {
        let since = self.activity.unanswered_since.load(Ordering::Relaxed);
        let is_late = since > 0 && now().saturating_sub(since) > limit.as_micros() as u64;
        is_late && !self.is_readable()
    }

    /// Returns whether the socket has bytes to read, or has ended. Consumes nothing: only the driver reads.
    fn is_readable(&self) -> bool {
        let Some(socket) = self.socket.upgrade() else { return true };
        match socket.peek(&mut [MaybeUninit::uninit()]) {
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

/// The times at which a connection sends and receives bytes, by [`now`].
struct Activity {
    /// The time at which the first bytes after the last received bytes were sent; 0 if none were sent.
    unanswered_since: AtomicU64,
    last_received: AtomicU64,
}

/// Returns the microseconds since the first call in this process, plus 1, so never 0.
fn now() -> u64 {
    static START: Lazy<Instant> = Lazy::new(Instant::now);
    START.elapsed().as_micros() as u64 + 1
}

/// A stream that records its [`Activity`].
struct RecordedStream<S> {
    stream: S,
    activity: Arc<Activity>,
}

impl<S: AsyncRead + Unpin> AsyncRead for RecordedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.unanswered_since.store(0, Ordering::Relaxed);
            self.activity.last_received.store(now(), Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RecordedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.activity.unanswered_since.load(Ordering::Relaxed) == 0 {
            self.activity.unanswered_since.store(now(), Ordering::Relaxed);
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// How long an attempt to connect may take. It may outlast the deadline of a decision: the decision then
/// times out, the attempt continues, and a later decision uses the connection.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an attempt to connect lasts before the next address of the host is tried beside it.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// A login takes at least one round trip. If it takes longer than this, `TCP_NODELAY` is set: a command is
/// sent before the server has acknowledged the command before it. On a shorter round trip that wait is short,
/// and saves packets, because commands share them (`benches/all -- redis`).
const NEARBY_ROUND_TRIP: Duration = Duration::from_millis(1);

/// Opens a connection of this runtime.
pub(crate) async fn connect_to(target: &Target) -> Result<Connection, RedisError> {
    timeout(CONNECT_TIMEOUT, open(target)).await.map_err(io::Error::from)?
}

async fn open(target: &Target) -> Result<Connection, RedisError> {
    match &target.address {
        ConnectionAddr::Tcp(host, port) => {
            // All processes try the addresses of a host in the same order. A resolver returns them in another order
            // each time. If they belong to several servers, the processes then still count on the same one.
            let addresses: BTreeSet<_> = lookup_host((&**host, *port)).await?.collect();
            let stream = connect_to_any(addresses.into_iter()).await?;
            let socket = SockRef::from(&stream).try_clone()?;
            match &target.tls {
                Some(tls) => log_in(target, tls.encrypt(host, stream).await?, socket).await,
                None => log_in(target, stream, socket).await,
            }
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => {
            let stream = tokio::net::UnixStream::connect(path).await?;
            let socket = SockRef::from(&stream).try_clone()?;
            log_in(target, stream, socket).await
        }
        _ => Err(io::Error::from(io::ErrorKind::Unsupported).into()),
    }
}

/// Connects to the first of these addresses that accepts. Any but the last has a part of the time, because an address
/// can drop packets.
async fn connect_to_any(
    mut addresses: impl DoubleEndedIterator<Item = SocketAddr>,
) -> io::Result<TcpStream> {
    let Some(last) = addresses.next_back() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    };
    for address in addresses {
        if let Ok(Ok(stream)) = timeout(NEXT_ADDRESS_AFTER, TcpStream::connect(address)).await {
            return Ok(stream);
        }
    }
    TcpStream::connect(last).await
}

/// Logs in, and drives the connection in a task of this runtime.
async fn log_in(
    target: &Target,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    socket: Socket,
) -> Result<Connection, RedisError> {
    let activity = Activity { unanswered_since: 0.into(), last_received: now().into() };
    let activity = Arc::new(activity);
    let stream = RecordedStream { stream, activity: Arc::clone(&activity) };
    // The caller limits the wait for a reply by its own deadline.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    // The client library would log in with one password, once.
    let none = RedisConnectionInfo::default().set_skip_set_lib_name();
    let (client, driver) = MultiplexedConnection::new_with_config(&none, stream, config).await?;
    let mut driver = Box::pin(driver);
    let login = before(&mut driver, authenticate(&client, target)).await;
    let (round_trip, credentials) =
        login.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::ConnectionReset).into()))?;
    if round_trip > NEARBY_ROUND_TRIP {
        // Fails for a Unix socket, which does not need the option.
        let _ = socket.set_tcp_nodelay(true);
    }
    let of_driver = Arc::new(socket);
    let socket = Arc::downgrade(&of_driver);
    let is_authenticated = credentials.is_some();
    let renewal = renew(client.clone(), target.clone(), credentials);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _: Option<()> = before(driver, renewal).await;
        drop(of_driver);
    });
    let (host, port) = target.host_and_port();
    let address = (host.to_owned(), port);
    Ok(Connection { client, activity, socket, _driver: tasks, address, is_authenticated })
}

/// Authenticates a connection, selects its database and names this library. If the server refuses credentials of a
/// provider, asks for others once: they may have changed meanwhile. Returns the time of a round trip, and the
/// credentials that the server has accepted.
async fn authenticate(
    client: &MultiplexedConnection,
    target: &Target,
) -> Result<(Duration, Option<Credentials>), RedisError> {
    let (mut client, mut has_refused) = (client.clone(), false);
    loop {
        let credentials = target.credentials(has_refused).await?;
        let (commands, needed) = login_commands(target, credentials.as_ref());
        let start = Instant::now();
        let replies = client.send_packed_commands(&commands, 0, commands.len()).await?;
        let round_trip = start.elapsed();
        // A server need not know the others.
        let needed =
            replies.into_iter().take(needed).try_for_each(|reply| reply.extract_error().map(drop));
        let is_refused = needed.as_ref().is_err_and(|error| error.code() == Some("WRONGPASS"));
        if !is_refused || target.provider.is_none() || mem::replace(&mut has_refused, true) {
            return needed.map(|()| (round_trip, credentials));
        }
    }
}

/// Returns the commands of a login, and how many of them must succeed.
fn login_commands(target: &Target, credentials: Option<&Credentials>) -> (Pipeline, usize) {
    let (login, mut commands) = (&target.login, redis::pipe());
    if let Some(Credentials { user, password, .. }) = credentials {
        commands.cmd("AUTH").arg(user.as_deref()).arg(&**password);
    }
    if login.protocol() == ProtocolVersion::RESP3 {
        commands.cmd("HELLO").arg(3);
    }
    if login.db() != 0 {
        commands.cmd("SELECT").arg(login.db());
    }
    let needed = commands.len();
    commands.cmd("CLIENT").arg("SETNAME").arg("ratelimit");
    for (part, value) in
        [("LIB-NAME", env!("CARGO_PKG_NAME")), ("LIB-VER", env!("CARGO_PKG_VERSION"))]
    {
        commands.cmd("CLIENT").arg("SETINFO").arg(part).arg(value);
    }
    (commands, needed)
}

/// The shortest time between two attempts to authenticate a connection again.
const RENEWAL_PAUSE: Duration = Duration::from_secs(1);

/// Authenticates a connection again whenever three quarters of the lifetime of its credentials have passed; if that
/// fails, whenever three quarters of the rest have. Does not end.
async fn renew(client: MultiplexedConnection, target: Target, credentials: Option<Credentials>) {
    let (mut rest, mut has_failed) = (credentials.and_then(|it| it.lifetime), false);
    while let Some(left) = rest {
        sleep((left / 4 * 3).max(RENEWAL_PAUSE)).await;
        rest = match authenticate(&client, &target).await {
            Ok((_, credentials)) => {
                has_failed = false;
                credentials.and_then(|it| it.lifetime)
            }
            Err(error) => {
                if !mem::replace(&mut has_failed, true) {
                    tracing::warn!(%error, "cannot authenticate an open connection to Redis again");
                }
                Some(left / 4)
            }
        };
    }
    pending::<()>().await;
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
        let stream = timeout(CONNECT_TIMEOUT, connect_to_any([silent, there].into_iter())).await;
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
        let stream = connect_to_any([refused, there].into_iter()).await.expect("connected");
        assert_eq!(stream.peer_addr().expect("connected"), there);
        let error = connect_to_any([refused].into_iter()).await.expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(connect_to_any([].into_iter()).await.is_err());
    }
}
