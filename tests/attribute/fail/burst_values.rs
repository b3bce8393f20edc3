use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, algo = "token_bucket", burst = 0)]
async fn zero() -> Option<()> {
    None
}

#[rate_limit(period = "365d", threshold = 1, algo = "leaky_bucket", burst = 101)]
async fn fills_too_slowly() -> Option<()> {
    None
}

fn main() {}
