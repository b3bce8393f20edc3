//! For how long a line has waited for units in flight while none of its calls was admitted.
//!
//! A process hands units that its calls release to its own line, so a busy process could keep them for itself. After a
//! second, a line states for how long it has waited, and Redis keeps the next units for the process that has waited for
//! longest (`lua/slots.lua`).

use super::requests::LOOK_AGAIN;

/// The time until the first look of a line for which Redis keeps units, in microseconds. Each later look takes twice as
/// long, up to [`LOOK_AGAIN`]: units that are released often come soon, and no line asks Redis all the time.
const FIRST_LOOK: u64 = 50_000;

/// The wait of a line since its last admission.
#[derive(Default)]
pub(super) struct OverdueWait {
    /// When the store has rejected the line for the first time, by the clock of the limiter.
    since: Option<u64>,
    /// The number of looks since Redis keeps units for the line.
    looks: u32,
}

impl OverdueWait {
    /// Returns for how long the line has waited; 0 for less than a second.
    pub(super) fn waited(&self, now: u64) -> u64 {
        let waited = self.since.map_or(0, |since| now.saturating_sub(since));
        if waited < LOOK_AGAIN { 0 } else { waited }
    }

    /// Records that the store has admitted a call, or that no call waits for units in flight.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Records that a call waits for units in flight. Returns when the line looks again.
    pub(super) fn next_look(&mut self, now: u64) -> u64 {
        self.since.get_or_insert(now);
        if self.waited(now) == 0 {
            return now.saturating_add(LOOK_AGAIN);
        }
        let pause = FIRST_LOOK.checked_shl(self.looks).unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
        self.looks = (self.looks + 1).min(16);
        now.saturating_add(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_soon_after_a_second_and_then_ever_more_rarely() {
        let (mut wait, mut now, mut looks) = (OverdueWait::default(), 7, Vec::new());
        assert_eq!(wait.waited(now), 0);
        for _ in 0..8 {
            let next = wait.next_look(now);
            looks.push((next - now) / 1_000);
            now = next;
        }
        assert_eq!(looks, [1_000, 50, 100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(wait.waited(now), now - 7);
        wait.end();
        assert_eq!(wait.waited(now), 0);
        assert_eq!(wait.next_look(now), now + LOOK_AGAIN);
    }
}
