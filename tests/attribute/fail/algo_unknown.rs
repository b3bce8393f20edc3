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

#[rate_limit(period = 30, threshold = 2, algo = "sliding_window")]
async fn sliding_window() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, algo = "GCRA")]
async fn gcra() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, algo = "fixed-window")]
async fn fixed_window() -> Option<()> {
    None
}

fn main() {}
