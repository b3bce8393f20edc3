use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, algo = "slidng")]
async fn typo() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, algo = "leaky-bucket")]
async fn hyphen() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, algo = "magic")]
async fn unknown() -> Option<()> {
    None
}

fn main() {}
