//! Calls that cannot be admitted in time: a line rejects them as soon as that is known.

use std::time::Duration;

use super::grant::Grant;
use super::requests::{MAX_CALLS, PAUSE};
use super::{Line, Now, add_units};

impl Line {
    /// Rejects a call until the moment of a grant that comes too late for it.
    pub(super) fn reject_until(&mut self, arrival: u64, grant: &Grant, now: Now) {
        let reply = grant.rejection(self.retry_until(grant.at, now));
        self.end(arrival, Ok(reply));
    }

    /// Returns the `retry_after` of a call that can be admitted at `earliest`, in microseconds.
    fn retry_until(&self, earliest: u64, now: Now) -> u64 {
        let shortest = if self.settings.is_shared { PAUSE } else { Duration::from_millis(1) };
        earliest.saturating_sub(now.local).max(shortest.as_micros() as u64)
    }

    pub(super) fn reject(&mut self, arrival: u64, earliest: u64, now: Now) {
        let retry = self.retry_until(earliest, now);
        if let Some(estimate) = &self.estimate {
            let reply = estimate.rejection(retry, now.local);
            self.end(arrival, Ok(reply));
        }
    }

    /// Rejects the queued calls that cannot be admitted in time.
    pub(super) fn scan(&mut self, now: Now) {
        let is_long = self.queued.len() > MAX_CALLS;
        if is_long && self.last_scan.is_some_and(|last| now.real < last + 20 * PAUSE) {
            return;
        }
        self.last_scan = Some(now.real);
        let Some(estimate) = &self.estimate else { return };
        let mut units = vec![0; self.counts.len()];
        let (mut late, first) = (Vec::new(), self.queued.first().copied());
        let mut is_first_late = false;
        for arrival in &self.queued {
            let Some(waiter) = self.waiters.get(arrival) else { continue };
            // Once the first call is rejected, a call with a lower cost may be admitted earlier than the first call.
            if is_first_late && !estimate.holds_for(&waiter.costs) {
                break;
            }
            add_units(&mut units, &waiter.costs);
            let earliest = estimate.earliest(&self.counts, &units);
            if earliest > waiter.deadline {
                is_first_late |= Some(*arrival) == first;
                late.push((*arrival, earliest));
                for (sum, cost) in units.iter_mut().zip(&*waiter.costs) {
                    *sum -= u128::from(*cost);
                }
            }
        }
        for (arrival, earliest) in late {
            self.reject(arrival, earliest, now);
        }
        if self.queued.first().copied() != first {
            self.estimate = None;
        }
    }

    /// Returns the earliest time at which the last queued call can be admitted.
    pub(super) fn earliest_of_last(&self) -> Option<u64> {
        let estimate = self.estimate.as_ref()?;
        Some(estimate.earliest(&self.counts, &self.queued_units))
    }

    /// Returns the earliest time at which a queued call can be admitted, from the calls of the first request.
    pub(super) fn earliest_of(&self, arrival: u64) -> u64 {
        let Some(estimate) = &self.estimate else { return 0 };
        let mut units = vec![0; self.counts.len()];
        for other in self.queued.range(..=arrival).take(MAX_CALLS) {
            if let Some(waiter) = self.waiters.get(other) {
                add_units(&mut units, &waiter.costs);
            }
        }
        estimate.earliest(&self.counts, &units)
    }
}
