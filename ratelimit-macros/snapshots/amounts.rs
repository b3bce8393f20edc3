#[rate_limit(
    period = 60,
    algo = "token_bucket",
    threshold = plan.rate(),
    burst = plan.burst,
    key = user,
    lease = LEASE
)]
async fn one(user: &str, plan: Plan) -> Result<(), Rejection> {
    work().await
}

#[rate_limit(
    limit(limit = REQUESTS),
    limit(period = 60, threshold = const { 5 * 5 }),
    limit(period = 60, threshold = rate, settle = tokens),
    name = "pages",
    key = user,
    scope = "process"
)]
fn several(user: &str, rate: Option<u64>) -> Answer {
    work()
}
