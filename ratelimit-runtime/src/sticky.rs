//! A flag that is set once and never cleared.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Records that a task-local value was set in this process. Saves the lookup of the value until then
/// (`benches/all -- attribute`).
///
/// `Relaxed` suffices: a task sets the flag before the value, and a runtime that moves the task to another
/// thread makes its earlier writes visible there.
pub(crate) struct StickyFlag(AtomicBool);

impl StickyFlag {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn set(&self) {
        // Writes once only: a write would evict the flag from the caches of the threads that read it.
        if !self.is_set() {
            self.0.store(true, Relaxed);
        }
    }

    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}
