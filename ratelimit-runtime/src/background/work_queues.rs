//! Queues of work that several jobs take in portions. For the calls of batches
//! (`store/redis/operations/batch/mod.rs`).
//!
//! Work is added and taken under one lock, under which a job also ends. So a queue with work has a job, and a queue
//! without work and jobs does not exist.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;

use super::job::{Job, JobCounter, RunningJob};
use crate::threads::{Mutex, MutexGuard};

pub(crate) struct WorkQueues<K, W>(Mutex<HashMap<K, WorkQueue<W>>>);

struct WorkQueue<W> {
    work: VecDeque<W>,
    jobs: JobCounter,
    /// The time at which a job last took work.
    last_taken: Option<Instant>,
}

/// Whether a queue needs another job.
pub(crate) enum NeedOfJob<J: Job> {
    /// The queue has no work.
    Idle,
    /// A job took work a short time ago. Looks again at this time.
    Later(Instant),
    Now(RunningJob<J>),
}

impl<K: Eq + Hash, W> WorkQueues<K, W> {
    /// Adds work. Returns a job for it, unless `most` jobs run: then one of them takes the work. The job is `job`,
    /// which must not use these queues.
    pub(crate) fn add<J: Job>(
        &self,
        id: K,
        work: W,
        most: u32,
        job: impl FnOnce() -> J,
    ) -> Option<RunningJob<J>> {
        let mut queues = self.lock();
        let queue = queues.entry(id).or_default();
        queue.work.push_back(work);
        queue.jobs.start(most, job)
    }

    /// Starts another job, whatever runs, if the queue has work and no job has taken work for `pause`.
    pub(crate) fn start_another<J: Job>(
        &self,
        id: &K,
        pause: Duration,
        job: impl FnOnce() -> J,
    ) -> NeedOfJob<J> {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(id).filter(|queue| !queue.work.is_empty()) else {
            return NeedOfJob::Idle;
        };
        let now = Instant::now();
        if let Some(due) = queue.last_taken.map(|last| last + pause).filter(|due| *due > now) {
            return NeedOfJob::Later(due);
        }
        queue.last_taken = Some(now);
        queue.jobs.start(u32::MAX, job).map_or(NeedOfJob::Later(now + pause), NeedOfJob::Now)
    }

    /// Takes a portion of the work for a job. If there is none, the job ends.
    pub(crate) fn take<J: Job, T>(
        &self,
        id: &K,
        job: &mut RunningJob<J>,
        take: impl FnOnce(&mut VecDeque<W>) -> Option<T>,
    ) -> Option<T> {
        let mut queues = self.lock();
        let queue = queues.get_mut(id)?;
        let taken = take(&mut queue.work);
        queue.last_taken = Some(Instant::now());
        if taken.is_none() {
            job.end();
            if !queue.jobs.is_running() {
                queues.remove(id);
            }
        }
        taken
    }

    /// Removes the work of a queue if it has no job. For a job that is abandoned.
    pub(crate) fn take_stranded(&self, id: &K) -> VecDeque<W> {
        let mut queues = self.lock();
        let is_stranded = queues.get(id).is_some_and(|queue| !queue.jobs.is_running());
        let stranded = if is_stranded { queues.remove(id) } else { None };
        stranded.map(|queue| queue.work).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, WorkQueue<W>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, W> Default for WorkQueues<K, W> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<W> Default for WorkQueue<W> {
    fn default() -> Self {
        Self { work: VecDeque::new(), jobs: JobCounter::default(), last_taken: None }
    }
}

/// Tries every order of threads. CONTRIBUTING.md describes how to run these tests.
#[cfg(all(test, loom))]
mod interleavings {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use loom::thread::spawn;

    use super::*;

    const ID: u8 = 0;
    const THREADS: usize = 2;

    /// Counts how often it was taken, or removed as stranded.
    type Work = usize;

    #[derive(Default)]
    struct Shared {
        queues: WorkQueues<u8, Work>,
        ended: [AtomicU64; THREADS],
    }

    struct SharedJob(Arc<Shared>);

    impl Job for SharedJob {
        fn abandon(&mut self) {
            for work in self.0.queues.take_stranded(&ID) {
                self.0.ended[work].fetch_add(1, Relaxed);
            }
        }
    }

    fn run(mut job: RunningJob<SharedJob>) {
        let shared = Arc::clone(&job.0);
        while let Some(work) = shared.queues.take(&ID, &mut job, VecDeque::pop_front) {
            shared.ended[work].fetch_add(1, Relaxed);
        }
    }

    /// Adds work in several threads. The job of the first thread is dropped before it takes work if `stops`.
    fn assert_all_ends_once(most: u32, stops: bool) {
        loom::model(move || {
            let shared = Arc::new(Shared::default());
            let threads: Vec<_> = (0..THREADS)
                .map(|work| {
                    let shared = Arc::clone(&shared);
                    spawn(move || {
                        let job = || SharedJob(Arc::clone(&shared));
                        match shared.queues.add(ID, work, most, job) {
                            Some(job) if stops && work == 0 => drop(job),
                            job => job.into_iter().for_each(run),
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().expect("no panic");
            }
            assert!(shared.ended.iter().all(|ended| ended.load(Relaxed) == 1));
            assert!(shared.queues.lock().is_empty());
        });
    }

    #[test]
    fn one_job_takes_all_work_once() {
        assert_all_ends_once(1, false);
    }

    #[test]
    fn two_jobs_take_all_work_once() {
        assert_all_ends_once(2, false);
    }

    #[test]
    fn no_work_is_left_behind_by_a_job_that_stops() {
        assert_all_ends_once(1, true);
        assert_all_ends_once(2, true);
    }

    #[test]
    fn another_job_takes_the_work_of_one_that_is_slow() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let job = || SharedJob(Arc::clone(&shared));
            let slow = shared.queues.add(ID, 0, 1, job).expect("the first");
            let other = {
                let shared = Arc::clone(&shared);
                spawn(move || {
                    let job = || SharedJob(Arc::clone(&shared));
                    match shared.queues.start_another(&ID, Duration::ZERO, job) {
                        NeedOfJob::Idle => {}
                        NeedOfJob::Later(due) => panic!("it is time, and not only at {due:?}"),
                        NeedOfJob::Now(job) => run(job),
                    }
                })
            };
            run(slow);
            other.join().expect("no panic");
            assert_eq!(shared.ended[0].load(Relaxed), 1);
            assert!(shared.queues.lock().is_empty());
        });
    }
}
