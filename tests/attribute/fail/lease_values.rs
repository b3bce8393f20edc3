use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, lease = 0)]
async fn zero() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, lease = "50")]
async fn text() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, lease = 3)]
async fn above_threshold() -> Option<()> {
    None
}

#[rate_limit(period = "50ms", threshold = 100, lease = 10)]
async fn period_too_short() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, algo = "leaky_bucket", lease = 1)]
async fn burst_too_small() -> Option<()> {
    None
}

#[rate_limit(period = 1, threshold = 1_000, algo = "token_bucket", burst = 20, lease = 11)]
async fn above_burst() -> Option<()> {
    None
}

#[rate_limit(period = 1, threshold = 1_000, algo = "token_bucket", burst = 20, lease = 5, cost = 11)]
async fn cost_above_leased_burst() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, scope = "process", lease = 2)]
async fn with_process_scope() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, wait = 1, lease = 2)]
async fn with_wait() -> Option<()> {
    None
}

#[rate_limit(limit(period = 30, threshold = 2), lease = 2)]
async fn beside_a_group() -> Option<()> {
    None
}

#[rate_limit(limit(period = 30, threshold = 2, lease = 2))]
async fn inside_a_group() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 99, lease = "auto")]
async fn automatic_of_few() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 1_000, algo = "token_bucket", burst = 50, lease = "auto")]
async fn automatic_of_a_small_burst() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 1_000, lease = auto)]
async fn automatic_without_quotes() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 1_000, lease = "adaptive")]
async fn another_word() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 1_000, lease = "auto", settle = |_| 1)]
async fn automatic_with_settle() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, prefetch = 2)]
async fn synonym() -> Option<()> {
    None
}

fn main() {}
