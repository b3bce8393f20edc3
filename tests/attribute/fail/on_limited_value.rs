use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, on_limited = "busy")]
async fn text() -> u16 {
    200
}

#[rate_limit(period = 30, threshold = 2, on_limited = "slow down")]
async fn words() -> String {
    String::new()
}

#[rate_limit(period = 30, threshold = 2, on_limited = busy(429))]
async fn call() -> u16 {
    200
}

#[rate_limit(period = 30, threshold = 2, on_limited = async |_| 429)]
async fn async_closure() -> u16 {
    200
}

#[rate_limit(period = 30, threshold = 2, on_limited = |_| async { 429 })]
async fn async_block() -> u16 {
    200
}

fn main() {}
