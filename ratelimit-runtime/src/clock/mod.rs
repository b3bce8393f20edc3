//! The clocks of a limiter: times in microseconds since the epoch.

mod steady;

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use self::steady::steady;

/// The clock by which a limiter decides.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Clock {
    /// The clock of the store. With Redis, it is the clock of the server, so the clocks of the clients do not matter.
    /// The embedded store reads the wall clock once, before its first decision, and advances that time by the monotonic
    /// clock, so a step of the wall clock does not matter. Where the monotonic clock stands still while the machine is
    /// suspended, as on Linux and macOS, that time does not count: a window ends later by it, and a window with
    /// [`align`](crate::Limit::align) begins and ends later than the calendar says, until the process starts again.
    #[default]
    Store,
    /// The wall clock of this process. The limiter sends its time with every decision. Use it with hosted Redis
    /// services that reject `TIME` in scripts. The difference between the clocks of any two clients must be much
    /// smaller than a period.
    Client,
    /// A clock that moves only when the program moves it. Use it in tests.
    Virtual(VirtualClock),
}

impl Clock {
    /// Returns the time to send to a store that has its own clock; `None` if the store uses its own.
    #[inline]
    pub(crate) fn sent(&self) -> Option<u64> {
        match self {
            Self::Store => None,
            Self::Client => Some(wall()),
            Self::Virtual(clock) => Some(clock.now_us()),
        }
    }

    /// Returns a time that a step of the wall clock does not change.
    #[inline]
    pub(crate) fn steady(&self) -> u64 {
        match self {
            Self::Store | Self::Client => steady(),
            Self::Virtual(clock) => clock.now_us(),
        }
    }

    /// Returns a time like [`steady`](Self::steady) that also counts how long the machine was suspended, as far as the
    /// wall clock tells: a step ahead of the wall clock counts, and one back does not.
    pub(crate) fn boottime(&self) -> u64 {
        static AHEAD: AtomicU64 = AtomicU64::new(0);
        if let Self::Virtual(clock) = self {
            return clock.now_us();
        }
        // First the wall clock: a pause between the two counts for nothing.
        let wall = wall();
        boottime(steady(), wall, &AHEAD)
    }

    /// Completes once [`steady`](Self::steady) is `at` or later. Needs a runtime, unless the clock is virtual.
    pub(crate) async fn sleep_until_steady(&self, at: u64) {
        match self {
            Self::Store | Self::Client => {
                tokio::time::sleep(Duration::from_micros(at.saturating_sub(self.steady()))).await;
            }
            Self::Virtual(clock) => loop {
                let moved = clock.0.moved.notified();
                if clock.now_us() >= at {
                    return;
                }
                moved.await;
            },
        }
    }

    /// Completes once a virtual clock has moved since this call.
    pub(crate) fn moved(&self) -> impl Future<Output = ()> + '_ {
        let moved = match self {
            Self::Store | Self::Client => None,
            Self::Virtual(clock) => Some(clock.0.moved.notified()),
        };
        async {
            match moved {
                Some(moved) => moved.await,
                None => pending().await,
            }
        }
    }

    pub(crate) fn is_virtual(&self) -> bool {
        matches!(self, Self::Virtual(_))
    }

    /// Returns the time for the embedded store.
    #[inline]
    pub(crate) fn local(&self) -> u64 {
        self.sent().unwrap_or_else(steady)
    }
}

/// A clock that moves only when the program moves it. Clones share one time.
///
/// It is the time of decisions, of [waits](crate::Limit::wait), of the terms of [leases](crate::Limit::lease), and of
/// cached rejections. It is not the time of
///
/// - deadlines, the circuit breaker, and durations in metrics: a Redis that is slow takes real time;
/// - TTLs in Redis: the server deletes a key when its real time has come, not when this clock is moved, so `TTL` and
///   `EXISTS` do not follow this clock;
/// - timers of the runtime: `tokio::time::sleep` and `tokio::time::timeout` do not notice that this clock moves;
/// - other limiters and other processes.
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
pub struct VirtualClock(Arc<VirtualTime>);

#[derive(Debug)]
struct VirtualTime {
    now: AtomicU64,
    /// Wakes calls in the order in which they wait, so that tests see that order.
    moved: Notify,
}

impl VirtualClock {
    /// Creates a clock at the present time, rounded down to a second.
    #[must_use]
    pub fn new() -> Self {
        Self::at(Duration::from_secs(wall() / 1_000_000))
    }

    /// Creates a clock at `since_epoch` after 1970-01-01 00:00 UTC.
    #[must_use]
    pub fn at(since_epoch: Duration) -> Self {
        let now = AtomicU64::new(micros(since_epoch));
        Self(Arc::new(VirtualTime { now, moved: Notify::new() }))
    }

    /// Moves the clock forward and wakes the calls that wait for the new time.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().saturating_add(by));
    }

    /// Sets the clock. The new time can be earlier than the present time of the clock.
    pub fn set(&self, since_epoch: Duration) {
        self.0.now.store(micros(since_epoch), Ordering::SeqCst);
        self.0.moved.notify_waiters();
    }

    /// Returns the time since 1970-01-01 00:00 UTC.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.now_us())
    }

    fn now_us(&self) -> u64 {
        self.0.now.load(Ordering::SeqCst)
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the result of `work` if it completes before `end`.
pub(crate) async fn before<T>(
    end: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let (mut end, mut work) = (pin!(end), pin!(work));
    poll_fn(|context| {
        if let Poll::Ready(result) = work.as_mut().poll(context) {
            return Poll::Ready(Some(result));
        }
        end.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// The number of times that other tasks run after a deadline, so that a reply which has arrived comes to its caller:
/// the connection reads it, and the sender of a batch passes it on.
const YIELDS: usize = 4;

/// Returns the result of `work` if it completes by `end`, in real time. If the runtime was blocked, the end can have
/// passed while the reply to `work` has already arrived: then that is the result. `None` outside of a runtime, which
/// has no timers.
pub(crate) async fn complete_by<T>(
    end: tokio::time::Instant,
    work: impl Future<Output = T>,
) -> Option<T> {
    Handle::try_current().ok()?;
    // Pinned here: `before` would keep room for both twice.
    let end = pin!(async move {
        tokio::time::sleep_until(end).await;
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
    });
    before(end, pin!(work)).await
}

/// Returns the steady time, plus what the wall clock has ever been `ahead` of it: both start together.
fn boottime(steady: u64, wall: u64, ahead: &AtomicU64) -> u64 {
    let now = wall.saturating_sub(steady);
    steady + ahead.fetch_max(now, Ordering::Relaxed).max(now)
}

fn wall() -> u64 {
    // A time before 1970 counts as 1970, the earliest time that this type can hold.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, micros)
}

/// Returns the microseconds of `duration`, at most 2⁵² (the year 2112), so that sums with them are exact in the
/// `f64` of scripts.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).min(1 << 52)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn time_passes_while_the_machine_is_suspended() {
        let ahead = AtomicU64::new(0);
        assert_eq!(boottime(10, 10, &ahead), 10);
        // Suspended for 90 microseconds.
        assert_eq!(boottime(20, 110, &ahead), 110);
        // The wall clock steps back.
        assert_eq!(boottime(30, 5, &ahead), 120);
        assert_eq!(boottime(40, 140, &ahead), 140);
    }
}
