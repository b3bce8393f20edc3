//! Locks and atomic numbers that threads share. With `--cfg loom`, tests run them in every order in which threads can
//! use them; see CONTRIBUTING.md.

use std::sync::PoisonError;
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, AtomicU64},
};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, AtomicU64},
};

/// Locks a mutex. A panic in another thread leaves its data valid.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
