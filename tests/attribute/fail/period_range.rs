use ratelimit_runtime::rate_limit;

#[rate_limit(period = 0, threshold = 2)]
async fn zero() -> Option<()> {
    None
}

#[rate_limit(period = -30, threshold = 2)]
async fn negative() -> Option<()> {
    None
}

#[rate_limit(period = "-30s", threshold = 2)]
async fn negative_text() -> Option<()> {
    None
}

#[rate_limit(period = 0.0000015, threshold = 2)]
async fn too_fine() -> Option<()> {
    None
}

#[rate_limit(period = "36525d 1us", threshold = 2)]
async fn too_long() -> Option<()> {
    None
}

fn main() {}
