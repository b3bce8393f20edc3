//! The link of a runtime to a node.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::lock;
use crate::store::redis::breaker::Breaker;
use crate::store::redis::link::Link;

/// The link of one runtime, if there is one.
pub(super) struct Socket {
    pub(super) link: Mutex<Option<Link>>,
    pub(super) breaker: Breaker,
    /// The other end is held by a task, and closes with the runtime.
    pub(super) runtime: oneshot::Sender<()>,
    /// Held while connecting, so that calls that find no link wait for one attempt. It is a task of
    /// the same runtime that holds it: a runtime that stands still keeps nobody else.
    pub(super) connecting: Arc<tokio::sync::Mutex<()>>,
}

impl Socket {
    pub(super) fn new() -> Arc<Self> {
        let (runtime, end) = oneshot::channel();
        tokio::spawn(async {
            // Ends with the runtime, or with this socket.
            let _ = end.await;
        });
        Arc::new(Self {
            link: Mutex::default(),
            breaker: Breaker::default(),
            runtime,
            connecting: Arc::default(),
        })
    }

    pub(super) fn link(&self) -> Option<Link> {
        lock(&self.link).clone()
    }

    pub(super) fn give_up(&self, given_up: &Link) {
        let mut link = lock(&self.link);
        if link.as_ref().is_some_and(|link| link.is(given_up)) {
            *link = None;
        }
    }
}
