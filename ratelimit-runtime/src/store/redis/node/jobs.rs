//! The jobs of the background thread for a node: probing a server that does not answer, and following the
//! primary.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use redis::RedisError;
use tokio::time::{sleep, timeout};

use super::runtime::RuntimeState;
use super::{Node, ServerLookup, is_replica, lock};
use crate::background::{lock_own, read_process, seen_process};
use crate::report;
use crate::store::redis::breaker::pause_after;
use crate::store::redis::connect::CONNECT_TIMEOUT;
use crate::store::redis::connection::Connection;
use crate::store::redis::failure::store_error;
use crate::store::redis::sentinel::PRIMARY_INTERVAL;

impl Node {
    /// Probes the server until the breakers of all runtimes are closed.
    pub(super) async fn probe_until_closed(node: Weak<Self>, guard: JobGuard) {
        loop {
            let failures = match node.upgrade() {
                Some(node) => node.failed_probes.fetch_add(1, Ordering::Relaxed),
                None => return,
            };
            sleep(pause_after(failures)).await;
            let Some(node) = node.upgrade() else { return };
            // A breaker that opens after the probe was sent has a newer cause, so the probe does not close
            // it.
            let open = node.runtimes_with_open_breaker();
            if node.answers_probe().await {
                for runtime in open {
                    runtime.breaker.half_open();
                }
                report::breaker(&node.name, None);
            }
            if node.runtimes_with_open_breaker().is_empty() {
                guard.release();
                // A breaker that opened before the release did not start another job.
                if node.runtimes_with_open_breaker().is_empty() || !guard.reacquire() {
                    return;
                }
            }
        }
    }

    fn runtimes_with_open_breaker(&self) -> Vec<Arc<RuntimeState>> {
        let runtimes = lock_own(&self.runtimes);
        let open = |runtime: &&Arc<RuntimeState>| runtime.breaker.open_error().is_some();
        runtimes.values().filter(open).cloned().collect()
    }

    /// Sends a probe from this runtime. Returns whether the server answers in time and would decide.
    async fn answers_probe(self: &Arc<Self>) -> bool {
        let runtime = self.runtime();
        let probe = async {
            let connecting = timeout(3 * CONNECT_TIMEOUT, self.connection(&runtime));
            let connection = connecting.await.ok()?.ok()?;
            let reply = timeout(self.deadline, connection.send(&self.probe, false)).await.ok()?;
            // Other errors are answers: callers receive them from the server.
            let is_answer = |error: &RedisError| {
                !error.is_unrecoverable_error() && !is_replica(&store_error(error, &[]))
            };
            reply.as_ref().err().is_none_or(is_answer).then_some(())
        };
        let answers = probe.await.is_some();
        if !answers {
            *lock(&runtime.connection) = None;
        }
        answers
    }

    /// Discards connections to a server that is no longer the primary.
    pub(super) async fn follow_primary(node: Weak<Self>, _guard: JobGuard) {
        loop {
            sleep(PRIMARY_INTERVAL).await;
            let Some(node) = node.upgrade() else { return };
            let ServerLookup::Primary(sentinels) = &node.lookup else { return };
            let Ok(primary) = sentinels.primary().await else { continue };
            let runtimes: Vec<_> = lock_own(&node.runtimes).values().cloned().collect();
            let is_outdated = |it: &mut Connection| it.primary() != Some(&primary);
            for runtime in runtimes {
                let outdated = lock(&runtime.connection).take_if(is_outdated);
                if outdated.is_some() {
                    tracing::info!(node = %node.name, "the primary has changed");
                }
            }
        }
    }
}

/// Marks a job of the background thread as running, by a flag of the node, which contains the process of the thread.
/// Clears the flag when the job ends or is dropped.
pub(super) struct JobGuard {
    node: Weak<Node>,
    flag: fn(&Node) -> &AtomicU32,
    /// Whether this guard, and not that of another job, has set the flag.
    is_held: AtomicBool,
}

impl JobGuard {
    /// Sets the flag. Returns `None` if another job has set it.
    pub(super) fn take(node: &Arc<Node>, flag: fn(&Node) -> &AtomicU32) -> Option<Self> {
        // Calls look at it while the job runs, so it is not written then.
        if flag(node).load(Ordering::SeqCst) == seen_process() {
            return None;
        }
        let process = read_process();
        let is_free = flag(node).swap(process, Ordering::SeqCst) != process;
        is_free.then(|| Self { node: Arc::downgrade(node), flag, is_held: true.into() })
    }

    fn release(&self) {
        if self.is_held.swap(false, Ordering::SeqCst)
            && let Some(node) = self.node.upgrade()
        {
            (self.flag)(&node).store(0, Ordering::SeqCst);
        }
    }

    /// Sets the flag again. Returns `false` if another job has set it.
    fn reacquire(&self) -> bool {
        let Some(node) = self.node.upgrade() else { return false };
        let process = read_process();
        let is_held = (self.flag)(&node).swap(process, Ordering::SeqCst) != process;
        self.is_held.store(is_held, Ordering::SeqCst);
        is_held
    }
}

impl Drop for JobGuard {
    fn drop(&mut self) {
        self.release();
    }
}
