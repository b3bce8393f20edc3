//! A flag that is set once and never cleared.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Records that something has happened in this process. Saves looking it up until then.
///
/// It orders nothing: a thread that can find what happened also observes the flag, because both reach it
/// together.
pub(crate) struct StickyFlag(AtomicBool);

impl StickyFlag {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn set(&self) {
        // Written once only, because all threads read it.
        if !self.is_set() {
            self.0.store(true, Relaxed);
        }
    }

    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}
