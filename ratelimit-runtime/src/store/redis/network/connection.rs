//! A connection that records when it sends and receives bytes. So a node knows whether the server has closed the
//! connection, and for how long a request has been unanswered. `connect.rs` creates connections.
//!
//! Callers cannot measure this: a caller can drop its future before the deadline, and its runtime can be
//! blocked.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use once_cell::sync::Lazy;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use socket2::Socket;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;

use super::primary::PrimaryAddress;

/// A connection that has received nothing for this many microseconds, with no pending request, is checked
/// before it is used. Servers close idle connections after a second at the earliest.
const IDLE_US: u64 = 100_000;

/// The number of times that a caller yields, so that the driver can read the bytes that an idle connection has
/// received.
const YIELDS: usize = 3;

/// A connection that belongs to one runtime. All clones share one connection, which closes with the last
/// clone.
#[derive(Clone)]
pub(crate) struct Connection(Arc<ConnectionState>);

struct ConnectionState {
    client: MultiplexedConnection,
    activity: Activity,
    /// The socket of the connection, to peek at without the runtime that drives it. It closes with the driver.
    socket: Weak<Socket>,
    driver: AbortHandle,
    primary: Option<PrimaryAddress>,
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Spawns `driver` in this runtime.
    pub(crate) fn new(
        client: MultiplexedConnection,
        driver: impl Future<Output = ()> + Send + 'static,
        activity: Activity,
        socket: Socket,
        primary: Option<PrimaryAddress>,
    ) -> Self {
        let (socket, driver_activity) = (Arc::new(socket), activity.clone());
        let weak = Arc::downgrade(&socket);
        let driver = tokio::spawn(async move {
            driver.await;
            driver_activity.0.has_ended.store(true, Ordering::Relaxed);
            drop(socket);
        });
        let (driver, socket) = (driver.abort_handle(), weak);
        Self(Arc::new(ConnectionState { client, activity, socket, driver, primary }))
    }

    /// Sends one command and returns its reply. With `asking`, sends `ASKING` first: a node of a cluster then
    /// accepts a command for a slot that is migrating to it.
    pub(crate) async fn send(&self, command: &Cmd, asking: bool) -> Result<Value, RedisError> {
        let mut client = self.0.client.clone();
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

    /// Returns whether the connection is alive: whether this machine has not received the end of its stream.
    pub(crate) async fn is_alive(&self) -> bool {
        let activity = &self.0.activity;
        if activity.is_idle() && self.is_readable() {
            // An idle connection is readable when the server has closed it. With TLS, a close message comes
            // before the end.
            for _ in 0..YIELDS {
                tokio::task::yield_now().await;
            }
            return !activity.has_ended() && !self.is_readable();
        }
        !activity.has_ended()
    }

    /// Returns whether a request has been unanswered for longer than `limit`, and no bytes are waiting to be
    /// read by this runtime.
    pub(crate) fn is_unresponsive(&self, limit: Duration) -> bool {
        self.0.activity.unanswered_for() > limit && !self.is_readable()
    }

    /// Returns whether the socket has bytes to read, or has ended. Consumes nothing: only the driver reads.
    fn is_readable(&self) -> bool {
        let Some(socket) = self.0.socket.upgrade() else { return true };
        match socket.peek(&mut [MaybeUninit::uninit()]) {
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Returns the address that the Sentinels reported for the primary when this connection was opened.
    pub(crate) fn primary(&self) -> Option<&PrimaryAddress> {
        self.0.primary.as_ref()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The times at which a connection sends and receives bytes, by [`now`].
#[derive(Clone)]
pub(crate) struct Activity(Arc<ActivityTimes>);

struct ActivityTimes {
    /// The time at which the first bytes after the last received bytes were sent; 0 if none were sent.
    unanswered_since: AtomicU64,
    last_received: AtomicU64,
    has_ended: AtomicBool,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self(Arc::new(ActivityTimes {
            unanswered_since: AtomicU64::new(0),
            last_received: AtomicU64::new(now()),
            has_ended: AtomicBool::new(false),
        }))
    }

    fn record_sent(&self) {
        if self.0.unanswered_since.load(Ordering::Relaxed) == 0 {
            self.0.unanswered_since.store(now(), Ordering::Relaxed);
        }
    }

    fn record_received(&self) {
        self.0.unanswered_since.store(0, Ordering::Relaxed);
        self.0.last_received.store(now(), Ordering::Relaxed);
    }

    fn unanswered_for(&self) -> Duration {
        match self.0.unanswered_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_micros(now().saturating_sub(since)),
        }
    }

    fn is_idle(&self) -> bool {
        self.0.unanswered_since.load(Ordering::Relaxed) == 0
            && now().saturating_sub(self.0.last_received.load(Ordering::Relaxed)) > IDLE_US
    }

    fn has_ended(&self) -> bool {
        self.0.has_ended.load(Ordering::Relaxed)
    }
}

/// Returns the microseconds since the first call in this process, plus 1, so never 0.
fn now() -> u64 {
    static START: Lazy<Instant> = Lazy::new(Instant::now);
    START.elapsed().as_micros() as u64 + 1
}

/// A stream that records its [`Activity`].
pub(crate) struct RecordedStream<S> {
    stream: S,
    activity: Activity,
}

impl<S> RecordedStream<S> {
    pub(crate) fn new(stream: S, activity: Activity) -> Self {
        Self { stream, activity }
    }
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
            self.activity.record_received();
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
        self.activity.record_sent();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
