use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, scope = "process", on_error = "deny")]
async fn never_asks_redis() -> Option<()> {
    None
}

fn main() {}
