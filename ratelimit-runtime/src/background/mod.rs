//! The background thread: runs jobs that must not depend on the runtime of a caller, such as probes of a
//! server and give-backs of units. Other modules define the jobs.
//!
//! The thread has its own tokio runtime. It starts with the first job. After its [`Background`] was dropped,
//! it ends when all jobs have finished, or after [`SHUTDOWN_GRACE`]. So a job that runs for as long as its
//! owner exists must hold a weak reference to the owner. Each new thread starts the residents by itself.
//!
//! A flush or a shutdown waits for pending work.
//!
//! A fork copies a limiter without its threads: jobs, lines and leases of the parent never go on in the child, and are
//! not its own.
//!
//! The id of the process is compared only where a tokio runtime first appears and where a job is sent, because reading
//! it is a system call. All else compares with the id that was seen there. What a child does before it has a new
//! runtime is not noticed.

use std::cell::Cell;
use std::future::poll_fn;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{oneshot, watch};
use tokio::task::unconstrained;
use tokio::time::{sleep, timeout};

use crate::threads::{Mutex, MutexGuard, lock};

type BoxedJob = BoxedWork<()>;

/// Work that a caller awaits.
pub(crate) type BoxedWork<T> = Pin<Box<dyn Future<Output = T> + Send>>;

thread_local! {
    /// Whether this is the thread of a limiter.
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Returns a job that each new thread runs; `None` once its owner is gone. Called under a lock.
type Resident = Arc<dyn Fn() -> Option<BoxedJob> + Send + Sync>;

/// The time for which jobs may continue after the [`Background`] was dropped.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// The shortest time between two attempts to start the thread, or a resident that has panicked. Calls that need the
/// thread can come at any rate.
const START_INTERVAL: Duration = Duration::from_millis(400);

/// The id of no process.
const NO_PROCESS: u32 = u32::MAX;

/// The background thread of a limiter.
#[derive(Default)]
pub(crate) struct Background {
    thread: Mutex<OwnValue<JobThread>>,
    residents: Mutex<Vec<Resident>>,
    /// The process in which the thread runs; 0 before the first job, and [`NO_PROCESS`] if the thread does not run.
    runs_in: Arc<AtomicU32>,
}

#[derive(Default)]
struct JobThread {
    jobs: Option<UnboundedSender<BoxedJob>>,
    /// Known once a caller has entered it.
    runtime: Option<Handle>,
    last_start: Option<Instant>,
}

impl Background {
    /// Runs `job` on the thread. Starts the thread if it is not running. If the thread cannot start, drops the job and
    /// logs an error: the process may have no descriptor, memory or thread left at this moment. A later job starts the
    /// thread.
    pub(crate) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.send(Box::pin(job));
    }

    /// Runs `job` as [`spawn`](Self::spawn) does. Calls `abandoned` if the job is dropped before its end, or panics.
    pub(crate) fn spawn_or(
        &self,
        job: impl Future<Output = ()> + Send + 'static,
        abandoned: impl FnOnce() + Send + 'static,
    ) {
        let guard = OnDrop(Some(abandoned));
        self.spawn(async move {
            let mut guard = guard;
            job.await;
            guard.0 = None;
        });
    }

    /// Runs the job that `resident` returns for its owner, in this thread and in each one that takes its place, and
    /// again after a panic, until the owner is gone. An owner lives about as long as this, and has one resident.
    pub(crate) fn spawn_resident<T, F>(
        &self,
        owner: &Arc<T>,
        resident: impl Fn(Arc<T>) -> F + Send + Sync + 'static,
    ) where
        T: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let owner = Arc::downgrade(owner);
        let resident: Resident =
            Arc::new(move || owner.upgrade().map(|owner| Box::pin(resident(owner)) as BoxedJob));
        if let Some(job) = job_of(&resident) {
            self.send(job);
        }
        lock(&self.residents).push(resident);
    }

    /// Starts the thread again if it could not start, or if it is that of the parent process. Takes relaxed loads
    /// otherwise, so that each request calls it.
    pub(crate) fn revive(&self) {
        let runs_in = self.runs_in.load(Relaxed);
        if runs_in != seen_process() && runs_in != 0 {
            self.spawn(async {});
        }
    }

    /// Polls work here, in the runtime of the thread: its requests and timers do not depend on a runtime of the caller.
    /// Returns the work if the thread cannot start.
    pub(crate) async fn enter<T>(&self, mut work: BoxedWork<T>) -> Result<T, BoxedWork<T>> {
        let Some(runtime) = self.runtime().await else { return Err(work) };
        let result = poll_fn(|context| {
            let _entered = runtime.enter();
            work.as_mut().poll(context)
        });
        Ok(result.await)
    }

    /// Returns the runtime of the thread. Starts the thread if it is not running; `None` if it cannot start.
    async fn runtime(&self) -> Option<Handle> {
        let known = lock_own(&self.thread).runtime.clone();
        if known.is_some() {
            return known;
        }
        let (sender, runtime) = oneshot::channel();
        self.spawn(async move { drop(sender.send(Handle::current())) });
        let runtime = runtime.await.ok()?;
        lock_own(&self.thread).runtime = Some(runtime.clone());
        Some(runtime)
    }

    /// Blocks this thread until work is done. If this thread is in a runtime, it may be the only one that drives it. So
    /// the work [`enter`](Self::enter)s the runtime of the background thread instead; `None` if that cannot start.
    /// `None` also on the thread of a limiter.
    pub(crate) fn block_on<T>(&self, work: BoxedWork<T>) -> Option<T> {
        struct Unpark(Thread);

        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }

        if IS_BACKGROUND.get() {
            return None;
        }
        // No runtime may have been seen in this process.
        read_process();
        let work = async {
            match Handle::try_current() {
                Ok(_) => self.enter(work).await.ok(),
                Err(_) => Some(work.await),
            }
        };
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        // A task of tokio that has used its budget would not be woken while it blocks its thread.
        let (mut work, mut context) = (pin!(unconstrained(work)), Context::from_waker(&waker));
        loop {
            match work.as_mut().poll(&mut context) {
                Poll::Ready(result) => return result,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Sends a job to the thread. Starts the thread if it is not running, and not more often than [`START_INTERVAL`].
    // A job that cannot be sent is dropped after the lock is released: other modules define what happens then.
    fn send(&self, mut job: BoxedJob) {
        let process = read_process();
        let mut thread = lock_own(&self.thread);
        if let Some(jobs) = &thread.jobs {
            match jobs.send(job) {
                Ok(()) => return,
                // The thread has ended because it could not create its runtime.
                Err(SendError(unsent)) => job = unsent,
            }
        }
        let now = Instant::now();
        if thread.last_start.is_some_and(|last| now.duration_since(last) < START_INTERVAL) {
            return;
        }
        thread.last_start = Some(now);
        let (sender, receiver) = unbounded_channel();
        let runs_in = Arc::clone(&self.runs_in);
        runs_in.store(NO_PROCESS, Relaxed);
        let started = thread::Builder::new()
            .name("ratelimit".to_owned())
            .spawn(move || run_thread(receiver, process, &runs_in));
        let mut unsent = Vec::new();
        if started.is_ok() {
            lock(&self.residents).retain(|resident| {
                let job = job_of(resident);
                let is_wanted = job.is_some();
                unsent.extend(job.and_then(|job| sender.send(job).err()));
                is_wanted
            });
            unsent.extend(sender.send(job).err());
            thread.jobs = Some(sender);
            thread.runtime = None;
        }
        drop(thread);
        if let Err(error) = started {
            tracing::error!(%error, "cannot start the background thread of the rate limiter");
        }
    }
}

/// Returns the job of a resident, which starts again after a panic; `None` once its owner is gone.
fn job_of(resident: &Resident) -> Option<BoxedJob> {
    let (mut job, resident) = (resident()?, Arc::clone(resident));
    Some(Box::pin(async move {
        // The panic hook has reported a panic.
        while tokio::spawn(job).await.is_err_and(|error| error.is_panic()) {
            sleep(START_INTERVAL).await;
            let Some(again) = resident() else { return };
            job = again;
        }
    }))
}

/// Creates a runtime and runs the jobs on it. If the caller created the runtime and the thread could not start, the
/// caller would drop the runtime, which panics in an async task.
fn run_thread(jobs: UnboundedReceiver<BoxedJob>, process: u32, runs_in: &AtomicU32) {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            runs_in.store(process, Relaxed);
            IS_BACKGROUND.set(true);
            runtime.block_on(run_jobs(jobs));
        }
        Err(error) => {
            tracing::error!(%error, "cannot create the tokio runtime of the background thread of the rate limiter");
        }
    }
}

async fn run_jobs(mut jobs: UnboundedReceiver<BoxedJob>) {
    let running = WorkCount::default();
    while let Some(job) = jobs.recv().await {
        let work = running.begin();
        tokio::spawn(async move {
            job.await;
            drop(work);
        });
    }
    let _ = timeout(SHUTDOWN_GRACE, running.all_ended()).await;
}

/// Calls a closure when it is dropped.
struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

/// Counts pending work. A process that was forked has none of its parent. Pending work is a receiver of its generation,
/// the newest of its time. A new generation begins when a caller waits for the work before it.
#[derive(Default)]
pub(crate) struct WorkCount(Mutex<OwnValue<Vec<Arc<watch::Sender<()>>>>>);

/// Work that is pending until this is dropped. The thread of the limiter has it, or a value of one process, so a child
/// does not drop that of its parent.
pub(crate) type PendingWork = watch::Receiver<()>;

impl WorkCount {
    /// Begins work.
    pub(crate) fn begin(&self) -> PendingWork {
        let mut generations = lock_own(&self.0);
        if generations.is_empty() {
            generations.push(Arc::default());
        }
        generations[generations.len() - 1].subscribe()
    }

    /// Returns how much work is pending.
    pub(crate) fn pending(&self) -> usize {
        lock_own(&self.0).iter().map(|generation| generation.receiver_count()).sum()
    }

    /// Completes once all work that is pending now has ended.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut generations = lock_own(&self.0);
        generations.retain(|generation| generation.receiver_count() > 0);
        let pending = generations.clone();
        generations.push(Arc::default());
        async move {
            for generation in pending {
                generation.closed().await;
            }
        }
    }

    /// Completes once no work is pending.
    pub(crate) async fn all_ended(&self) {
        while self.pending() > 0 {
            self.ended().await;
        }
    }
}

/// The process that was last seen; 0 before the first look.
static SEEN: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The runtime that this thread was last in. A child gets another one: numbers of runtimes are not used again.
    static LAST: Cell<Option<Id>> = const { Cell::new(None) };
}

/// Returns the process as it was last seen. Looks if nothing has looked yet: what was counted before the first look
/// would otherwise seem to be of another process.
#[inline]
pub(crate) fn seen_process() -> u32 {
    match SEEN.load(Relaxed) {
        0 => read_process(),
        id => id,
    }
}

/// Reads the id of the process.
#[cold]
pub(crate) fn read_process() -> u32 {
    let id = std::process::id();
    if SEEN.load(Relaxed) != id {
        SEEN.store(id, Relaxed);
    }
    id
}

/// Returns whether this thread is in a runtime. If it is a new one, reads the id of the process.
pub(crate) fn is_in_runtime() -> bool {
    let Ok(runtime) = Handle::try_current() else { return false };
    let id = Some(runtime.id());
    if LAST.replace(id) != id {
        read_process();
    }
    true
}

/// A value of one process. A child has a new one instead of the copy of its parent's. See [`lock_own`].
pub(crate) struct OwnValue<T> {
    process: u32,
    value: T,
}

impl<T: Default> Default for OwnValue<T> {
    fn default() -> Self {
        Self { process: read_process(), value: T::default() }
    }
}

/// Locks a value of this process. A panic in another thread leaves it valid.
#[inline]
pub(crate) fn lock_own<T: Default>(value: &Mutex<OwnValue<T>>) -> MutexGuard<'_, OwnValue<T>> {
    let mut value = lock(value);
    if value.process != seen_process() {
        // Not dropped: its wakers and tasks belong to runtimes of the parent, whose locks can be held for ever here,
        // and whose descriptors wake the parent.
        mem::forget(mem::take(&mut *value));
    }
    value
}

impl<T> Deref for OwnValue<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OwnValue<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn runs_jobs_on_one_thread_and_finishes_them_after_the_drop() {
        let background = Background::default();
        let (sender, receiver) = channel();
        for number in 0..3 {
            let sender = sender.clone();
            background.spawn(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                sender.send((number, thread::current().id())).expect("the test waits");
            });
        }
        // The jobs finish although the `Background` is dropped.
        drop((background, sender));
        let mut done: Vec<_> = receiver.iter().collect();
        done.sort_by_key(|(number, _)| *number);
        assert_eq!(done.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(done.iter().all(|(_, id)| *id == done[0].1 && *id != thread::current().id()));
    }

    #[test]
    fn runs_jobs_after_a_job_has_panicked() {
        let background = Background::default();
        background.spawn(async { panic!("on purpose") });
        let (sender, receiver) = channel();
        background.spawn(async move { sender.send(()).expect("the test waits") });
        receiver.recv_timeout(SHUTDOWN_GRACE).expect("the second job runs");
    }

    #[test]
    fn a_resident_starts_again_after_it_has_panicked() {
        let background = Background::default();
        let (sender, receiver) = channel();
        let starts = Arc::new(AtomicU32::new(0));
        background.spawn_resident(&starts, move |starts| {
            let (start, sender) = (starts.fetch_add(1, Relaxed), sender.clone());
            async move {
                sender.send(start).expect("the test waits");
                panic!("on purpose");
            }
        });
        let started = [(); 2].map(|()| receiver.recv_timeout(SHUTDOWN_GRACE).expect("it runs"));
        assert_eq!(started, [0, 1]);
    }
}

#[cfg(all(test, not(loom)))]
mod pending_tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_ready(future: std::pin::Pin<&mut impl Future>) -> bool {
        matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
    }

    #[test]
    fn waits_for_the_work_before_and_not_for_later_work() {
        let works = WorkCount::default();
        assert!(is_ready(pin!(works.ended())), "there is none");
        let (first, second) = (works.begin(), works.begin());
        let (mut ended, mut all_ended) = (pin!(works.ended()), pin!(works.all_ended()));
        let third = works.begin();
        drop(second);
        assert!(!is_ready(ended.as_mut()) && !is_ready(all_ended.as_mut()));
        drop(first);
        assert!(is_ready(ended) && !is_ready(all_ended.as_mut()));
        drop(third);
        assert!(is_ready(all_ended) && works.pending() == 0);
    }

    #[test]
    fn forgets_callers_that_have_stopped_waiting() {
        let works = WorkCount::default();
        let _work = works.begin();
        for _ in 0..3 {
            drop(works.ended());
        }
        assert_eq!(lock_own(&works.0).len(), 2);
    }
}

/// Tries every order of threads. CONTRIBUTING.md describes how to run these tests.
#[cfg(all(test, loom))]
mod interleavings {
    use loom::future::block_on;
    use loom::thread::spawn;

    use super::*;

    #[test]
    fn a_caller_waits_until_all_work_has_ended() {
        loom::model(|| {
            let count = WorkCount::default();
            let threads = [count.begin(), count.begin()].map(|work| spawn(move || drop(work)));
            block_on(count.all_ended());
            assert_eq!(count.pending(), 0);
            for thread in threads {
                thread.join().expect("no panic");
            }
        });
    }

    #[test]
    fn later_work_does_not_hold_up_a_caller() {
        loom::model(|| {
            let count = WorkCount::default();
            let earlier = count.begin();
            let ended = count.ended();
            let later = count.begin();
            let thread = spawn(move || drop(earlier));
            block_on(ended);
            assert_eq!(count.pending(), 1);
            drop(later);
            thread.join().expect("no panic");
        });
    }
}
