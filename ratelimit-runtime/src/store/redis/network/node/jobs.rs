//! The jobs of the background thread for a node: probing a server that does not answer, and following the
//! primary.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use redis::RedisError;
use tokio::time::{sleep, timeout};

use super::runtime::RuntimeState;
use super::{Node, ServerLookup, is_unfit, lock};
use crate::background::{RunningJob, lock_own};
use crate::report;
use crate::store::redis::network::breaker::pause_after;
use crate::store::redis::network::connect::CONNECT_TIMEOUT;
use crate::store::redis::network::connection::Connection;
use crate::store::redis::network::failure::store_error;
use crate::store::redis::network::sentinel::PRIMARY_INTERVAL;

/// Probes the server until the breakers of all runtimes are closed.
pub(super) async fn probe(node: Weak<Node>, mut job: RunningJob) {
    loop {
        let failures = match node.upgrade() {
            Some(node) => node.failed_probes.fetch_add(1, Ordering::Relaxed),
            None => return,
        };
        sleep(pause_after(failures)).await;
        let Some(node) = node.upgrade() else { return };
        // A breaker that opens after the probe was sent has a newer cause, so the probe does not close it.
        let open = node.runtimes_with_open_breaker();
        if node.answers_probe().await {
            for runtime in open {
                runtime.breaker.half_open();
            }
            report::breaker(&node.name, None);
            node.background.recovered();
        }
        let is_open = || !node.runtimes_with_open_breaker().is_empty();
        if !is_open() && job.ends(is_open) {
            return;
        }
    }
}

/// Discards connections to a server that is no longer the primary.
pub(super) async fn follow(node: Weak<Node>, _job: RunningJob) {
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

impl Node {
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
                !error.is_unrecoverable_error() && !is_unfit(&store_error(error, &[]))
            };
            reply.as_ref().err().is_none_or(is_answer).then_some(())
        };
        let answers = probe.await.is_some();
        if !answers {
            *lock(&runtime.connection) = None;
        }
        answers
    }
}
