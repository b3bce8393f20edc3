use ratelimit_runtime::rate_limit;

#[rate_limit(period = "1d", threshold = 2, align = "utc")]
async fn default() -> Option<()> {
    None
}

#[rate_limit(period = "1d", threshold = 2, algo = "token_bucket", align = "+08:00")]
async fn bucket() -> Option<()> {
    None
}

fn main() {}
