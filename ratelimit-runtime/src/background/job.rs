//! Background jobs that run at most once at a time in a process.
//!
//! A caller puts work somewhere, and then calls [`JobSlot::start`]. The job takes the work from there. When it finds
//! none, it calls [`RunningJob::ends`]. Both change one number, so they have an order: if the caller comes first, the
//! job sees the work, and otherwise, the caller starts another job.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use super::process::seen_process;
use crate::threads::AtomicU64;

/// The place of a job. A process that was forked has a free one.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobSlot(Arc<AtomicU64>);

/// A job that runs, until this is dropped.
pub(crate) struct RunningJob {
    slot: JobSlot,
    process: u64,
    has_ended: bool,
}

impl JobSlot {
    /// Starts a job for work that the caller has added, unless one runs.
    pub(crate) fn start(&self) -> Option<RunningJob> {
        let process = seen_process().into();
        let is_free = self.0.swap(process, AcqRel) != process;
        is_free.then(|| RunningJob { slot: self.clone(), process, has_ended: false })
    }

    /// Returns whether a job runs.
    pub(crate) fn is_running(&self) -> bool {
        self.0.load(Acquire) == u64::from(seen_process())
    }
}

impl RunningJob {
    fn free(&self) {
        let _ = self.slot.0.compare_exchange(self.process, 0, AcqRel, Acquire);
    }

    /// Ends the job, which has found no work. It goes on if there is some by now. Returns whether it has ended.
    pub(crate) fn ends(&mut self, has_work: impl FnOnce() -> bool) -> bool {
        self.free();
        self.has_ended = true;
        if has_work() && self.slot.0.swap(self.process, AcqRel) != self.process {
            self.has_ended = false;
        }
        self.has_ended
    }
}

impl Drop for RunningJob {
    /// Also frees the place of a job that has panicked, or whose thread could not start.
    fn drop(&mut self) {
        if !self.has_ended {
            self.free();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn runs_one_job_and_goes_on_with_new_work() {
        let slot = JobSlot::default();
        let mut job = slot.start().expect("the first");
        assert!(slot.start().is_none() && slot.is_running());
        assert!(!job.ends(|| true), "there is work");
        assert!(slot.start().is_none());
        assert!(job.ends(|| false) && !slot.is_running());
        let next = slot.start().expect("the place is free");
        drop(job);
        assert!(slot.is_running(), "the next job");
        drop(next);
        assert!(!slot.is_running());
    }

    #[test]
    fn a_job_of_the_parent_process_does_not_count() {
        let slot = JobSlot::default();
        let mut of_parent = slot.start().expect("the first");
        of_parent.process += 1;
        slot.0.store(of_parent.process, std::sync::atomic::Ordering::Release);
        assert!(!slot.is_running());
        let job = slot.start().expect("one of this process");
        assert!(of_parent.ends(|| false), "and it changes nothing");
        assert!(slot.is_running());
        drop(job);
        assert!(!slot.is_running());
    }
}

/// Tries every order of threads. CONTRIBUTING.md describes how to run these tests.
#[cfg(all(test, loom))]
mod interleavings {
    use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use loom::sync::{Arc, Mutex};
    use loom::thread::spawn;

    use super::*;

    /// Work of several callers. Its accesses are relaxed, so only the slot makes them visible to a job.
    #[derive(Default)]
    struct Works {
        slot: JobSlot,
        added: [AtomicBool; 2],
        ended: [AtomicBool; 2],
        running: Mutex<()>,
    }

    impl Works {
        fn has_work(&self) -> bool {
            let mut works = self.added.iter().zip(&self.ended);
            works.any(|(added, ended)| added.load(Relaxed) && !ended.load(Relaxed))
        }

        fn add(&self, index: usize) {
            self.added[index].store(true, Relaxed);
            let Some(mut job) = self.slot.start() else { return };
            loop {
                let running = self.running.try_lock().expect("one job runs");
                for (added, ended) in self.added.iter().zip(&self.ended) {
                    ended.store(added.load(Relaxed), Relaxed);
                }
                drop(running);
                if job.ends(|| self.has_work()) {
                    return;
                }
            }
        }
    }

    #[test]
    fn no_work_is_left_behind() {
        loom::model(|| {
            let works = Arc::new(Works::default());
            let threads = [0, 1].map(|index| {
                let works = Arc::clone(&works);
                spawn(move || works.add(index))
            });
            for thread in threads {
                thread.join().expect("no panic");
            }
            assert!(works.ended.iter().all(|ended| ended.load(Relaxed)));
            assert!(!works.slot.is_running());
        });
    }
}
