//! One thread for work that does not depend on the runtime of a caller: it probes servers that do not
//! answer, and gives back unused units. It runs jobs and knows none of them.
//!
//! The thread has a tokio runtime of its own. It starts with the first job, and ends once its owner is
//! gone and the jobs have finished. So a job that goes on for as long as its owner lives holds the owner
//! weakly.

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

/// How long jobs may go on once the owner of the thread is gone.
const GRACE: Duration = Duration::from_secs(5);

/// The background thread of a limiter.
#[derive(Default)]
pub(crate) struct Background {
    jobs: Mutex<Option<UnboundedSender<Job>>>,
}

impl Background {
    /// Runs `job` on the thread, which this starts if it does not run yet. A job is dropped where the
    /// process cannot have another thread.
    pub(crate) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        if let Err(error) = self.send(Box::pin(job)) {
            tracing::error!(%error, "the background thread of the rate limiter does not start");
        }
    }

    fn send(&self, job: Job) -> io::Result<()> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let unsent = match &*jobs {
            Some(running) => match running.send(job) {
                Ok(()) => return Ok(()),
                // The thread has ended before its time: it had no runtime.
                Err(SendError(job)) => job,
            },
            None => job,
        };
        let (sender, receiver) = unbounded_channel();
        thread::Builder::new().name("ratelimit".to_owned()).spawn(|| start(receiver))?;
        let _ = sender.send(unsent);
        *jobs = Some(sender);
        Ok(())
    }
}

/// Makes the runtime here: one that cannot be used may not be dropped where tasks run.
fn start(jobs: UnboundedReceiver<Job>) {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run(jobs)),
        Err(error) => {
            tracing::error!(%error, "the background thread of the rate limiter has no runtime");
        }
    }
}

async fn run(mut jobs: UnboundedReceiver<Job>) {
    // Closes once all jobs have ended.
    let (running, mut ended) = mpsc::channel::<Infallible>(1);
    while let Some(job) = jobs.recv().await {
        let running = running.clone();
        tokio::spawn(async move {
            job.await;
            drop(running);
        });
    }
    drop(running);
    let _ = timeout(GRACE, ended.recv()).await;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn runs_jobs_and_ends_with_its_owner() {
        let background = Background::default();
        let (sender, receiver) = channel();
        for number in 0..3 {
            let sender = sender.clone();
            background.spawn(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                sender.send((number, thread::current().id())).expect("the test waits");
            });
        }
        // Jobs that have begun are finished.
        drop((background, sender));
        let mut done: Vec<_> = receiver.iter().collect();
        done.sort_by_key(|(number, _)| *number);
        assert_eq!(done.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(done.iter().all(|(_, id)| *id == done[0].1 && *id != thread::current().id()));
    }

    #[test]
    fn a_job_that_panics_takes_no_other_along() {
        let background = Background::default();
        background.spawn(async { panic!("on purpose") });
        let (sender, receiver) = channel();
        background.spawn(async move { sender.send(()).expect("the test waits") });
        receiver.recv_timeout(GRACE).expect("it runs");
    }
}
