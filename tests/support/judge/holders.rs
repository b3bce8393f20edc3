//! The judge of the promise "never more in flight than the limit": it knows which calls were admitted under which
//! limit, and when their units were free again, and nothing else.
//!
//! An admitted call and those that certainly hold units at its start are within its limit. So a limit that is lowered
//! evicts nobody, and nobody is admitted before enough calls have ended. Tests pass what the promise excepts: a store
//! that loses its memory counts the calls that run once their processes state them, and units that a process takes
//! without the store count once the store is back.

use super::Breach;

/// The calls of one key that held units in flight, in the order of their admission.
#[derive(Clone, Debug, Default)]
pub struct HolderJudge {
    calls: Vec<HeldCall>,
    recorded: u64,
}

/// A time, and a number that orders what a test records at one time.
type Moment = (u64, u64);

#[derive(Clone, Debug)]
struct HeldCall {
    process: usize,
    /// The earliest and the latest moment from which the call held its units.
    begins: (Moment, Moment),
    /// The earliest moment at which the units were free.
    ends: Option<Moment>,
    units: u64,
    /// The limit under which the call was admitted; `None` if it was not admitted by the store.
    most: Option<u64>,
    /// When the store did not know of the call: since it has lost its memory, until its process has stated it.
    unknown: Vec<(Moment, Option<Moment>)>,
}

/// The name of a call in flight in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderId(usize);

impl HolderJudge {
    fn moment(&mut self, at: u64) -> Moment {
        self.recorded += 1;
        (at, self.recorded)
    }

    fn push(
        &mut self,
        process: usize,
        starts: (u64, u64),
        units: u64,
        most: Option<u64>,
    ) -> HolderId {
        let last = self.moment(starts.1);
        let (begins, units) = (((starts.0, last.1), last), units);
        self.calls.push(HeldCall { process, begins, ends: None, units, most, unknown: Vec::new() });
        HolderId(self.calls.len() - 1)
    }

    /// Adds a call of a process, admitted under a limit of `most` units, that may have started at any time of an
    /// interval.
    pub fn admitted(
        &mut self,
        process: usize,
        starts: (u64, u64),
        units: u64,
        most: u64,
    ) -> HolderId {
        self.push(process, starts, units, Some(most))
    }

    /// Returns how much is recorded, for [`began`](Self::began).
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Records that a call had begun when no more than `recorded` was recorded. It may have been admitted before what
    /// was recorded since, also at the same time.
    pub fn began(&mut self, call: HolderId, recorded: u64) {
        self.calls[call.0].begins.0.1 = recorded;
    }

    /// Adds units that a process has taken without the store, from the time at which the store counts them.
    pub fn registered(&mut self, process: usize, at: u64, units: u64) -> HolderId {
        self.push(process, (at, at), units, None)
    }

    /// Adds a call that was admitted before the store has lost its memory, from a later time. The store does not know
    /// of it until its process has stated it.
    pub fn forgotten(&mut self, process: usize, at: u64, units: u64) -> HolderId {
        let call = self.registered(process, at, units);
        let moment = self.moment(at);
        self.calls[call.0].unknown.push((moment, None));
        call
    }

    /// Records that a call has ended, or has lost its units.
    pub fn ended(&mut self, call: HolderId, at: u64) {
        let moment = self.moment(at);
        self.calls[call.0].ends.get_or_insert(moment);
    }

    /// Records that the count was reset: all calls have lost their units.
    pub fn reset(&mut self, at: u64) {
        for call in 0..self.calls.len() {
            self.ended(HolderId(call), at);
        }
    }

    /// Records that the store has lost its memory.
    pub fn lost_memory(&mut self, at: u64) {
        let moment = self.moment(at);
        for call in self.calls.iter_mut().filter(|call| call.ends.is_none()) {
            if !matches!(call.unknown.last(), Some((_, None))) {
                call.unknown.push((moment, None));
            }
        }
    }

    /// Records that a process has stated to the store what it holds.
    pub fn stated(&mut self, process: usize, at: u64) {
        let moment = self.moment(at);
        for call in self.calls.iter_mut().filter(|call| call.process == process) {
            if let Some((_, until @ None)) = call.unknown.last_mut() {
                *until = Some(moment);
            }
        }
    }

    /// Returns whether a call holds its units.
    #[must_use]
    pub fn holds(&self, call: HolderId) -> bool {
        self.calls[call.0].ends.is_none()
    }

    /// Returns the units that the store counts, if it knows all calls.
    #[must_use]
    pub fn held(&self) -> u64 {
        let held = self.calls.iter().filter(|call| call.ends.is_none());
        held.map(|call| call.units).sum()
    }

    /// Returns whether the store knows of all calls.
    #[must_use]
    pub fn knows_all(&self) -> bool {
        let running = || self.calls.iter().filter(|call| call.ends.is_none());
        running().all(|call| !matches!(call.unknown.last(), Some((_, None))))
    }

    /// Returns the admissions after which more was in flight than the limit says.
    #[must_use]
    pub fn breaches(&self) -> Vec<Breach> {
        let mut breaches = Vec::new();
        for call in &self.calls {
            let Some(most) = call.most else { continue };
            let ((first, last), at) = (call.begins, call.begins.1.0);
            // Others that have certainly held units while the call started.
            let others = self.calls.iter().filter(|other| {
                other.begins.1 < first && other.holds_after(last) && other.is_known(first, last)
            });
            let held: u64 = others.map(|other| other.units).sum();
            breaches.extend(Breach::new(at, held + call.units, most).filter(|_| call.units > 0));
            // Calls whose order is not known: the last of them was admitted beside all others.
            let together = || {
                let runs = |other: &&HeldCall| {
                    other.begins.1 <= last && other.holds_after(last) && other.unknown.is_empty()
                };
                self.calls.iter().filter(|other| other.most.is_some()).filter(runs)
            };
            let most = together().filter_map(|other| other.most).max().unwrap_or(0);
            breaches.extend(Breach::new(at, together().map(|other| other.units).sum(), most));
        }
        breaches
    }

    /// Returns whether a judge of limits that are lower by one unit objects. So the history reaches the limit, and the
    /// judge has seen its calls.
    #[must_use]
    pub fn objects_to_one_unit_less(&self) -> bool {
        let mut judge = self.clone();
        judge.calls.iter_mut().for_each(|call| call.most = call.most.map(|most| most - 1));
        !judge.breaches().is_empty()
    }
}

impl HeldCall {
    fn holds_after(&self, moment: Moment) -> bool {
        self.ends.is_none_or(|ends| ends > moment)
    }

    /// Returns whether the store knew of the call from `first` to `last`.
    fn is_known(&self, first: Moment, last: Moment) -> bool {
        let is_apart = |(from, until): &(Moment, Option<Moment>)| {
            last < *from || until.is_some_and(|until| until < first)
        };
        self.unknown.iter().all(is_apart)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(judge: &HolderJudge) -> u64 {
        judge.breaches().iter().map(|breach| breach.over).max().unwrap_or(0)
    }

    #[test]
    fn calls_that_run_are_within_the_limit() {
        let mut judge = HolderJudge::default();
        let first = judge.admitted(0, (1, 1), 1, 2);
        let second = judge.admitted(1, (1, 1), 1, 2);
        judge.ended(first, 1);
        judge.admitted(0, (1, 1), 1, 2);
        assert_eq!((over(&judge), judge.held()), (0, 2));
        judge.admitted(0, (1, 1), 3, 2);
        assert_eq!(over(&judge), 3);
        // An end does not undo a breach.
        judge.ended(second, 1);
        assert_eq!(over(&judge), 3);
    }

    #[test]
    fn a_lower_limit_evicts_nobody_and_admits_nobody() {
        let mut judge = HolderJudge::default();
        for _ in 0..3 {
            judge.admitted(0, (1, 1), 1, 3);
        }
        judge.admitted(0, (2, 2), 0, 1);
        assert_eq!(over(&judge), 0);
        judge.admitted(0, (3, 3), 1, 1);
        assert_eq!(over(&judge), 3);
    }

    #[test]
    fn a_time_that_is_not_known_is_given_the_benefit_of_the_doubt() {
        let mut judge = HolderJudge::default();
        let first = judge.admitted(0, (0, 0), 1, 1);
        judge.admitted(1, (4, 9), 1, 1);
        judge.ended(first, 5);
        assert_eq!(over(&judge), 0);
        let mut judge = HolderJudge::default();
        let first = judge.admitted(0, (0, 0), 1, 1);
        judge.admitted(1, (4, 9), 1, 1);
        judge.ended(first, 10);
        assert_eq!(over(&judge), 1);
        // At one time, and recorded in the other order.
        let mut judge = HolderJudge::default();
        let recorded = judge.recorded();
        judge.admitted(0, (1, 1), 1, 2);
        let first = judge.admitted(1, (1, 1), 1, 1);
        assert_eq!(over(&judge), 1);
        judge.began(first, recorded);
        assert_eq!(over(&judge), 0);
        judge.admitted(1, (1, 1), 1, 2);
        assert_eq!(over(&judge), 1);
        // Neither is known to be the first, and both run.
        let mut judge = HolderJudge::default();
        judge.admitted(0, (0, 9), 1, 1);
        judge.admitted(1, (0, 9), 1, 1);
        assert_eq!(over(&judge), 1);
    }

    #[test]
    fn exceptions_are_not_counted() {
        let mut judge = HolderJudge::default();
        judge.admitted(0, (1, 1), 2, 2);
        judge.lost_memory(2);
        assert!(!judge.knows_all());
        judge.admitted(1, (3, 3), 2, 2);
        assert_eq!(over(&judge), 0, "twice the limit");
        judge.admitted(1, (3, 3), 1, 2);
        assert_eq!(over(&judge), 1, "and not more");
        let mut judge = HolderJudge::default();
        judge.admitted(0, (1, 1), 1, 1);
        judge.lost_memory(2);
        judge.stated(0, 3);
        judge.admitted(1, (4, 4), 1, 1);
        assert_eq!(over(&judge), 1, "it was stated");
        let mut judge = HolderJudge::default();
        judge.forgotten(0, 1, 1);
        judge.admitted(1, (2, 2), 1, 1);
        assert_eq!((over(&judge), judge.knows_all()), (0, false));
        judge.stated(0, 3);
        judge.admitted(1, (4, 4), 1, 2);
        assert_eq!((over(&judge), judge.knows_all()), (1, true));
        let mut judge = HolderJudge::default();
        judge.registered(0, 1, 5);
        judge.registered(0, 1, 5);
        assert_eq!(over(&judge), 0, "taken without the store");
        judge.admitted(1, (2, 2), 1, 10);
        assert_eq!(over(&judge), 1);
        judge.reset(3);
        judge.admitted(1, (3, 3), 1, 1);
        assert_eq!((over(&judge), judge.held()), (1, 1));
    }
}
