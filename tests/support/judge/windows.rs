//! What windows promise: at most the threshold in any period, or in any window.

use std::cell::RefCell;

use ratelimit_runtime::Limit;

use super::{Breach, Event, Judge, Kind, Until, sort_by_time};
use crate::calendar;

impl Judge {
    /// Judges, for each call as the last one, the calls that certainly started before it and for which `counts` holds.
    /// They may have been in as many windows as `windows` says for the end of the stretch.
    fn stretches(
        history: &[Event],
        windows: impl Fn(u64) -> u64,
        counts: impl Fn(&Event, u64) -> bool,
    ) -> Vec<Breach> {
        let mut breaches = Vec::new();
        let sums = Until::of(history, |event| (event.last, event.units), |sum, units| sum + units);
        for (index, call) in history.iter().enumerate().filter(|(_, event)| event.ends_stretch()) {
            let end = call.last;
            // Saves comparing each of many thousand calls with each other: nothing is above the limit while the sum
            // of all units is not.
            if counts(call, end) && sums.get(end) <= call.threshold {
                continue;
            }
            let windows = windows(end);
            // A surplus of this moment that was settled later is not judged.
            let precedes = |(other, event): &(usize, &Event)| {
                event.last < end || event.last == end && (!event.is_surplus() || *other < index)
            };
            let within = history.iter().enumerate().filter(precedes).map(|(_, event)| event);
            let within: Vec<&Event> = within.filter(|event| counts(event, end)).collect();
            let calls = within.iter().filter(|event| event.is_call());
            // Without one, the call itself may have started before the stretch.
            let Some(latest) = calls.map(|event| event.first).max() else { continue };
            // All calls may have started before a surplus that is not certainly before one of them. In one of several
            // windows, a surplus can be larger than the threshold.
            let is_before_a_call = |event: &&Event| {
                !event.is_surplus() || windows == 1 && (event.last < latest || latest == end)
            };
            let within: Vec<&Event> = within.into_iter().filter(is_before_a_call).collect();
            // Each of these calls may be the last one, and is admitted under its own threshold. So is the last call of
            // each window, if there are several.
            let could_be_last = within.iter().filter(|event| windows > 1 || event.last >= latest);
            let promised = could_be_last.map(|event| event.threshold).max().unwrap_or(0);
            let used: u64 = within.iter().map(|event| event.units).sum();
            // What may have been given back within the stretch was given back in it.
            let may_count = |event: &&Event| {
                let later = Event { first: event.last, ..**event };
                event.first <= end && (counts(event, end) || counts(&later, end))
            };
            let gifts: u64 = history.iter().filter(may_count).map(|event| event.gift).sum();
            breaches.extend(Breach::new(end, used, windows * promised + gifts));
        }
        breaches
    }

    /// Judges the period before each call.
    pub(super) fn trailing(&self, history: &[Event], windows: impl Fn(u64) -> u64) -> Vec<Breach> {
        let counts = |event: &Event, end: u64| event.first.saturating_add(self.period) > end;
        Self::stretches(history, windows, counts)
    }

    /// Judges the calls of each window. `window` returns the number of the window at a time.
    pub(super) fn windows(history: &[Event], window: impl Fn(u64) -> u64) -> Vec<Breach> {
        Self::stretches(history, |_| 1, |event, end| window(event.first) == window(end))
    }

    /// Judges the windows of a time zone, each found once.
    pub(super) fn windows_of_zone(history: &[Event], limit: &Limit) -> Vec<Breach> {
        let known = RefCell::new(Vec::<(u64, u64)>::new());
        Self::windows(history, |at| {
            let mut known = known.borrow_mut();
            let found = known.iter().find(|(start, end)| (*start..*end).contains(&at)).copied();
            let window = found.or_else(|| calendar::window(limit, at));
            known.extend(window.filter(|_| found.is_none()));
            window.expect("a limit in a time zone").0
        })
    }

    /// Judges the estimate of a sliding counter: what was used in the window of a call, and of the window before as
    /// much as overlaps the trailing period.
    pub(super) fn estimates(&self, history: &[Event]) -> Vec<Breach> {
        let mut breaches = Vec::new();
        let period = u128::from(self.period);
        for (index, call) in history.iter().enumerate().filter(|(_, event)| event.ends_stretch()) {
            let (window, end) = (call.last / self.period, call.last);
            if call.first / self.period != window {
                // The window of the call is not known.
                continue;
            }
            let starts_in = |event: &Event, wanted: u64| {
                event.first / self.period == wanted && event.last / self.period == wanted
            };
            let calls = history.iter().filter(|event| event.is_call() && event.last <= end);
            let latest = calls.clone().filter(|event| starts_in(event, window));
            let latest = latest.map(|event| event.first).max().unwrap_or(end);
            let sum = |wanted: u64| -> u128 {
                let events = history.iter().enumerate().filter(|(other, event)| {
                    let is_before = match event.is_surplus() {
                        false => event.last <= end,
                        true if latest == end => {
                            event.last < end || event.last == end && *other < index
                        }
                        // All calls may have started before it.
                        true => event.last < latest,
                    };
                    is_before && starts_in(event, wanted)
                });
                events.map(|(_, event)| u128::from(event.units)).sum()
            };
            let overlap = u128::from((window + 1) * self.period - end);
            let estimate = sum(window.wrapping_sub(1)) * overlap + sum(window) * period;
            let may_count =
                |event: &&Event| event.first <= end && event.last / self.period + 1 >= window;
            let gifts: u128 =
                history.iter().filter(may_count).map(|event| u128::from(event.gift)).sum();
            let could_be_last = calls.filter(|event| event.last >= latest);
            let promised = could_be_last.map(|event| event.threshold).max().unwrap_or(0);
            let promised = (u128::from(promised) + gifts) * period;
            breaches.extend(Breach::scaled(end, estimate, promised, period));
        }
        breaches
    }

    /// Judges windows that begin with an admitted call. A window whose calls have used nothing may begin again.
    pub(super) fn opened_windows(&self, history: &[Event]) -> Vec<Breach> {
        let calls: Vec<Event> = history.iter().filter(|event| event.counts()).copied().collect();
        if calls.iter().any(|event| event.first != event.last) {
            // Any period overlaps at most two windows; in the period after the first event, no second window can begin.
            let opened = history.iter().map(|event| event.first).min().unwrap_or(0);
            let windows = |end: u64| if end < opened.saturating_add(self.period) { 1 } else { 2 };
            return self.trailing(history, windows);
        }
        // A window begins before the calls of its first moment.
        let mut events = [self.possible_openings(history, &calls), calls].concat();
        sort_by_time(&mut events);
        // The starts of the windows that are possible, with the units in each and the gifts.
        let mut readings: Vec<(u64, u64, u64)> = Vec::new();
        let mut breaches = Vec::new();
        for event in events {
            let at = event.last;
            let mut next: Vec<(u64, u64, u64)> = Vec::new();
            let mut least: Option<Breach> = None;
            if event.is_unseen() {
                // It may have begun a window, or not.
                let may_begin = readings.is_empty()
                    || readings
                        .iter()
                        .any(|(start, used, gifts)| at >= start + self.period || used <= gifts);
                readings.extend(may_begin.then_some((at, 0, 0)));
                continue;
            }
            if readings.is_empty() {
                readings.push((at, 0, 0));
            }
            for (start, used, gifts) in readings {
                let continues = at < start + self.period;
                let anew = (!continues || used <= gifts).then_some((at, 0, 0));
                let going_on = continues.then_some((start, used, gifts));
                for (start, used, gifts) in going_on.into_iter().chain(anew) {
                    let (used, gifts) = (used + event.units, gifts + event.gift);
                    let promised = event.threshold + gifts;
                    match Breach::new(at, used, promised).filter(|_| event.ends_stretch()) {
                        None => next.push((start, used, gifts)),
                        Some(breach) => {
                            least = Some(
                                least.filter(|least| least.over <= breach.over).unwrap_or(breach),
                            );
                        }
                    }
                }
            }
            next.sort_unstable();
            next.dedup();
            if next.is_empty() {
                breaches.extend(least);
            }
            readings = next;
        }
        breaches
    }

    /// Returns a call at each time at which a window can have begun unseen. A time between two of them makes no
    /// difference: no window that begins there ends before another call.
    fn possible_openings(&self, history: &[Event], calls: &[Event]) -> Vec<Event> {
        let mut openings = Vec::new();
        for Event { first, last, .. } in history.iter().copied().filter(Event::is_unseen) {
            let ends = calls.iter().map(|call| call.last.saturating_sub(self.period));
            let times = ends.chain([first, last]).filter(|at| (first..=last).contains(at));
            openings.extend(times.map(|at| Event::at(at, Kind::Unseen)));
        }
        openings
    }
}
