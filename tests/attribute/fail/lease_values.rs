use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, lease = 0)]
async fn nothing() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, lease = "50")]
async fn text() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, lease = 3)]
async fn more_than_there_is() -> Option<()> {
    None
}

#[rate_limit(period = "50ms", threshold = 100, lease = 10)]
async fn too_short() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, algo = "leaky_bucket", lease = 1)]
async fn one_at_a_time() -> Option<()> {
    None
}

#[rate_limit(period = 1, threshold = 1_000, algo = "token_bucket", burst = 20, lease = 11)]
async fn more_than_the_bucket_has() -> Option<()> {
    None
}

#[rate_limit(period = 1, threshold = 1_000, algo = "token_bucket", burst = 20, lease = 5, cost = 11)]
async fn costs_more_than_the_bucket_has() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, scope = "process", lease = 2)]
async fn never_asks_redis() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, wait = 1, lease = 2)]
async fn waits() -> Option<()> {
    None
}

#[rate_limit(limit(period = 30, threshold = 2), lease = 2)]
async fn together() -> Option<()> {
    None
}

#[rate_limit(limit(period = 30, threshold = 2, lease = 2))]
async fn within() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, prefetch = 2)]
async fn synonym() -> Option<()> {
    None
}

fn main() {}
