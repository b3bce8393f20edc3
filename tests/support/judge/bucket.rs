//! What buckets promise: at most the burst, and what refills, in any stretch of time.

use super::{Breach, Event, Judge, Until, sort_by_time};

impl Judge {
    /// Judges a bucket: what is used fills it, and it drains at the rate in force, or at the larger rate of two.
    pub(super) fn refills(&self, history: &[Event]) -> Vec<Breach> {
        let mut events: Vec<Event> =
            history.iter().filter(|event| event.counts()).copied().collect();
        if events.iter().any(|event| event.first != event.last) {
            return self.refills_between(history);
        }
        sort_by_time(&mut events);
        let (period, rates) = (u128::from(self.period), Rates::of(history));
        let (mut breaches, mut level, mut since) = (Vec::new(), 0_u128, 0);
        let mut gifts: Vec<Event> = Vec::new();
        for event in events {
            let at = event.last;
            level = level.saturating_sub(rates.refilled(since, at));
            // In a full bucket, nothing is left that a gift could have been of. A bucket with booked calls is not full.
            let is_full = level == 0 && at > since && !history.iter().any(|it| it.is_booked(at));
            gifts.retain(|gift| !is_full || gift.gives_at(at));
            if event.gift > 0 {
                gifts.push(event);
            }
            level += u128::from(event.units) * period;
            since = at;
            // A call that was booked is promised no more than the largest burst since.
            let later =
                history.iter().filter(|other| (event.decided..=at).contains(&other.decided));
            let burst = later.map(|event| event.capacity).max().unwrap_or(0).max(event.capacity);
            if event.ends_stretch() && event.units > 0 {
                let gifts: u64 = gifts.iter().map(|event| event.gift).sum();
                let promised = (u128::from(burst) + u128::from(gifts)) * period;
                breaches.extend(Breach::scaled(at, level, promised, period));
            }
        }
        breaches
    }

    /// Judges each stretch from one call to another by what has certainly started in it.
    pub(super) fn refills_between(&self, history: &[Event]) -> Vec<Breach> {
        let period = u128::from(self.period);
        let events: Vec<&Event> = history.iter().filter(|event| event.counts()).collect();
        // A call is not promised the burst and the rate that were in force only after it.
        let amounts = Until::of(
            history,
            |event| (event.first, (event.capacity, event.rate)),
            |one, other| (one.0.max(other.0), one.1.max(other.1)),
        );
        let mut by_end: Vec<_> =
            events.iter().map(|event| (*event, amounts.get(event.last))).collect();
        by_end.sort_by_key(|(event, _)| event.last);
        let mut breaches = Vec::new();
        for from in events.iter().map(|event| event.first) {
            let (mut used, mut gifts, mut latest) = (0, 0, 0);
            let mut surpluses: Vec<&Event> = Vec::new();
            let counts = |event: &Event| event.last >= from || event.gives_at(from);
            for (event, (burst, rate)) in by_end.iter().filter(|(event, _)| counts(event)) {
                // What may have been given back in the stretch was given back in it.
                gifts += event.gift;
                if event.first < from {
                    continue;
                }
                if event.is_surplus() {
                    surpluses.push(event);
                    continue;
                }
                used += event.units;
                // All calls may have started before a surplus that is not certainly before one of them.
                latest = event.first.max(latest);
                surpluses.retain(|surplus| {
                    let counts = surplus.last < latest;
                    used += if counts { surplus.units } else { 0 };
                    !counts
                });
                let refilled = u128::from(event.last - from) * u128::from(*rate);
                let promised = (u128::from(*burst) + u128::from(gifts)) * period + refilled;
                if event.ends_stretch() {
                    let used = u128::from(used) * period;
                    breaches.extend(Breach::scaled(event.last, used, promised, period));
                }
            }
        }
        breaches
    }
}

/// The rates of a bucket: times, and the rate that is promised in them. A call at another rate counts the time since
/// the charge before it at its own rate. What was charged before drains at the old rate, if that is larger.
struct Rates {
    parts: Vec<(u64, u64, u64)>,
    /// The beginnings and the ends of the parts.
    times: Vec<u64>,
}

impl Rates {
    fn of(history: &[Event]) -> Self {
        let mut charges: Vec<&Event> = history.iter().filter(|event| event.counts()).collect();
        charges.sort_by_key(|event| event.decided);
        let (mut parts, mut before) = (Vec::new(), 0);
        for pair in charges.windows(2) {
            let (from, to) = (pair[0].decided, pair[1].decided);
            // What was refunded has no rate. A surplus keeps the rate that is in force, if there is one.
            let rate = pair[0].rate;
            before = match pair[0].is_surplus() {
                true => before.max(rate),
                false if rate > 0 => rate,
                false => before,
            };
            let in_force = history.iter().filter(|event| (from..=to).contains(&event.decided));
            let rate = in_force.map(|event| event.rate).max().unwrap_or(0).max(before);
            // A call that waits can be charged at any time until it starts, also after calls that came later. So the
            // rates around it can hold until then.
            parts.push((from, pair[0].last.max(pair[1].last).max(to), rate));
        }
        let mut times: Vec<u64> = parts.iter().flat_map(|(from, to, _)| [*from, *to]).collect();
        times.sort_unstable();
        times.dedup();
        Self { parts, times }
    }

    /// Returns the units that refill in a time, times the period.
    fn refilled(&self, from: u64, to: u64) -> u128 {
        let within = self.times.iter().copied().filter(|time| (from + 1..to).contains(time));
        let times: Vec<u64> = std::iter::once(from).chain(within).chain([to]).collect();
        let parts = times.windows(2).map(|pair| {
            let covers = |(start, end, _): &&(u64, u64, u64)| *start <= pair[0] && pair[1] <= *end;
            let rate = self.parts.iter().filter(covers).map(|(.., rate)| *rate).max();
            u128::from(pair[1] - pair[0]) * u128::from(rate.unwrap_or(0))
        });
        parts.sum()
    }
}
