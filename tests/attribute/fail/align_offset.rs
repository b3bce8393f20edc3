use ratelimit_runtime::rate_limit;

#[rate_limit(period = "1d", threshold = 2, algo = "fixed", align = "UTC")]
async fn upper_case() -> Option<()> {
    None
}

#[rate_limit(period = "1d", threshold = 2, algo = "fixed", align = "+8")]
async fn incomplete() -> Option<()> {
    None
}

#[rate_limit(period = "1d", threshold = 2, algo = "fixed", align = "+14:01")]
async fn out_of_range() -> Option<()> {
    None
}

#[rate_limit(period = "1d", threshold = 2, algo = "fixed", align = "Asia/Shanghai")]
async fn named_zone() -> Option<()> {
    None
}

#[rate_limit(period = "1d", threshold = 2, algo = "fixed", align = +8)]
async fn number() -> Option<()> {
    None
}

#[rate_limit(period = "1d", threshold = 2, algo = "fixed", align = "month")]
async fn length_of_a_window() -> Option<()> {
    None
}

fn main() {}
