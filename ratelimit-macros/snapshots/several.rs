#[rate_limit(
    limit(period = "1s", threshold = 10, algo = "token_bucket"),
    limit(period = "1d", threshold = 5_000, key = tenant, cost = 1, name = "tenant"),
    key = "{user}",
    cost = rows
)]
async fn query(tenant: &str, user: u64, rows: u64) -> Result<(), Rejection> {
    Ok(())
}
