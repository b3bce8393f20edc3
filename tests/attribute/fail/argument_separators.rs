use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30 threshold = 0)]
async fn no_comma() -> Option<()> {
    None
}

#[rate_limit(period = 30; threshold = 0)]
async fn semicolon() -> Option<()> {
    None
}

fn main() {}
