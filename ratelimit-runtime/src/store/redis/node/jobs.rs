//! The jobs of the background thread for a node: probing a server that does not answer, and watching which
//! server is the primary.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use redis::RedisError;
use tokio::time::{sleep, timeout};

use super::runtime::Socket;
use super::{Node, ServerLookup, is_replica, lock};
use crate::report;
use crate::store::redis::breaker::pause;
use crate::store::redis::connect::CONNECT;
use crate::store::redis::failure::store_error;
use crate::store::redis::sentinel::ASK_AGAIN;

impl Node {
    /// Probes the server until all breakers are closed.
    pub(super) async fn probe_until_closed(node: Weak<Self>, running: Running) {
        loop {
            let setbacks = match node.upgrade() {
                Some(node) => node.setbacks.fetch_add(1, Ordering::Relaxed),
                None => return,
            };
            sleep(pause(setbacks)).await;
            let Some(node) = node.upgrade() else { return };
            // What opens after the probe was sent knows more than the probe.
            let open = node.open();
            if node.is_answered().await {
                for socket in open {
                    socket.breaker.closes();
                }
                report::breaker(&node.name, None);
            }
            if node.open().is_empty() {
                running.end();
                // One may have opened in between, and relied on this.
                if node.open().is_empty() || !running.begin() {
                    return;
                }
            }
        }
    }

    /// The runtimes in which the server is not asked.
    fn open(&self) -> Vec<Arc<Socket>> {
        let sockets = lock(&self.sockets);
        sockets.values().filter(|it| it.breaker.is_open().is_some()).cloned().collect()
    }

    /// Whether the server answers a probe of this runtime in time, and would decide.
    async fn is_answered(self: &Arc<Self>) -> bool {
        let socket = self.socket();
        let probe = async {
            let link = timeout(3 * CONNECT, self.link(&socket)).await.ok()?.ok()?;
            let reply = timeout(self.deadline, link.send(&self.probe, false)).await.ok()?;
            // Any other reply will do: callers get the errors of the server.
            let is_answer = |error: &RedisError| {
                !error.is_unrecoverable_error() && !is_replica(&store_error(error, &[]))
            };
            reply.as_ref().err().is_none_or(is_answer).then_some(())
        };
        let answers = probe.await.is_some();
        if !answers {
            *lock(&socket.link) = None;
        }
        answers
    }

    /// Gives up links when another server becomes the primary.
    pub(super) async fn watch(node: Weak<Self>, _running: Running) {
        loop {
            sleep(ASK_AGAIN).await;
            let Some(node) = node.upgrade() else { return };
            let ServerLookup::Primary(sentinels) = &node.find else { return };
            let Ok(now) = sentinels.primary().await else { continue };
            let sockets: Vec<_> = lock(&node.sockets).values().cloned().collect();
            for socket in sockets {
                let mut link = lock(&socket.link);
                if link.as_ref().is_some_and(|link| link.primary() != Some(&now)) {
                    tracing::info!(node = %node.name, "another server is the primary now");
                    *link = None;
                }
            }
        }
    }
}

/// A job of the background thread that a flag of the node says is running. The flag falls with the job, also
/// if that is lost before it ends.
pub(super) struct Running {
    node: Weak<Node>,
    flag: fn(&Node) -> &AtomicBool,
    /// The flag is this job's.
    is_own: AtomicBool,
}

impl Running {
    /// The flag was raised already.
    pub(super) fn new(node: &Arc<Node>, flag: fn(&Node) -> &AtomicBool) -> Self {
        Self { node: Arc::downgrade(node), flag, is_own: AtomicBool::new(true) }
    }

    fn end(&self) {
        if self.is_own.swap(false, Ordering::SeqCst)
            && let Some(node) = self.node.upgrade()
        {
            (self.flag)(&node).store(false, Ordering::SeqCst);
        }
    }

    /// Raises the flag again, unless another job has.
    fn begin(&self) -> bool {
        let Some(node) = self.node.upgrade() else { return false };
        let is_own = !(self.flag)(&node).swap(true, Ordering::SeqCst);
        self.is_own.store(is_own, Ordering::SeqCst);
        is_own
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
