//! The body of an `unsafe` function stays unsafe code, and the check in front of it is safe code.

#![deny(unsafe_op_in_unsafe_fn)]

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

/// # Safety
///
/// `pointer` is valid for reads.
#[rate_limit(period = "1h", threshold = 1)]
async unsafe fn read(pointer: *const u8) -> Result<u8, Rejection> {
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { pointer.read() })
}

async fn run() {
    // SAFETY: references are valid for reads.
    assert_eq!(unsafe { read(&7) }.await.unwrap(), 7);
    // SAFETY: as above.
    assert!(unsafe { read(&7) }.await.is_err());
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    RateLimiter::embedded().scope(run()).await;
}
