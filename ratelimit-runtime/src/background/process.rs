//! The process that runs this code. A fork copies a limiter without its threads: jobs, lines and leases of the parent
//! never go on in the child, and are not its own.
//!
//! The id of the process is compared only where a tokio runtime first appears and where a job is sent, because reading
//! it is a system call. All else compares with the id that was seen there. What a child does before it has a new
//! runtime is not noticed.

use std::cell::Cell;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tokio::runtime::{Handle, Id};

use crate::threads::{Mutex, MutexGuard};

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
    let mut value = value.lock().unwrap_or_else(PoisonError::into_inner);
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
