use ratelimit_runtime::rate_limit;

#[rate_limit(period = "1d", threshold = 2, algo = "fixed", align = "UTC")]
async fn case() -> Option<()> {
    None
}

#[rate_limit(period = "1d", threshold = 2, algo = "fixed", align = "+8")]
async fn short() -> Option<()> {
    None
}

#[rate_limit(period = "1d", threshold = 2, algo = "fixed", align = "+14:01")]
async fn far() -> Option<()> {
    None
}

#[rate_limit(period = "1d", threshold = 2, algo = "fixed", align = "Asia/Shanghai")]
async fn zone() -> Option<()> {
    None
}

#[rate_limit(period = "1d", threshold = 2, algo = "fixed", align = +8)]
async fn number() -> Option<()> {
    None
}

fn main() {}
