//! The watch of a node, two jobs of the background thread: one opens and closes the circuit breaker, and one follows
//! the primary.
//!
//! A call that has no reply or no connection shows only that its own runtime does not reach the server: the runtime may
//! be blocked, or the server may have as many clients as it accepts. So it asks for a probe, which the watch sends from
//! its own runtime. If the server does not answer the probe, the breaker opens for all runtimes: until the server
//! answers a later probe, only a connection that replies is used.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::{Node, ServerLookup, is_unfit, lock};
use crate::background::lock_own;
use crate::reply::StoreError;
use crate::report;
use crate::store::redis::network::connection::Connection;
use crate::store::redis::network::failure::Failure;
use crate::store::redis::network::sentinel::PRIMARY_INTERVAL;

/// The first and the longest pause after a probe, before jitter.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(400)];

impl Node {
    /// Asks the watch for a probe. Starts the watch if it does not run.
    pub(super) fn ask_for_probe(self: &Arc<Self>) {
        self.start_watch();
        if let Some(asked) = &lock_own(&self.state).asked {
            // A full channel has a request already.
            let _ = asked.try_send(());
        }
    }

    pub(super) fn start_watch(self: &Arc<Self>) {
        if self.is_watched.swap(true, Ordering::Relaxed) {
            return;
        }
        self.background.spawn_resident(self, |node| {
            let (sender, asked) = mpsc::channel(1);
            lock_own(&node.state).asked = Some(sender);
            probe(Arc::downgrade(&node), asked)
        });
        if let ServerLookup::Primary(_) = self.lookup {
            self.background.spawn_resident(self, |node| follow(Arc::downgrade(&node)));
        }
    }

    /// Opens the breaker if an error shows that the server does not decide calls.
    pub(crate) fn back_off_if_unfit(self: &Arc<Self>, error: &StoreError) {
        if is_unfit(error) {
            let was_open = self.open_breaker(error);
            // Before the report, whose subscriber may panic: the watch closes the breaker.
            self.ask_for_probe();
            if !was_open {
                report::breaker(&self.name, Some(error));
            }
        }
    }

    /// Opens the breaker, or gives it a newer cause. Returns whether it was open. Discards all connections to a server
    /// that is not the primary: an address can move, so the next ones may lead to another server.
    fn open_breaker(&self, cause: &StoreError) -> bool {
        let mut state = lock_own(&self.state);
        if is_unfit(cause) {
            for runtime in state.runtimes.values() {
                *lock(&runtime.connection) = None;
            }
        }
        state.open.replace(Arc::new(cause.clone())).is_some()
    }

    fn close_breaker(&self) {
        if lock_own(&self.state).open.take().is_some() {
            report::breaker(&self.name, None);
            self.background.recovered();
        }
    }

    /// Sends a probe from this runtime. Returns an error if the server does not answer in time, or would not decide. A
    /// connection that was there before may have broken in silence, so the probe is then sent again on a new one.
    async fn answers_probe(self: &Arc<Self>) -> Result<(), StoreError> {
        let (runtime, _) = self.state();
        loop {
            let (was_connected, mut is_sent) = (runtime.connection().is_some(), false);
            let exchange = self.exchange(&runtime, None, &self.probe, false, &mut is_sent);
            let failure = match timeout(self.deadline, exchange).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(failure)) => failure,
                Err(_) => {
                    // The attempt goes on, but the next probe does not wait for it: its bytes may be lost.
                    *lock(&runtime.attempt) = None;
                    Failure::Timeout { is_sent }
                }
            };
            let is_answer =
                matches!(&failure, Failure::Redis(error) if !error.is_unrecoverable_error());
            let cause = failure.into_store_error(self.deadline, &[]);
            if is_answer {
                // Callers receive other errors from the server.
                return if is_unfit(&cause) { Err(cause) } else { Ok(()) };
            }
            if is_sent {
                *lock(&runtime.connection) = None;
            }
            if !was_connected {
                return Err(cause);
            }
        }
    }
}

/// Sends the probes that calls ask for. While the breaker is open, sends one after each pause. Ends with the node.
async fn probe(node: Weak<Node>, mut asked: mpsc::Receiver<()>) {
    // It may be open: for want of a thread, or after a panic.
    let Some(mut is_open) = node.upgrade().map(|node| lock_own(&node.state).open.is_some()) else {
        return;
    };
    let mut failures = 0;
    loop {
        if !is_open && asked.recv().await.is_none() {
            return;
        }
        let Some(node) = node.upgrade() else { return };
        let answer = node.answers_probe().await;
        is_open = answer.is_err();
        match answer {
            Ok(()) => {
                failures = 0;
                node.close_breaker();
            }
            Err(cause) => {
                failures += 1;
                if !node.open_breaker(&cause) {
                    report::breaker(&node.name, Some(&cause));
                }
            }
        }
        drop(node);
        sleep(pause_after(failures)).await;
    }
}

/// Discards connections to a server that is no longer the primary, until the node is dropped.
async fn follow(node: Weak<Node>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        let ServerLookup::Primary(sentinels) = &node.lookup else { return };
        if let Ok(primary) = sentinels.primary().await {
            let is_outdated = |it: &mut Connection| it.primary() != Some(&primary);
            let runtimes: Vec<_> = lock_own(&node.state).runtimes.values().cloned().collect();
            for runtime in runtimes {
                let outdated = lock(&runtime.connection).take_if(is_outdated);
                if outdated.is_some() {
                    tracing::info!(node = %node.name, "the primary has changed");
                }
            }
        }
        drop(node);
        sleep(PRIMARY_INTERVAL).await;
    }
}

/// Returns the pause after a probe, the last of so many failed ones. It doubles with each of them up to the longest.
/// Jitter makes it up to a quarter shorter or longer, so that the processes of a fleet do not probe at the same time.
fn pause_after(failures: u32) -> Duration {
    let [first, longest] = PAUSES;
    let pause = first.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(longest);
    let jitter = RandomState::new().hash_one(failures) % 512;
    pause * (768 + jitter as u32) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_have_jitter() {
        let first: Vec<_> = (0..20).map(|_| pause_after(0)).collect();
        assert!(first.iter().all(|pause| (37..=63).contains(&pause.as_millis())), "{first:?}");
        assert!(first.iter().any(|pause| *pause != first[0]), "{first:?}");
        for failures in [4, 10, u32::MAX] {
            let pause = pause_after(failures).as_millis();
            assert!((300..=500).contains(&pause), "{pause} ms after {failures}");
        }
    }
}
