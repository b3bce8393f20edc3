use ratelimit_runtime::rate_limit;

#[rate_limit(period = 30, threshold = 2, period = 60)]
async fn twice() -> Option<()> {
    None
}

fn main() {}
