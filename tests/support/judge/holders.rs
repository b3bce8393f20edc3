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

/// The earliest and the latest time.
type Times = (u64, u64);

#[derive(Clone, Debug)]
struct HeldCall {
    process: usize,
    /// The earliest and the latest moment from which the call held its units, and the earliest at which they were free.
    begins: (Moment, Moment),
    ends: Option<Moment>,
    units: u64,
    /// The limit under which the call was admitted; `None` if it was not admitted by the store.
    most: Option<u64>,
    /// When the store did not know of the call: since it has lost its memory, until its process has stated it.
    unknown: Vec<(Moment, Option<Moment>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderId(usize);

impl HolderJudge {
    fn moment(&mut self, at: u64) -> Moment {
        self.recorded += 1;
        (at, self.recorded)
    }

    fn push(&mut self, process: usize, starts: Times, units: u64, most: Option<u64>) -> HolderId {
        let last = self.moment(starts.1);
        let begins = ((starts.0, last.1), last);
        self.calls.push(HeldCall { process, begins, ends: None, units, most, unknown: Vec::new() });
        HolderId(self.calls.len() - 1)
    }

    /// Adds a call of a process, admitted under a limit of `most` units, that may have started at any time of an
    /// interval.
    pub fn admitted(&mut self, process: usize, starts: Times, units: u64, most: u64) -> HolderId {
        self.push(process, starts, units, Some(most))
    }

    /// Returns how much is recorded, for [`began`](Self::began).
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

    /// Records that calls have ended, or have lost their units.
    pub fn ended(&mut self, calls: impl IntoIterator<Item = HolderId>, at: u64) {
        for call in calls {
            let moment = self.moment(at);
            self.calls[call.0].ends.get_or_insert(moment);
        }
    }

    /// Records that the count was reset: all calls have lost their units.
    pub fn reset(&mut self, at: u64) {
        self.ended((0..self.calls.len()).map(HolderId), at);
    }

    pub fn lost_memory(&mut self, at: u64) {
        let moment = self.moment(at);
        let forgotten = |call: &&mut HeldCall| call.ends.is_none() && !call.is_unknown();
        for call in self.calls.iter_mut().filter(forgotten) {
            call.unknown.push((moment, None));
        }
    }

    pub fn stated(&mut self, process: usize, at: u64) {
        let moment = self.moment(at);
        for call in self.calls.iter_mut().filter(|call| call.process == process) {
            if let Some((_, until @ None)) = call.unknown.last_mut() {
                *until = Some(moment);
            }
        }
    }

    pub fn holds(&self, call: HolderId) -> bool {
        self.calls[call.0].ends.is_none()
    }

    /// Returns the units that the store counts, if it knows all calls.
    pub fn held(&self) -> u64 {
        self.running().map(|call| call.units).sum()
    }

    pub fn knows_all(&self) -> bool {
        self.running().all(|call| !call.is_unknown())
    }

    fn running(&self) -> impl Iterator<Item = &HeldCall> {
        self.calls.iter().filter(|call| call.ends.is_none())
    }

    /// Returns the admissions after which more was in flight than the limit says.
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
            let (mut together, mut most) = (0, 0);
            for other in self.calls.iter().filter(|other| other.unknown.is_empty()) {
                if let Some(own) = other.most
                    && other.begins.1 <= last
                    && other.holds_after(last)
                {
                    (together, most) = (together + other.units, own.max(most));
                }
            }
            breaches.extend(Breach::new(at, together, most));
        }
        breaches
    }

    /// Returns whether a judge of limits that are lower by one unit objects. So the history reaches the limit, and the
    /// judge has seen its calls.
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

    fn is_unknown(&self) -> bool {
        matches!(self.unknown.last(), Some((_, None)))
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

    /// A step of a history, in which calls are named by their places; or what is known after the steps before it.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Admit(usize, (u64, u64), u64, u64),
        // The call may have been admitted before all others.
        BeganFirst(usize),
        Register(usize, u64, u64),
        Forgotten(usize, u64, u64),
        End(usize, u64),
        LoseMemory(u64),
        State(usize, u64),
        Reset(u64),
        Over(u64),
        Held(u64),
        KnowsAll(bool),
    }
    use Step::{
        Admit, BeganFirst, End, Forgotten, Held, KnowsAll, LoseMemory, Over, Register, Reset, State,
    };

    fn play(history: &[Step]) {
        let (mut judge, mut calls) = (HolderJudge::default(), Vec::new());
        for (index, step) in history.iter().copied().enumerate() {
            let over = || judge.breaches().iter().map(|breach| breach.over).max().unwrap_or(0);
            match step {
                Over(units) => assert_eq!(over(), units, "step {index} of {history:?}"),
                Held(units) => assert_eq!(judge.held(), units, "step {index} of {history:?}"),
                KnowsAll(all) => assert_eq!(judge.knows_all(), all, "step {index} of {history:?}"),
                Admit(process, starts, units, most) => {
                    calls.push(judge.admitted(process, starts, units, most));
                }
                Register(process, at, units) => calls.push(judge.registered(process, at, units)),
                Forgotten(process, at, units) => calls.push(judge.forgotten(process, at, units)),
                BeganFirst(call) => judge.began(calls[call], 0),
                End(call, at) => judge.ended([calls[call]], at),
                LoseMemory(at) => judge.lost_memory(at),
                State(process, at) => judge.stated(process, at),
                Reset(at) => judge.reset(at),
            }
        }
    }

    #[test]
    fn calls_that_run_are_within_the_limit() {
        let [first, second, third] = [0, 1, 0].map(|process| Admit(process, (1, 1), 1, 2));
        let within = [first, second, End(0, 1), third, Over(0), Held(2)];
        // An end does not undo a breach.
        play(&[&within[..], &[Admit(0, (1, 1), 3, 2), Over(3), End(1, 1), Over(3)]].concat());
    }

    #[test]
    fn a_lower_limit_evicts_nobody_and_admits_nobody() {
        let three = [Admit(0, (1, 1), 1, 3); 3];
        let lowered = [Admit(0, (2, 2), 0, 1), Over(0), Admit(0, (3, 3), 1, 1), Over(3)];
        play(&[&three[..], &lowered].concat());
    }

    #[test]
    fn a_time_that_is_not_known_is_given_the_benefit_of_the_doubt() {
        for (end, over) in [(5, 0), (10, 1)] {
            play(&[Admit(0, (0, 0), 1, 1), Admit(1, (4, 9), 1, 1), End(0, end), Over(over)]);
        }
        // At one time, and recorded in the other order.
        let one_time = [Admit(0, (1, 1), 1, 2), Admit(1, (1, 1), 1, 1), Over(1)];
        let reordered = [BeganFirst(1), Over(0), Admit(1, (1, 1), 1, 2), Over(1)];
        play(&[&one_time[..], &reordered].concat());
        // Neither is known to be the first, and both run.
        play(&[Admit(0, (0, 9), 1, 1), Admit(1, (0, 9), 1, 1), Over(1)]);
    }

    #[test]
    fn exceptions_are_not_counted() {
        // Twice the limit, and not more.
        let forgets = [Admit(0, (1, 1), 2, 2), LoseMemory(2), KnowsAll(false)];
        let again = [Admit(1, (3, 3), 2, 2), Over(0), Admit(1, (3, 3), 1, 2), Over(1)];
        play(&[&forgets[..], &again].concat());
        play(&[
            Admit(0, (1, 1), 1, 1),
            LoseMemory(2),
            State(0, 3),
            Admit(1, (4, 4), 1, 1),
            Over(1),
        ]);
        let unknown = [Forgotten(0, 1, 1), Admit(1, (2, 2), 1, 1), Over(0), KnowsAll(false)];
        let known = [State(0, 3), Admit(1, (4, 4), 1, 2), Over(1), KnowsAll(true)];
        play(&[&unknown[..], &known].concat());
        // Units that were taken without the store.
        let taken = [Register(0, 1, 5), Register(0, 1, 5), Over(0), Admit(1, (2, 2), 1, 10)];
        let reset = [Over(1), Reset(3), Admit(1, (3, 3), 1, 1), Over(1), Held(1)];
        play(&[&taken[..], &reset].concat());
    }
}
