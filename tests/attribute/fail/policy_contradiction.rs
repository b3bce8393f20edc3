use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, scope = "process", on_error = "deny")]
async fn on_error_with_process_scope() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, shadow = true, wait = "1s")]
async fn wait_with_shadow() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, wait = 0)]
async fn zero_wait() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, wait = true)]
async fn wait_of_wrong_type() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, timeout = "5 minutes")]
async fn synonym() -> Option<()> {
    None
}

fn main() {}
