//! The shutdown of a limiter: gives back what the process holds.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::lease::Leases;
use crate::reply::StoreError;
use crate::waiting::Waiting;

/// Gives back all leased units, and waits until the units of waiting calls are given back. Takes two deadlines at most.
pub(super) async fn give_back_all(
    deadline: Duration,
    leases: Arc<Leases>,
    waiting: Arc<Waiting>,
) -> Result<(), StoreError> {
    let Ok(runtime) = Handle::try_current() else { return Err(StoreError::NoRuntime) };
    let by = Instant::now() + 2 * deadline;
    let late = |_| StoreError::Timeout { deadline };
    let mut leases = runtime.spawn(async move { leases.close().await });
    let rested = timeout_at(by, waiting.rested()).await.map_err(late);
    let returned = timeout_at(by, &mut leases).await.map_err(late);
    leases.abort();
    returned?.unwrap_or(Err(StoreError::NoRuntime))?;
    rested?
}
