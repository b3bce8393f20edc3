//! Plays steps: the breakers of two runtimes, the job that probes, and the fallback.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use super::{Action, Breakers, CLOSES, FEW_WAIT, Fault, PROBED, SHARE, Server};
use crate::background::{JobSlot, RunningJob};
use crate::clock::{Clock, VirtualClock};
use crate::key::KeyId;
use crate::limit::Limit;
use crate::local::Local;
use crate::network_breaker::{Breaker, TIMEOUTS_TO_OPEN};
use crate::reply::{Source, StoreError};
use crate::store::{Calls, Charge};

/// Two processes share a limit of four calls while the server does not decide.
const LIMIT: Limit = Limit::fixed("fallback", 4, Duration::from_secs(60));
const INSTANCES: u32 = 2;
const SHARE_OF_LIMIT: usize = 2;

/// A breaker and the connection of a runtime, which has a number.
#[derive(Default)]
struct Runtime {
    breaker: Breaker,
    connection: Option<u8>,
    /// The calls that have timed out since the last reply, or since the breaker has half-opened.
    timeouts: usize,
    /// Whether the breaker has half-opened since the last reply.
    is_half_open: bool,
}

/// A call that has not ended.
#[derive(Clone, Copy, Debug)]
struct Call {
    runtime: usize,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has sent a request on a connection.
    Sent { before: Option<u8>, connection: u8 },
    /// It opens the breaker: the connection is discarded.
    Opens,
    /// The breaker is open, and it starts the probes.
    StartsProbes,
}

/// The step that the job takes next.
#[derive(Clone, Debug)]
enum ProberStage {
    Sleeps,
    /// A probe is sent, for these runtimes.
    Probes(Vec<usize>),
    HalfOpens(Vec<usize>),
    /// It looks whether a breaker is open.
    Looks,
    /// It has found none.
    Ends,
}

pub(super) struct Play {
    model: Breakers,
    server: Server,
    runtimes: [Runtime; 2],
    probers: JobSlot,
    prober: Option<(RunningJob, ProberStage)>,
    calls: Vec<Call>,
    connections: u8,
    begun: [usize; 2],
    changes: usize,
    failed_probes: usize,
    dropped_jobs: usize,
    fallback: Local,
    /// The calls that the process has admitted without the server.
    admitted: usize,
    replies: usize,
    pub(super) mistakes: Vec<&'static str>,
}

impl Play {
    pub(super) fn new(model: Breakers) -> Self {
        let clock = Clock::Virtual(VirtualClock::at(Duration::from_secs(1_000_000)));
        Self {
            model,
            server: Server::Replies,
            runtimes: Default::default(),
            probers: JobSlot::default(),
            prober: None,
            calls: Vec::new(),
            connections: 0,
            begun: [0; 2],
            changes: 0,
            failed_probes: 0,
            dropped_jobs: 0,
            fallback: Local::new(64, clock),
            admitted: 0,
            replies: 0,
            mistakes: Vec::new(),
        }
    }

    fn is(&self, fault: Fault) -> bool {
        self.model.fault == Some(fault)
    }

    pub(super) fn enabled(&self) -> Vec<Action> {
        let mut enabled = Vec::new();
        for runtime in 0..2 {
            if self.begun[runtime] < self.model.calls[runtime] {
                enabled.push(Action::Call(runtime));
            }
        }
        enabled.extend((0..self.calls.len()).map(Action::Step));
        if let Some((_, stage)) = &self.prober {
            enabled.push(Action::Probe);
            if matches!(stage, ProberStage::Probes(_))
                && self.failed_probes < self.model.failed_probes
            {
                enabled.push(Action::FailProbe);
            }
            if matches!(stage, ProberStage::Sleeps) && self.dropped_jobs < self.model.dropped_jobs {
                enabled.push(Action::DropProber);
            }
        }
        if self.changes < self.model.changes {
            let changed = [Server::Replies, Server::IsSilent, Server::IsDown];
            let changed = changed.into_iter().filter(|server| *server != self.server);
            enabled.extend(changed.map(Action::Change));
        }
        enabled
    }

    /// Returns all that decides what follows.
    pub(super) fn parts(&self) -> String {
        let mut parts = String::new();
        let Self { server, calls, begun, changes, failed_probes, dropped_jobs, admitted, .. } =
            self;
        let _ = write!(
            parts,
            "{server:?} {calls:?} {begun:?} {changes} {failed_probes} {dropped_jobs} {admitted}"
        );
        for runtime in &self.runtimes {
            let Runtime { breaker, connection, timeouts, is_half_open } = runtime;
            let _ = write!(
                parts,
                " {breaker:?} {connection:?} {timeouts} {is_half_open}",
                connection = connection.map(|own| self.connections - own),
            );
        }
        let stage = self.prober.as_ref().map(|(_, stage)| stage);
        let _ = write!(parts, " {:?} {stage:?}", self.probers);
        parts
    }

    pub(super) fn step(&mut self, action: Action) {
        match action {
            Action::Call(runtime) => {
                self.begun[runtime] += 1;
                self.call(runtime);
            }
            Action::Step(call) => self.step_call(call),
            Action::Probe => self.step_prober(self.server == Server::Replies),
            Action::FailProbe => {
                self.failed_probes += 1;
                self.step_prober(false);
            }
            Action::DropProber => {
                self.dropped_jobs += 1;
                self.prober = None;
            }
            Action::Change(server) => {
                self.changes += 1;
                self.server = server;
            }
        }
    }

    /// The first part of `Node::send`.
    fn call(&mut self, runtime: usize) {
        let own = &mut self.runtimes[runtime];
        if own.breaker.open_error().is_some() {
            if !self.probers.is_running() && self.model.fault != Some(Fault::CallsStartNoProbes) {
                self.start_probes();
            }
            return self.fall_back();
        }
        let before = own.connection;
        if own.connection.is_none() {
            if self.server == Server::IsDown {
                self.calls.push(Call { runtime, stage: Stage::Opens });
                return;
            }
            self.connections += 1;
            own.connection = Some(self.connections);
        }
        let connection = own.connection.unwrap_or_default();
        self.calls.push(Call { runtime, stage: Stage::Sent { before, connection } });
    }

    /// What follows after a request was sent.
    fn step_call(&mut self, index: usize) {
        let Call { runtime, stage } = self.calls[index];
        let own = &mut self.runtimes[runtime];
        match (stage, self.server) {
            (Stage::Sent { .. }, Server::Replies) => {
                own.breaker.record_reply();
                (own.timeouts, own.is_half_open) = (0, false);
                self.replies += 1;
                self.calls.remove(index);
            }
            (Stage::Sent { connection, .. }, Server::IsDown) => {
                // The connection is broken. That is no timeout.
                own.connection.take_if(|current| *current == connection);
                self.calls.remove(index);
                self.fall_back();
            }
            (Stage::Sent { before, .. }, Server::IsSilent) => {
                let now = own.connection;
                let is_current = match (before, now) {
                    (Some(before), Some(now)) => before == now,
                    (before, now) => before.is_none() == now.is_none(),
                };
                if is_current {
                    own.timeouts += 1;
                }
                if is_current && own.breaker.record_timeout() {
                    self.calls[index].stage = Stage::Opens;
                } else {
                    self.calls.remove(index);
                    self.fall_back();
                }
            }
            (Stage::Opens, _) => {
                own.connection = None;
                if own.breaker.open(StoreError::ShuttingDown) {
                    self.calls[index].stage = Stage::StartsProbes;
                } else {
                    self.calls.remove(index);
                    self.fall_back();
                }
            }
            (Stage::StartsProbes, _) => {
                if !self.is(Fault::OpeningStartsNoProbes) {
                    self.start_probes();
                }
                self.calls.remove(index);
                self.fall_back();
            }
        }
    }

    fn start_probes(&mut self) {
        if let Some(job) = self.probers.start() {
            self.prober = Some((job, ProberStage::Sleeps));
        }
    }

    fn open_runtimes(&self) -> Vec<usize> {
        let is_open = |runtime: &usize| self.runtimes[*runtime].breaker.open_error().is_some();
        (0..2).filter(is_open).collect()
    }

    /// The next step of `Prober::run`.
    fn step_prober(&mut self, answers: bool) {
        let Some((mut job, stage)) = self.prober.take() else { return };
        let next = match stage {
            ProberStage::Sleeps => ProberStage::Probes(self.open_runtimes()),
            ProberStage::Probes(open) if answers => ProberStage::HalfOpens(open),
            ProberStage::Probes(_) => ProberStage::Looks,
            ProberStage::HalfOpens(open) => {
                let known = if self.is(Fault::ProbesCloseOneBreaker) { 1 } else { 2 };
                let is_closed = self.is(Fault::HalfOpenIsClosed);
                for index in open.into_iter().filter(|index| *index < known) {
                    let runtime = &mut self.runtimes[index];
                    runtime.breaker.half_open();
                    (runtime.timeouts, runtime.is_half_open) = (0, true);
                    if is_closed {
                        runtime.breaker.record_reply();
                    }
                }
                ProberStage::Looks
            }
            ProberStage::Looks if self.open_runtimes().is_empty() => ProberStage::Ends,
            ProberStage::Looks => ProberStage::Sleeps,
            ProberStage::Ends => {
                let looks = !self.is(Fault::ProberDoesNotLookAgain);
                if job.ends(|| looks && !self.open_runtimes().is_empty()) {
                    return;
                }
                ProberStage::Sleeps
            }
        };
        self.prober = Some((job, next));
    }

    /// A call that the server has not decided is decided by the share of this process.
    fn fall_back(&mut self) {
        let terms = *LIMIT.terms();
        let key_id = KeyId::new(terms.identity(), 0);
        let charge = Charge { terms, key_id, count_name: Vec::new(), cost: 1, statement: None };
        let instances = if self.is(Fault::FallbackHasNoShare) { 1 } else { INSTANCES };
        let calls = Calls::take(Arc::new(charge)).share(instances);
        let reply = self.fallback.apply(&calls, Source::Fallback);
        self.admitted += usize::from(reply.is_allowed());
    }

    /// Checks the state.
    pub(super) fn judge(&mut self) {
        let starts = self.calls.iter().any(|call| call.stage == Stage::StartsProbes);
        let is_probed = starts || self.probers.is_running() || self.dropped_jobs > 0;
        if !self.open_runtimes().is_empty() && !is_probed {
            self.mistakes.push(PROBED);
        }
        for (index, runtime) in self.runtimes.iter().enumerate() {
            let most = if runtime.is_half_open { 1 } else { TIMEOUTS_TO_OPEN as usize };
            let is_open = runtime.breaker.open_error().is_some();
            let opens =
                self.calls.iter().any(|call| call.runtime == index && call.stage == Stage::Opens);
            if runtime.timeouts >= most && !is_open && !opens {
                self.mistakes.push(FEW_WAIT);
            }
        }
        if self.admitted > SHARE_OF_LIMIT {
            self.mistakes.push(SHARE);
        }
    }

    /// Plays on with a server that replies, until nothing is left to do and each runtime has called twice.
    pub(super) fn finish(&mut self) {
        self.server = Server::Replies;
        self.rest();
        // If the job that probes was dropped, these calls start it again.
        for runtime in 0..2 {
            self.call(runtime);
            self.rest();
        }
        let replies = self.replies;
        for runtime in 0..2 {
            self.call(runtime);
            self.rest();
        }
        let rests = self.calls.is_empty() && !self.probers.is_running();
        if !rests || self.replies != replies + 2 {
            self.mistakes.push(CLOSES);
        }
    }

    fn rest(&mut self) {
        for _ in 0..60 {
            if !self.calls.is_empty() {
                self.step(Action::Step(0));
            } else if self.prober.is_some() {
                self.step(Action::Probe);
            } else {
                return;
            }
        }
    }
}
