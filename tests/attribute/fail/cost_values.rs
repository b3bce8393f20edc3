use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, cost = 0)]
async fn zero() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, cost = -1)]
async fn negative() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, cost = "2")]
async fn text() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, cost = 3)]
async fn above_threshold() -> Option<()> {
    None
}

#[rate_limit(
    period = 30,
    threshold = 10,
    algo = "token_bucket",
    burst = 2,
    cost = 3
)]
async fn above_burst() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 10, algo = "leaky_bucket", cost = 2)]
async fn above_default_burst() -> Option<()> {
    None
}

fn main() {}
