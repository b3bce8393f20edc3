//! A flag that is set once and never cleared.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Records that something has happened in this process: that an event was emitted, which is then not repeated, or that
/// a task-local value was set, which saves its lookup until then (`benches/all -- attribute`). Unlike in `Once`, no
/// thread waits for another, so a subscriber can come here again while it receives the event.
///
/// `Relaxed` suffices: a task sets the flag before the value, and a runtime that moves the task to another
/// thread makes its earlier writes visible there.
#[derive(Default)]
pub(crate) struct StickyFlag(AtomicBool);

impl StickyFlag {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Sets the flag. Returns whether it was not set.
    pub(crate) fn set(&self) -> bool {
        // Writes once only: a write would evict the flag from the caches of the threads that read it.
        !self.is_set() && !self.0.swap(true, Relaxed)
    }

    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}
