//! The time of this process: the wall clock at the first call, advanced by the monotonic clock.
//!
//! Between two looks at the monotonic clock, [`Instant`], the counter of the processor measures the time, because it is
//! read in a few nanoseconds (`benches/all -- embedded`). A counter can start again or jump, when the machine is
//! suspended or a snapshot of it is restored: then it differs from the last look by more than [`LOOK_EVERY_US`], and
//! the next reading looks at the monotonic clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::Instant;

use once_cell::sync::{Lazy, OnceCell};

use super::{micros, wall};

/// How long the counter measures the time since a look at the monotonic clock. A jump of the counter by less than this
/// is not noticed, so it is the most by which this clock can be ahead of the monotonic clock.
const LOOK_EVERY_US: u64 = 10_000;

/// The number of binary digits after the point in [`SteadyClock::tick`].
const TICK_SHIFT: u32 = 32;

/// The part of a tick that does not count, as a shift: 1/4096. The counter is then behind the monotonic clock at each
/// look in spite of its drift, so the time moves forward there and never stands still.
const SLOWER_SHIFT: u32 = 12;

/// A clock that reads a counter. `checked` and `wall` belong together: a reader that sees `checked` before and after
/// `wall` has both of one look.
struct SteadyClock {
    /// The length of a tick of the counter, in microseconds × 2³².
    tick: u64,
    /// The ticks after which a reading looks at the monotonic clock.
    until_look: u64,
    /// The counter at the last look.
    checked: AtomicU64,
    /// The time at the last look.
    wall: AtomicU64,
    looking: Mutex<()>,
}

impl SteadyClock {
    /// `nanos`: the length of 2⁴⁰ ticks. The counter is at `ticks` at the time `now`.
    fn new(nanos: u64, ticks: u64, now: u64) -> Self {
        let tick = (((u128::from(nanos) << TICK_SHIFT) / 1_000) >> 40) as u64;
        let tick = (tick - (tick >> SLOWER_SHIFT)).max(1);
        let until_look = (LOOK_EVERY_US << TICK_SHIFT) / tick;
        let (checked, wall) = (ticks.into(), now.into());
        Self { tick, until_look, checked, wall, looking: Mutex::new(()) }
    }

    /// Returns the time by `ticks`, which reads the counter, and by `instant`, which reads the monotonic clock.
    #[inline]
    fn now(&self, ticks: impl Fn() -> u64, instant: impl Fn() -> u64) -> u64 {
        self.by_counter(ticks()).unwrap_or_else(|| self.look(ticks, instant))
    }

    /// Returns the time by the counter; `None` if the monotonic clock is needed.
    #[inline]
    fn by_counter(&self, ticks: u64) -> Option<u64> {
        // The counter was read first, so that nothing else stays in registers meanwhile. A look in between is ahead of
        // it, so it is not near.
        let checked = self.checked.load(Ordering::Acquire);
        let wall = self.wall.load(Ordering::Acquire);
        // One comparison for a counter that is too far ahead, and for one that has started again.
        let ticks = ticks.wrapping_sub(checked);
        let is_near = ticks < self.until_look && self.checked.load(Ordering::Relaxed) == checked;
        is_near.then(|| wall + ((ticks * self.tick) >> TICK_SHIFT))
    }

    /// Looks at the monotonic clock.
    #[cold]
    fn look(&self, ticks: impl Fn() -> u64, instant: impl Fn() -> u64) -> u64 {
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have looked.
        if let Some(now) = self.by_counter(ticks()) {
            return now;
        }
        // No reading since the last look was later than this.
        let latest = (self.until_look * self.tick) >> TICK_SHIFT;
        let now = instant().max(self.wall.load(Ordering::Relaxed) + latest);
        let ticks = ticks();
        // Until both are written, no reader is near.
        self.checked.store(ticks.wrapping_add(1 << 63), Ordering::Relaxed);
        self.wall.store(now, Ordering::Release);
        self.checked.store(ticks, Ordering::Release);
        now
    }
}

fn by_instant() -> u64 {
    static START: Lazy<(u64, Instant)> = Lazy::new(|| (wall(), Instant::now()));
    let (wall, start) = &*START;
    wall + micros(start.elapsed())
}

/// The counter and its clock; empty until the counter is calibrated.
static STEADY: OnceCell<(quanta::Clock, SteadyClock)> = OnceCell::new();

/// Returns the wall clock at the first call, advanced by the monotonic clock.
#[inline]
pub(super) fn steady() -> u64 {
    match STEADY.get() {
        Some((counter, clock)) => clock.now(|| counter.raw(), by_instant),
        None => uncalibrated(),
    }
}

/// Calibrates the counter in a thread, because this can take 200 milliseconds, and reads the monotonic clock meanwhile.
#[cold]
fn uncalibrated() -> u64 {
    static CALIBRATED: Once = Once::new();
    let now = by_instant();
    CALIBRATED.call_once(|| {
        let calibrate = || {
            let counter = quanta::Clock::new();
            let nanos = counter.delta_as_nanos(0, 1 << 40);
            let clock = SteadyClock::new(nanos, counter.raw(), by_instant());
            let _ = STEADY.set((counter, clock));
        };
        // Without the thread, the monotonic clock is read each time.
        let _ = thread::Builder::new().name("ratelimit-clock".to_owned()).spawn(calibrate);
    });
    now
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A clock of a counter with 1,000 ticks in a microsecond, and a monotonic clock.
    struct Simulated {
        clock: SteadyClock,
        ticks: u64,
        instant: u64,
    }

    impl Simulated {
        fn at(ticks: u64) -> Self {
            let instant = 1_000_000_000;
            Self { clock: SteadyClock::new(1 << 40, ticks, instant), ticks, instant }
        }

        /// Both clocks advance by `us`, and the counter by `jump` ticks more.
        fn advance(&mut self, us: u64, jump: u64) -> u64 {
            self.ticks = self.ticks.wrapping_add(us * 1_000).wrapping_add(jump);
            self.instant += us;
            self.clock.now(|| self.ticks, || self.instant)
        }

        #[track_caller]
        fn is_near(&self, now: u64, tolerated: u64) {
            let instant = self.instant;
            assert!(now.abs_diff(instant) <= tolerated, "{now} at {instant}");
        }
    }

    #[test]
    fn the_time_is_that_of_the_monotonic_clock_whatever_the_counter_does() {
        const HOUR_TICKS: u64 = 3_600_000_000_000;
        for start in [0, 5 * HOUR_TICKS, u64::MAX - 1_000] {
            // The counter starts again, jumps back or ahead by an hour, jumps by half its range, or steps back by a
            // tick.
            let restart = 0_u64.wrapping_sub(start);
            for jump in [restart, 0_u64.wrapping_sub(HOUR_TICKS), HOUR_TICKS, 1 << 63, u64::MAX] {
                let mut clock = Simulated::at(start);
                let mut last = clock.advance(0, 0);
                for round in 0..20_000 {
                    let step = [1, 50, 999, 30_000][round % 4];
                    let now = clock.advance(step, if round == 100 { jump } else { 0 });
                    assert!(now >= last, "backwards from {last} to {now}");
                    clock.is_near(now, LOOK_EVERY_US);
                    last = now;
                }
                let now = clock.advance(0, 0);
                clock.is_near(now, 3);
            }
        }
    }

    #[test]
    fn a_jump_that_is_not_noticed_moves_the_time_by_less_than_a_look() {
        let mut clock = Simulated::at(7);
        let mut last = clock.advance(0, 0);
        for _ in 0..1_000 {
            let now = clock.advance(100, 9_000_000);
            assert!(now >= last);
            last = now;
        }
        // Each jump moves the time, but none by more than its own length.
        assert!(last - clock.instant <= 1_000 * LOOK_EVERY_US);
        let mut later = last;
        while later > clock.instant + 3 {
            later = clock.advance(30_000, 0);
        }
        assert!(later >= last);
    }

    #[test]
    fn readings_of_several_threads_do_not_go_back_by_more_than_a_look_apart() {
        let started = Instant::now();
        let read = move || {
            let mut last = steady();
            while started.elapsed() < Duration::from_millis(500) {
                let now = steady();
                // The first looks pass from the monotonic clock to the counter.
                assert!(now + 5 >= last, "backwards from {last} to {now}");
                last = now;
            }
            last.abs_diff(by_instant())
        };
        let threads: Vec<_> = (0..4).map(|_| thread::spawn(read)).collect();
        for thread in threads {
            let apart = thread.join().expect("no panic");
            assert!(apart < 1_000_000, "{apart} microseconds from the monotonic clock");
        }
    }
}
