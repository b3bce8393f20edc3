use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, algo = sliding)]
async fn word() -> Option<()> {
    None
}

#[rate_limit(period = 30, threshold = 2, algo = 3)]
async fn number() -> Option<()> {
    None
}

fn main() {}
