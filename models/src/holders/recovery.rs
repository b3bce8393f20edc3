//! Whether a state recovers, once no fault happens any more.

use std::mem;

use super::Holders;
use super::state::{Body, HOLD, Message, Process, State, TICK, Taking, Used};

impl Holders {
    /// Sends the statement of a process that is due.
    pub(super) fn state(&self, state: &mut State, process: usize) {
        let now = state.local_clock();
        let sender = &mut state.processes[process];
        sender.was_late |= self.resets > 0 && sender.holder.ends_at().is_some_and(|at| now >= at);
        sender.holder.lose_late(now);
        if sender.holder.next_statement().is_some_and(|at| at <= now) {
            let sent = sender.holder.state(now);
            let number = state.send(process, Body::State, self.threshold);
            state.processes[process].stating = Some((number, sent));
        }
    }

    /// Plays on without faults until no message is left and no statement is due.
    fn settle(&self, state: &mut State) {
        for _ in 0..20 {
            while let Some(message) = state.network.pop() {
                let Message { process, number, body } = message;
                let reply = match body {
                    Body::Reply { .. } => body,
                    request => self.execute(state, request, process),
                };
                self.deliver(state, Message { process, number, body: reply });
            }
            let now = state.local_clock();
            let mut processes = state.processes.iter();
            let Some(next) = processes.position(|process| process.is_due(now)) else { return };
            self.state(state, next);
        }
        panic!("processes state without end: {state:#?}");
    }

    /// Returns whether the server counts what runs once messages have arrived and dead processes have expired, and
    /// nothing once all calls have ended.
    pub(super) fn recovers(&self, state: &State) -> bool {
        let mut state = state.clone();
        for process in &mut state.processes {
            let id = process.id;
            let is_sent =
                |number| state.network.iter().any(|it| (it.process, it.number) == (id, number));
            // A request without a message reaches its deadline.
            let (kept, lost) = mem::take(&mut process.taking)
                .into_iter()
                .partition(|taking| is_sent(taking.number));
            process.taking = kept;
            let lost: Vec<Taking> = lost;
            for taking in lost {
                process.holder.end_without_reply(taking.pending);
            }
            if process.stating.is_some_and(|(number, _)| !is_sent(number)) {
                process.give_up_statement();
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
                process.holder.release(call.held);
            }
        }
        self.settle(&mut state);
        // Otherwise `flush` does not complete.
        let is_stated = |process: &Process| !process.holder.is_dirty();
        let can_call = |process: &Process| process.holder.clone().begin().is_some();
        let is_ready =
            state.processes.iter().all(|process| is_stated(process) && can_call(process));
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
