//! Nothing to complain about. With this beside them, mistakes are built and not only checked: a bad
//! constant is found when code is generated.

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
