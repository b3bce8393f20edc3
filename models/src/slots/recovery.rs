//! Whether a state recovers, once no fault happens any more.

use std::mem;

use super::Slots;
use super::state::{Body, HOLD, Message, Process, State, TICK, Used};

impl Slots {
    /// Sends the statement of a process.
    pub(super) fn send(&self, state: &mut State, process: usize, wants: bool) {
        let now = state.local_clock();
        let sender = &mut state.processes[process];
        let is_over = sender.units.alive_until().is_some_and(|at| now >= at);
        sender.was_late |= self.records_lateness() && is_over;
        state.send(process, wants, self.threshold);
    }

    /// Plays on without faults until no message is left and no statement is due.
    fn settle(&self, state: &mut State) {
        for _ in 0..20 {
            while let Some(message) = state.network.pop() {
                let Message { process, number, body } = message;
                let reply = match body {
                    Body::Reply { .. } => body,
                    request => self.execute(state, request),
                };
                self.deliver(state, Message { process, number, body: reply });
            }
            let now = state.local_clock();
            let mut processes = state.processes.iter();
            let Some(next) = processes.position(|process| process.is_due(now)) else { return };
            self.send(state, next, false);
        }
        panic!("processes state without end: {state:#?}");
    }

    /// Returns whether the server counts what runs once messages have arrived and dead processes have expired, and
    /// nothing once all calls have ended.
    pub(super) fn recovers(&self, state: &State) -> bool {
        let mut state = state.clone();
        for process in &mut state.processes {
            let is_sent = |number| {
                let mut sent = state.network.iter();
                sent.any(|it| (it.process, it.number) == (process.id, number))
            };
            // A request without a message reaches its deadline.
            if process.pending.is_some_and(|pending| !is_sent(pending.number)) {
                process.give_up();
            }
        }
        self.settle(&mut state);
        if !self.counts_at_once(&mut state) {
            return false;
        }
        for _ in 0..4 {
            state.time += 1;
            self.settle(&mut state);
        }
        let counts_what_runs = self.measured(&mut state) == state.held();
        for process in &mut state.processes {
            for call in mem::take(&mut process.calls) {
                process.units.release(call.held);
            }
        }
        self.settle(&mut state);
        // Otherwise `flush` does not complete.
        let is_stated = |process: &Process| !process.units.is_dirty() && process.pending.is_none();
        let is_ready = state.processes.iter().all(is_stated);
        counts_what_runs && is_ready && self.measured(&mut state) == 0 && state.held() == 0
    }

    /// Returns whether the server counts what runs as soon as all messages have arrived. What a process that was killed
    /// has held expires, and so does what a request takes that was given up and arrives after the hold; processes learn
    /// of a reset later, and a server of slots that it has forgotten.
    fn counts_at_once(&self, state: &mut State) -> bool {
        let Used { crashes, flushes, given_up, .. } = state.used;
        if crashes > 0 || flushes > 0 || given_up > 0 && u64::from(state.time) * TICK >= HOLD {
            return true;
        }
        let (measured, held) = (self.measured(state), state.held());
        measured == held || measured < held && state.used.resets > 0
    }
}
