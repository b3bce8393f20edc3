//! The shutdown of a limiter: gives back the units that the process holds, and sends pending settlements.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::backend::Backend;
use crate::lease::Leases;
use crate::reply::StoreError;
use crate::settle::{ReportedLosses, Settlements};
use crate::store::OfShared;
use crate::waiting::WaitingSlot;

/// Waits until all settlements are done. Fails if some were lost, and once none was settled for `deadline`.
pub(super) async fn flush(settlements: &Settlements, deadline: Duration) -> Result<(), StoreError> {
    let mut flushed = pin!(settlements.flushed(ReportedLosses::SinceLastFlush));
    if Handle::try_current().is_err() {
        return Err(StoreError::NoRuntime);
    }
    loop {
        let before = settlements.replies();
        match timeout(deadline, flushed.as_mut()).await {
            Ok(result) => return result,
            Err(_) if settlements.replies() == before => {
                return Err(StoreError::Timeout { deadline });
            }
            Err(_) => {}
        }
    }
}

/// Waits until the store knows which units in flight were released.
pub(super) async fn stated(backend: &Backend, deadline: Duration) -> Result<(), StoreError> {
    let all_stated = async {
        loop {
            // Receives notifications from now on.
            let changed = backend.in_flight_changes();
            if let (_, true) = backend.in_flight() {
                return;
            }
            changed.await;
        }
    };
    if let (_, true) = backend.in_flight() {
        return Ok(());
    }
    timeout(deadline, all_stated).await.map_err(|_| StoreError::Timeout { deadline })
}

/// Gives back all leased units, and waits until the units of waiting calls are given back and all settlements are done.
/// Takes two deadlines at most.
pub(super) async fn give_back_all(
    deadline: Duration,
    leases: OfShared<Arc<Leases>>,
    waiting: Arc<WaitingSlot>,
    settlements: Arc<Settlements>,
) -> Result<(), StoreError> {
    let Ok(runtime) = Handle::try_current() else { return Err(StoreError::NoRuntime) };
    let by = Instant::now() + 2 * deadline;
    let late = |_| StoreError::Timeout { deadline };
    let flushed = settlements.flushed(ReportedLosses::SinceNow);
    let mut leases = runtime.spawn(async move { leases.shut_down().await });
    let rested = timeout_at(by, waiting.rested()).await.map_err(late);
    let returned = timeout_at(by, &mut leases).await.map_err(late);
    leases.abort();
    let flushed = timeout_at(by, flushed).await.map_err(late);
    returned?.unwrap_or(Err(StoreError::NoRuntime))?;
    rested??;
    flushed?
}
