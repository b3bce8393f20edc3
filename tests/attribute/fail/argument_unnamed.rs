use ratelimit_runtime::rate_limit;

#[rate_limit(30, 2)]
async fn numbers() -> Option<()> {
    None
}

fn main() {}
