//! The expansion causes no warning, and the attributes of the user still apply to the body. The body of an `unsafe`
//! function stays unsafe code, and the check in front of it is safe code.

#![deny(warnings, missing_docs, unused, unreachable_code, rust_2018_idioms)]
#![deny(elided_lifetimes_in_paths, single_use_lifetimes, unused_qualifications, unused_lifetimes)]
#![deny(let_underscore_drop, unit_bindings, unused_results, unnameable_types, trivial_casts)]
#![deny(trivial_numeric_casts, unsafe_op_in_unsafe_fn)]

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

/// Documented.
#[must_use]
#[rate_limit(period = "1h", threshold = 1, key = (id, "{id}"), cost = 1)]
#[inline]
pub async fn outer(id: u64) -> Result<(), Rejection> {
    #![allow(unused_variables)]
    //! Documented inside as well.
    let unused = 1;
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, key = "{used_in_the_key_only}")]
async fn diverges(used_in_the_key_only: u8) -> Result<(), Rejection> {
    loop {
        return Ok(());
    }
}

#[rate_limit(period = "1h", threshold = 1)]
async fn empty() -> impl std::fmt::Debug {}

#[rate_limit(period = "1h", threshold = 1, on_limited = drop)]
async fn nothing() {}

#[rustfmt::skip]
#[rate_limit(period = "1h", threshold = 1, key = a + b)]
async fn one_line(a: u8, b: u8) -> Option<u8> { Some(a * b) }

/// # Safety
///
/// `pointer` is valid for reads.
#[rate_limit(period = "1h", threshold = 1)]
async unsafe fn read(pointer: *const u8) -> Option<u8> {
    // SAFETY: guaranteed by the caller.
    Some(unsafe { pointer.read() })
}

async fn run() {
    assert_eq!(one_line(1, 2).await, Some(2));
    assert!(outer(1).await.is_ok());
    assert!(outer(1).await.is_err());
    assert!(diverges(1).await.is_ok());
    assert!(diverges(1).await.is_err());
    assert_eq!(format!("{:?}", empty().await), "Ok(())");
    nothing().await;
    // SAFETY: references are valid for reads.
    assert_eq!(unsafe { (read(&7).await, read(&7).await) }, (Some(7), None));
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(RateLimiter::embedded().scope(run()));
}
