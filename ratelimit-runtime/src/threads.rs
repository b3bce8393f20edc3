//! Locks and atomic numbers that threads share. With `--cfg loom`, tests run them in every order in which threads can
//! use them; see CONTRIBUTING.md.

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
