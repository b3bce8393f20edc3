#[rate_limit(limit = LOGIN, key = user, on_error = "deny")]
async fn log_in(user: u64) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(limit(limit = LOGIN, key = user), limit(period = "1d", threshold = 5_000))]
async fn query(user: u64) -> Result<(), Rejection> {
    Ok(())
}
