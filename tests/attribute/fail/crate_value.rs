use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, crate = "facade::limits")]
async fn text() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, crate = facade::limits())]
async fn call() -> Option<()> {
    None
}

fn main() {}
