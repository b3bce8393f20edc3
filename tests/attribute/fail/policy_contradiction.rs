use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, scope = "process", on_error = "deny")]
async fn never_asks_redis() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, shadow = true, wait = "1s")]
async fn never_waits() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, wait = 0)]
async fn no_wait() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, wait = true)]
async fn no_duration() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, timeout = "5 minutes")]
async fn synonym() -> Option<()> {
    None
}

fn main() {}
