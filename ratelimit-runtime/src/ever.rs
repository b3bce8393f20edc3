//! What few processes ever do: whether this one has is asked before it is looked for.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Whether something was ever done. Nothing is ordered by it: where what was done can be found, this is
/// known as well, since both came there together.
pub(crate) struct Ever(AtomicBool);

impl Ever {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn done(&self) {
        // Not written again and again: all threads read it.
        if !self.is_done() {
            self.0.store(true, Relaxed);
        }
    }

    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.0.load(Relaxed)
    }
}
