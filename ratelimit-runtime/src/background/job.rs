//! Jobs that at most one task runs at a time, or a few, and that look for work again if some came while they ended.
//!
//! A caller puts work somewhere, and then calls [`JobCounter::start`]. The job takes the work from there. When it
//! finds none, it calls [`RunningJob::ends`]. Both calls are read-modify-writes of one number, so they have an order.
//! If the caller comes first, the job looks for work again. If the job comes first, the caller starts another job.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use super::process::seen_process;
use crate::threads::AtomicU64;

/// Set in the state of a counter if work came while as many jobs ran as may run.
const NEW_WORK: u64 = 1;

/// A job that runs, in the state of a counter.
const RUNNING: u64 = 2;

/// The number of bits before the process in the state of a counter.
const PROCESS_SHIFT: u32 = 32;

/// What a job does, beside its work.
pub(crate) trait Job {
    /// Called when the job has stopped before its end: it has panicked, its runtime has shut down, or its thread
    /// could not start. Its place is free then, and the next work starts another job.
    fn abandon(&mut self) {}
}

/// Counts the jobs that work on something. A process that was forked starts jobs of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobCounter(Arc<AtomicU64>);

/// A job that occupies a place of a counter until it ends or is dropped.
pub(crate) struct RunningJob<J: Job> {
    job: J,
    counter: JobCounter,
    process: u32,
    has_ended: bool,
}

impl JobCounter {
    /// Starts a job for work that the caller has added, unless `most` jobs run: then one of them takes the work. The
    /// caller runs the job, or drops it.
    pub(crate) fn start<J: Job>(
        &self,
        most: u32,
        job: impl FnOnce() -> J,
    ) -> Option<RunningJob<J>> {
        let (process, most) = (seen_process(), u64::from(most) * RUNNING);
        let added = |jobs| if jobs < most { jobs + RUNNING } else { jobs | NEW_WORK };
        let is_new = self.change(process, |jobs| Some(added(jobs))) < most;
        is_new.then(|| RunningJob { job: job(), counter: self.clone(), process, has_ended: false })
    }

    /// Returns whether a job runs.
    pub(crate) fn is_running(&self) -> bool {
        own_jobs(self.0.load(Acquire), seen_process()) >= RUNNING
    }

    /// Changes the jobs of a process, and returns those before.
    fn change(&self, process: u32, change: impl Fn(u64) -> Option<u64>) -> u64 {
        let changed = |state| {
            let jobs = change(own_jobs(state, process))?;
            Some(u64::from(process) << PROCESS_SHIFT | jobs)
        };
        let before = self.0.fetch_update(AcqRel, Acquire, changed);
        own_jobs(before.unwrap_or_else(|state| state), process)
    }
}

/// Returns the jobs in the state of a counter; 0 if they are of another process.
fn own_jobs(state: u64, process: u32) -> u64 {
    if state >> PROCESS_SHIFT == u64::from(process) { u64::from(state as u32) } else { 0 }
}

impl<J: Job> RunningJob<J> {
    /// Ends the job, unless work came since the last call. Returns whether the job has ended. The job calls this when
    /// it finds no work, and looks again if it has not ended.
    pub(crate) fn ends(&mut self) -> bool {
        let fewer = |jobs| match jobs & NEW_WORK {
            0 => u64::checked_sub(jobs, RUNNING),
            _ => Some(jobs - NEW_WORK),
        };
        self.has_ended = self.counter.change(self.process, fewer) & NEW_WORK == 0;
        self.has_ended
    }

    /// Ends the job. The caller has found no work under the lock under which work is added, and still holds that lock
    /// or has removed this counter under it.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
        let fewer = |jobs| u64::checked_sub(jobs & !NEW_WORK, RUNNING);
        self.counter.change(self.process, fewer);
    }
}

impl<J: Job> Drop for RunningJob<J> {
    fn drop(&mut self) {
        if !self.has_ended {
            // This job may leave work that no other job has seen, so a running job looks again.
            let fewer = |jobs: u64| match (jobs & !NEW_WORK).checked_sub(RUNNING)? {
                0 => Some(0),
                others => Some(others | NEW_WORK),
            };
            self.counter.change(self.process, fewer);
            self.job.abandon();
        }
    }
}

impl<J: Job> Deref for RunningJob<J> {
    type Target = J;

    fn deref(&self) -> &J {
        &self.job
    }
}

impl<J: Job> DerefMut for RunningJob<J> {
    fn deref_mut(&mut self) -> &mut J {
        &mut self.job
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counted(Arc<std::sync::atomic::AtomicU64>);

    impl Job for Counted {
        fn abandon(&mut self) {
            self.0.fetch_add(1, AcqRel);
        }
    }

    #[test]
    fn runs_one_job_and_looks_again_after_new_work() {
        let counter = JobCounter::default();
        let mut job = counter.start(1, Counted::default).expect("the first");
        assert!(counter.start(1, Counted::default).is_none() && counter.is_running());
        assert!(!job.ends(), "work has come");
        assert!(job.ends() && !counter.is_running());
        let abandoned = Arc::clone(&job.0);
        drop(job);
        assert_eq!(abandoned.load(Acquire), 0);
        assert!(counter.start(1, Counted::default).is_some());
    }

    #[test]
    fn a_job_that_is_dropped_frees_its_place_and_is_abandoned() {
        let counter = JobCounter::default();
        let job = counter.start(1, Counted::default).expect("the first");
        let abandoned = Arc::clone(&job.0);
        assert!(counter.start(1, Counted::default).is_none());
        drop(job);
        assert_eq!(abandoned.load(Acquire), 1);
        let mut next = counter.start(1, Counted::default).expect("the place is free");
        assert!(next.ends(), "the work was abandoned with the first job");
    }

    #[test]
    fn another_job_looks_for_the_work_of_one_that_is_dropped() {
        let counter = JobCounter::default();
        let first = counter.start(2, Counted::default).expect("the first");
        let mut second = counter.start(2, Counted::default).expect("the second");
        drop(first);
        assert!(!second.ends(), "it looks again");
        assert!(second.ends() && !counter.is_running());
    }

    #[test]
    fn a_job_of_the_parent_process_does_not_count() {
        let counter = JobCounter::default();
        let (own, parent) = (seen_process(), seen_process() + 1);
        counter.change(parent, |jobs| Some(jobs + RUNNING));
        assert!(!counter.is_running());
        let mut of_parent = RunningJob {
            job: Counted::default(),
            counter: counter.clone(),
            process: parent,
            has_ended: false,
        };
        let job = counter.start(1, Counted::default).expect("one of this process");
        assert!(of_parent.ends(), "and it changes nothing");
        assert!(counter.is_running());
        drop(job);
        assert!(!counter.is_running() && seen_process() == own);
    }
}

/// Tries every order in which threads can change a counter. CONTRIBUTING.md describes how to run these tests.
#[cfg(all(test, loom))]
mod interleavings {
    use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use loom::sync::{Arc, Mutex};
    use loom::thread::spawn;

    use super::*;

    const WORKS: usize = 2;

    /// Work of several callers. Its accesses are relaxed, so only the counter makes them visible to a job.
    #[derive(Default)]
    struct Works {
        counter: JobCounter,
        added: [AtomicBool; WORKS],
        ended: [AtomicBool; WORKS],
        running: Mutex<()>,
    }

    struct WorkJob(Arc<Works>);

    impl Job for WorkJob {
        fn abandon(&mut self) {
            self.end_all();
        }
    }

    impl WorkJob {
        fn end_all(&self) {
            for (added, ended) in self.0.added.iter().zip(&self.0.ended) {
                if added.load(Relaxed) {
                    ended.store(true, Relaxed);
                }
            }
        }
    }

    impl Works {
        fn add(works: &Arc<Self>, index: usize, stops: bool) {
            works.added[index].store(true, Relaxed);
            let Some(mut job) = works.counter.start(1, || WorkJob(Arc::clone(works))) else {
                return;
            };
            let running = works.running.try_lock().expect("one job runs");
            if stops {
                drop(running);
                return;
            }
            job.end_all();
            drop(running);
            while !job.ends() {
                let _running = works.running.try_lock().expect("one job runs");
                job.end_all();
            }
        }
    }

    /// Adds work in several threads. The jobs of the first stop before they end if `stops`.
    fn assert_all_ends(stops: bool) {
        loom::model(move || {
            let works = Arc::new(Works::default());
            let threads: Vec<_> = (0..WORKS)
                .map(|index| {
                    let works = Arc::clone(&works);
                    spawn(move || Works::add(&works, index, stops && index == 0))
                })
                .collect();
            for thread in threads {
                thread.join().expect("no panic");
            }
            assert!(works.ended.iter().all(|ended| ended.load(Relaxed)));
            assert!(!works.counter.is_running());
        });
    }

    #[test]
    fn no_work_is_left_behind() {
        assert_all_ends(false);
    }

    #[test]
    fn no_work_is_left_behind_by_a_job_that_stops() {
        assert_all_ends(true);
    }
}
