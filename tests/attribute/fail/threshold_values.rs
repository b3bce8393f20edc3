use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 0)]
async fn zero() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = -1)]
async fn negative() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2.5)]
async fn float() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = "2")]
async fn text() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 1_000_000_000_000_000)]
async fn too_large() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2u64)]
async fn suffix() -> Option<()> {
    None
}

fn main() {}
