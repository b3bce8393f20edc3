//! States to the shared store what this process holds of its counts of calls in flight (`holders.rs`).
//!
//! A job of the background thread states a count within milliseconds after units are released, unless a call does so
//! before, and three times within a hold while units are held. It runs as long as there are such counts, also after the
//! limiter was dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::Backend;
use super::agenda::Agenda;
use super::holders::Holders;
use crate::background::{Job, RunningJob, lock_own};
use crate::report;
use crate::store::{Charge, MAX_CORRECTED, SharedStore, Store};

/// How long statements pause after a failure.
const PAUSE: Duration = Duration::from_millis(100);

/// The task of the background thread that states what this process holds.
pub(super) struct StatementJob {
    backend: Arc<Backend>,
    holders: Arc<Holders>,
    agenda: Mutex<Agenda>,
}

impl StatementJob {
    pub(super) fn new(backend: Arc<Backend>, holders: Arc<Holders>) -> Self {
        Self { backend, holders, agenda: Mutex::default() }
    }

    pub(super) async fn run(mut job: RunningJob<Self>) {
        loop {
            let due = job.due();
            if due.is_empty() {
                if lock_own(&job.holders.counts).by_count.is_empty() {
                    if job.ends() {
                        return;
                    }
                    continue;
                }
                let pause = job.agenda().pause(job.now());
                let _ = timeout(pause, job.holders.changes.changed()).await;
                continue;
            }
            job.state(due).await;
        }
    }

    fn now(&self) -> u64 {
        self.backend.clock().steady()
    }

    fn agenda(&self) -> MutexGuard<'_, Agenda> {
        self.agenda.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts that the job states now. Forgets counts without units, and loses units whose hold has ended.
    fn due(&self) -> Vec<Arc<Charge>> {
        let (now, mut due, mut lost) = (self.now(), Vec::new(), Vec::new());
        let mut agenda = self.agenda();
        let mut counts = lock_own(&self.holders.counts);
        for key_id in agenda.take(self.holders.changes.take(), now, Instant::now()) {
            let Some(charge) = counts.by_count.get(&key_id) else { continue };
            let Some(holder) = &charge.holder else { continue };
            let units = holder.lose_late(now);
            if units > 0 {
                lost.push((*charge.terms.name(), units));
            }
            if holder.next_statement().is_some_and(|at| at <= now) {
                due.push(Arc::clone(charge));
            } else if holder.is_idle()
                && Arc::strong_count(charge) == 1
                && Arc::strong_count(holder) == 1
            {
                // No call is about to take units.
                counts.by_count.remove(&key_id);
            } else {
                agenda.plan(key_id, holder.next_look());
            }
        }
        drop((counts, agenda));
        // A subscriber of events is foreign code, and can call the limiter.
        for (name, units) in lost {
            report::units_lost(&name, units);
        }
        due
    }

    /// States counts, in one script for each group.
    async fn state(&self, due: Vec<Arc<Charge>>) {
        let Some(shared) = &self.backend.shared else { return };
        let mut groups: Vec<(u16, Vec<Arc<Charge>>)> = Vec::new();
        for charge in due {
            let group = shared.slot(&charge);
            match groups.iter_mut().find(|(it, of)| *it == group && of.len() < MAX_CORRECTED) {
                Some((_, of)) => of.push(charge),
                None => groups.push((group, vec![charge])),
            }
        }
        for (_, charges) in groups {
            self.state_group(shared, &charges).await;
        }
    }

    async fn state_group(&self, shared: &SharedStore, charges: &[Arc<Charge>]) {
        let now = self.now();
        let holders =
            || charges.iter().filter_map(|charge| Some((charge, charge.holder.as_ref()?)));
        let sent: Vec<_> = holders().map(|(_, holder)| holder.state(now)).collect();
        let results = shared.hold(charges).await;
        let now = self.now();
        let again = now.saturating_add(PAUSE.as_micros() as u64);
        for (((charge, holder), sent), result) in holders().zip(sent).zip(results) {
            match result {
                Ok((outcome, receipt)) => {
                    let lost = holder.stated(sent, &outcome, receipt, now);
                    report::units_lost(charge.terms.name(), lost);
                }
                Err(error) => holder.not_stated(error, again),
            }
            self.agenda().plan(charge.key_id, holder.next_look());
        }
        self.backend.in_flight_changed.notify_waiters();
    }
}

impl Job for StatementJob {}
