//! A connection, and what passes on it: whether the server has closed it, or has fallen silent. The link
//! sees that by itself: callers may give up before any deadline, and their runtime may stand still.

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

/// A link on which nothing passed for so long is looked at before it is used: servers close idle
/// connections after a second at the earliest.
const IDLE_US: u64 = 100_000;

/// How often a runtime gets the chance to read what has come on an idle link.
const READS: usize = 3;

/// A connection of one runtime. Clones are of one connection, which closes with the last of them.
#[derive(Clone)]
pub(super) struct Link(Arc<LinkState>);

struct LinkState {
    connection: MultiplexedConnection,
    pulse: Pulse,
    /// The same socket, to look at without the runtime that drives it. It closes with the driver.
    socket: Weak<Socket>,
    driver: AbortHandle,
    primary: Option<PrimaryAddress>,
}

impl Drop for LinkState {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Link {
    /// Spawns `driver` in this runtime.
    pub(super) fn new(
        connection: MultiplexedConnection,
        driver: impl Future<Output = ()> + Send + 'static,
        pulse: Pulse,
        socket: Socket,
        primary: Option<PrimaryAddress>,
    ) -> Self {
        let (socket, closes) = (Arc::new(socket), pulse.clone());
        let weak = Arc::downgrade(&socket);
        let driver = tokio::spawn(async move {
            driver.await;
            closes.0.closed.store(true, Ordering::Relaxed);
            drop(socket);
        });
        let (driver, socket) = (driver.abort_handle(), weak);
        Self(Arc::new(LinkState { connection, pulse, socket, driver, primary }))
    }

    /// Sends one command. After `asking`, a node of a cluster answers for a slot that it is about to take
    /// over.
    pub(super) async fn send(&self, command: &Cmd, asking: bool) -> Result<Value, RedisError> {
        let mut connection = self.0.connection.clone();
        let reply = if asking {
            let mut both = redis::pipe();
            both.cmd("ASKING").add_command(command.clone());
            let replies = connection.send_packed_commands(&both, 1, 1).await;
            replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
        } else {
            connection.send_packed_command(command).await
        };
        reply.and_then(Value::extract_error)
    }

    /// Whether the server has not closed the connection, as far as this machine knows.
    pub(super) async fn is_open(&self) -> bool {
        let LinkState { pulse, .. } = &*self.0;
        if pulse.is_idle() && self.has_something_to_read() {
            // On an idle link, that is the end, which may stand behind a farewell of TLS.
            for _ in 0..READS {
                tokio::task::yield_now().await;
            }
            return !pulse.is_closed() && !self.has_something_to_read();
        }
        !pulse.is_closed()
    }

    /// Whether something was sent longer ago than `most`, and nothing has come since; also nothing that this
    /// runtime has not read yet.
    pub(super) fn is_silent(&self, most: Duration) -> bool {
        self.0.pulse.silent_for() > most && !self.has_something_to_read()
    }

    /// Reads nothing: the driver does. The end of a stream can be read, too.
    fn has_something_to_read(&self) -> bool {
        let Some(socket) = self.0.socket.upgrade() else { return true };
        match socket.peek(&mut [MaybeUninit::uninit()]) {
            Ok(_) => true,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// The name that the Sentinels had for the server when this was connected.
    pub(super) fn primary(&self) -> Option<&PrimaryAddress> {
        self.0.primary.as_ref()
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// When something passed on a connection, in microseconds of this process.
#[derive(Clone)]
pub(super) struct Pulse(Arc<Passed>);

struct Passed {
    /// When the first bytes were sent to which nothing has come since; 0 when there are none.
    unanswered_since: AtomicU64,
    /// When bytes came last.
    heard: AtomicU64,
    closed: AtomicBool,
}

impl Pulse {
    pub(super) fn new() -> Self {
        let (unanswered_since, closed) = (AtomicU64::new(0), AtomicBool::new(false));
        Self(Arc::new(Passed { unanswered_since, heard: AtomicU64::new(now()), closed }))
    }

    fn sent(&self) {
        if self.0.unanswered_since.load(Ordering::Relaxed) == 0 {
            self.0.unanswered_since.store(now(), Ordering::Relaxed);
        }
    }

    fn heard(&self) {
        self.0.unanswered_since.store(0, Ordering::Relaxed);
        self.0.heard.store(now(), Ordering::Relaxed);
    }

    fn silent_for(&self) -> Duration {
        match self.0.unanswered_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_micros(now().saturating_sub(since)),
        }
    }

    fn is_idle(&self) -> bool {
        self.0.unanswered_since.load(Ordering::Relaxed) == 0
            && now().saturating_sub(self.0.heard.load(Ordering::Relaxed)) > IDLE_US
    }

    fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Relaxed)
    }
}

/// Never 0.
fn now() -> u64 {
    static START: Lazy<Instant> = Lazy::new(Instant::now);
    START.elapsed().as_micros() as u64 + 1
}

/// A stream whose [`Pulse`] is taken.
pub(super) struct Watched<S> {
    stream: S,
    pulse: Pulse,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, pulse: Pulse) -> Self {
        Self { stream, pulse }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.pulse.heard();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.pulse.sent();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
