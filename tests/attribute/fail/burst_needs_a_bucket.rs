use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, burst = 5)]
async fn default() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, algo = "sliding_counter", burst = 5)]
async fn counter() -> Option<()> {
    None
}

fn main() {}
