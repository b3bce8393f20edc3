//! A valid attribute. trybuild generates code for all cases, and does not only check them, when one
//! of them has to pass; a bad constant is found only then.

use ratelimit_runtime::{Rejection, rate_limit};

#[rate_limit(period = "1h", threshold = 1)]
async fn limited() -> Result<(), Rejection> {
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    assert!(limited().await.is_ok());
    assert!(limited().await.is_err());
}
