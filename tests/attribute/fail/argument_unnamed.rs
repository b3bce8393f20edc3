use ratelimit_runtime::rate_limit;

#[rate_limit(30, 2)]
async fn numbers() -> Option<()> {
    None
}

#[rate_limit("2/30s")]
async fn text() -> Option<()> {
    None
}

fn main() {}
