//! A valid attribute. trybuild generates code for all cases, and does not only check them, when one
//! of them has to pass; a bad constant is found only then.

use ratelimit_runtime::{Rejection, rate_limit};

#[rate_limit(period = "1h", threshold = 1)]
async fn limited() -> Result<(), Rejection> {
    Ok(())
}

/// The text names no algorithm.
#[rate_limit("10/s burst 5", algo = "leaky_bucket")]
async fn paced() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    assert!(limited().await.is_ok());
    assert!(limited().await.is_err());
    assert!(paced().await.is_ok());
}
