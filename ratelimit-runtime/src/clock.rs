//! What time it is: microseconds since the epoch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use once_cell::sync::Lazy;
use tokio::sync::Notify;

/// Whose time a limiter decides by.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Clock {
    /// The store's own: the server's in Redis, so that the clocks of the clients do not matter; in
    /// the embedded store the wall clock at the start of the process, carried on by the monotonic
    /// one, so that a step of the wall clock does not matter.
    #[default]
    Store,
    /// This process's wall clock, sent along with every decision; for hosted Redis services that
    /// refuse `TIME` in scripts. The clocks of all clients must then agree to well within a period.
    Client,
    /// A clock that stands still until it is told to move; for tests.
    Virtual(VirtualClock),
}

impl Clock {
    /// The time to send to a store that has a clock of its own; `None` to let it use that.
    #[cfg(feature = "redis")]
    pub(crate) fn sent(&self) -> Option<u64> {
        match self {
            Self::Store => None,
            Self::Client => Some(wall()),
            Self::Virtual(clock) => Some(clock.now_us()),
        }
    }

    /// Returns once [`local`](Self::local) is `at` or later. A virtual clock is waited for until it
    /// is moved; for the others there must be a runtime, see [`can_sleep`](Self::can_sleep).
    pub(crate) async fn sleep_until(&self, at: u64) {
        match self {
            Self::Store | Self::Client => {
                tokio::time::sleep(Duration::from_micros(at.saturating_sub(self.local()))).await;
            }
            Self::Virtual(clock) => clock.reaches(at).await,
        }
    }

    /// The time that no step of the wall clock changes.
    #[inline]
    pub(crate) fn steady(&self) -> u64 {
        match self {
            Self::Store | Self::Client => steady(),
            Self::Virtual(clock) => clock.now_us(),
        }
    }

    /// Returns once [`steady`](Self::steady) is `at` or later; in a runtime.
    pub(crate) async fn sleep_to(&self, at: u64) {
        match self {
            Self::Store | Self::Client => {
                tokio::time::sleep(Duration::from_micros(at.saturating_sub(self.steady()))).await;
            }
            Self::Virtual(clock) => clock.reaches(at).await,
        }
    }

    pub(crate) fn can_sleep(&self) -> bool {
        matches!(self, Self::Virtual(_)) || tokio::runtime::Handle::try_current().is_ok()
    }

    /// The time of a store that has no clock of its own.
    #[inline]
    pub(crate) fn local(&self) -> u64 {
        match self {
            Self::Store => steady(),
            Self::Client => wall(),
            Self::Virtual(clock) => clock.now_us(),
        }
    }
}

/// A clock that stands still until it is told to move. Clones share one time.
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::{Clock, Limit, RateLimiter, VirtualClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// const HOURLY: Limit = Limit::fixed("hourly", 1, Duration::from_secs(3600));
///
/// let clock = VirtualClock::new();
/// let limiter = RateLimiter::builder().clock(Clock::Virtual(clock.clone())).build()?;
/// assert!(limiter.check(&HOURLY, "alice", 1).await.is_ok());
/// assert!(limiter.check(&HOURLY, "alice", 1).await.is_err());
/// clock.advance(Duration::from_secs(3600));
/// assert!(limiter.check(&HOURLY, "alice", 1).await.is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct VirtualClock(Arc<Time>);

#[derive(Debug)]
struct Time {
    now: AtomicU64,
    moved: Notify,
}

impl VirtualClock {
    /// A clock at the present time.
    #[must_use]
    pub fn new() -> Self {
        Self::at(Duration::from_micros(wall()))
    }

    /// A clock at `since_epoch` after 1970-01-01 00:00 UTC.
    #[must_use]
    pub fn at(since_epoch: Duration) -> Self {
        let now = AtomicU64::new(micros(since_epoch));
        Self(Arc::new(Time { now, moved: Notify::new() }))
    }

    /// Moves the clock forward, and wakes who waits for the time it reaches.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().saturating_add(by));
    }

    /// Sets the clock, backwards if need be.
    pub fn set(&self, since_epoch: Duration) {
        self.0.now.store(micros(since_epoch), Ordering::SeqCst);
        self.0.moved.notify_waiters();
    }

    /// The time since 1970-01-01 00:00 UTC.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.now_us())
    }

    fn now_us(&self) -> u64 {
        self.0.now.load(Ordering::SeqCst)
    }

    async fn reaches(&self, at: u64) {
        loop {
            let moved = self.0.moved.notified();
            if self.now_us() >= at {
                return;
            }
            moved.await;
        }
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

fn wall() -> u64 {
    // A clock before 1970 counts as 1970: there is no earlier time to fall back to.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, micros)
}

/// The wall clock at the start, carried on by the cycle counter of the processor where that is as good
/// as a clock, and by the monotonic clock elsewhere.
#[inline]
fn steady() -> u64 {
    static START: Lazy<Start> = Lazy::new(|| {
        let clock = quanta::Clock::new();
        let nanos = u128::from(clock.delta_as_nanos(0, 1 << 40));
        let tick = ((nanos << FINE) / 1_000) >> 40;
        Start { wall: wall(), raw: clock.raw(), tick: tick as u64, clock }
    });
    let Start { wall, raw, tick, clock } = &*START;
    let ticks = clock.raw().saturating_sub(*raw);
    wall + ((u128::from(ticks) * u128::from(*tick)) >> FINE) as u64
}

/// When the process looked at the clocks first.
struct Start {
    wall: u64,
    raw: u64,
    /// The length of a tick of the counter, in microseconds × 2⁵².
    tick: u64,
    clock: quanta::Clock,
}

const FINE: u32 = 52;

/// Microseconds, at most those of the year 2112: what is added to a time then still is exact in the
/// `f64`s of the scripts.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).min(1 << 52)
}
