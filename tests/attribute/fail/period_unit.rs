use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30s, threshold = 2)]
async fn unquoted() -> Option<()> {
    None
}

#[rate_limit(period = 0.5h, threshold = 2)]
async fn unquoted_decimal() -> Option<()> {
    None
}

#[rate_limit(period = 30u64, threshold = 2)]
async fn type_suffix() -> Option<()> {
    None
}

#[rate_limit(period = "30", threshold = 2)]
async fn no_unit() -> Option<()> {
    None
}

#[rate_limit(period = "s", threshold = 2)]
async fn no_number() -> Option<()> {
    None
}

#[rate_limit(period = "5 minutes", threshold = 2)]
async fn foreign() -> Option<()> {
    None
}

#[rate_limit(period = "2w", threshold = 2)]
async fn unknown() -> Option<()> {
    None
}

#[rate_limit(period = "1M", threshold = 2)]
async fn months() -> Option<()> {
    None
}

#[rate_limit(period = "30m1h", threshold = 2)]
async fn order() -> Option<()> {
    None
}

fn main() {}
