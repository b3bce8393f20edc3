#[rate_limit(period = 30, threshold = 2, scope = "process", key = id)]
fn call(id: u64) -> Result<u64, Rejection> {
    Ok(id)
}

#[rate_limit(period = 30, threshold = 2, scope = "process")]
fn hidden() -> impl Debug {
    1
}
