//! The background thread: runs jobs that must not depend on the runtime of a caller, such as probes of a
//! server and give-backs of units. Other modules define the jobs.
//!
//! The thread has its own tokio runtime. It starts with the first job. After its [`Background`] was dropped,
//! it ends when all jobs have finished, or after [`SHUTDOWN_GRACE`]. So a job that runs for as long as its
//! owner exists must hold a weak reference to the owner.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The time for which jobs may continue after the [`Background`] was dropped.
pub(crate) const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// The background thread of a limiter.
#[derive(Default)]
pub(crate) struct Background {
    jobs: Mutex<Option<UnboundedSender<Job>>>,
}

impl Background {
    /// Runs `job` on the thread. Starts the thread if it is not running. If the thread cannot start, drops
    /// the job and logs an error.
    pub(crate) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        if let Err(error) = self.send(Box::pin(job)) {
            tracing::error!(%error, "cannot start the background thread of the rate limiter");
        }
    }

    fn send(&self, job: Job) -> io::Result<()> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let unsent = match &*jobs {
            Some(sender) => match sender.send(job) {
                Ok(()) => return Ok(()),
                // The thread has ended because it could not create its runtime.
                Err(SendError(job)) => job,
            },
            None => job,
        };
        let (sender, receiver) = unbounded_channel();
        thread::Builder::new().name("ratelimit".to_owned()).spawn(|| run_thread(receiver))?;
        let _ = sender.send(unsent);
        *jobs = Some(sender);
        Ok(())
    }
}

/// Creates a runtime and runs the jobs on it. If the caller created the runtime and the thread could not start, the
/// caller would drop the runtime, which panics in an async task.
fn run_thread(jobs: UnboundedReceiver<Job>) {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run_jobs(jobs)),
        Err(error) => {
            tracing::error!(%error, "cannot create the tokio runtime of the background thread of the rate limiter");
        }
    }
}

async fn run_jobs(mut jobs: UnboundedReceiver<Job>) {
    // Each job holds a sender, so the channel closes once all jobs have ended.
    let (running, mut all_ended) = mpsc::channel::<Infallible>(1);
    while let Some(job) = jobs.recv().await {
        let running = running.clone();
        tokio::spawn(async move {
            job.await;
            drop(running);
        });
    }
    drop(running);
    let _ = timeout(SHUTDOWN_GRACE, all_ended.recv()).await;
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
}
